# `make` prints this help.
.DEFAULT_GOAL := help
.PHONY: help demo test check fuzz bench clean
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= resnet50

help: ## print this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# The stamp is newer than pyproject.toml once everything in it is installed.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group test --group check
	touch $@

demo: $(VENV)/.installed ## plan a real network (DEMO=resnet50, densenet121, ...), check the plan, draw it
	MODEL=$$($(BIN)/python -c 'import onnx.backend.test as t; print(t.__path__[0])')/data/light/light_$(DEMO).onnx; \
	$(BIN)/sublet plan "$$MODEL" --out plan.json --html plan.html && $(BIN)/sublet check "$$MODEL" plan.json

test: $(VENV)/.installed ## all tests
	$(BIN)/python -m pytest

check: $(VENV)/.installed ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(VENV)/.installed ## generated programs and mutated plans, SECONDS=600
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600)

bench: $(VENV)/.installed ## Sublet beside onnxsim on real models, as a table
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.compare_onnxsim

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
