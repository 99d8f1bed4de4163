# `make` prints this help.
.DEFAULT_GOAL := help
.PHONY: quick gpu ddp-torch bench-torch bench-torch-budget bench-control fuzz-torch help demo test coverage conformance check docs wheel walk fuzz fuzz-paddle test-paddle test-executorch bench-executorch bench-edge mutants bench bench-all bench-packing bench-run bench-loops bench-train bench-budget bench-offload bench-order bench-patches bench-plan bench-paddle train-digits bench-dynamic fuzz-dynamic bench-rebinding clean
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= resnet50
PYTHONS ?= $(PYTHON)
LOWEST := base ir plan/test_file.py plan/test_verdict.py packing/test_bounds.py checker/test_claims.py cli/test_commands.py cli/test_show.py

help: ## print this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The stamp is newer than pyproject.toml once everything in it is installed.
$(VENV)/.installed: pyproject.toml CMakeLists.txt $(wildcard src/sublet/*/core/* src/sublet/*/*/core/* src/sublet/*/*/*/core/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group test --group check
	touch $@

demo: $(VENV)/.installed ## plan a real network (DEMO=resnet50, densenet121, ...), check the plan, draw it
	MODEL=$$($(BIN)/python -c 'import onnx.backend.test as t; print(t.__path__[0])')/data/light/light_$(DEMO).onnx; \
	$(BIN)/sublet plan "$$MODEL" --out plan.json --html plan.html && $(BIN)/sublet check "$$MODEL" plan.json

build/axe/node_modules/axe-core/axe.min.js:
	npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4.14.1

.PHONY: axe
axe: build/axe/node_modules/axe-core/axe.min.js ## the rules for screen readers that the tests of the page apply

test: $(VENV)/.installed ## all tests, on all cores
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses logical --dist worksteal

quick: $(VENV)/.installed ## the tests to run while working: under a minute on two cores
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses logical --dist worksteal tests/test_prose.py \
	  tests/test_architecture.py $(addprefix tests/,base ir ops plan/test_*.py checker/test_*.py analysis/test_records.py)

coverage: $(VENV)/.installed ## which lines and branches of Sublet the tests run: build/coverage/index.html
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage report --skip-covered --sort=cover | tail -n 40
	$(BIN)/python -m coverage html --quiet

conformance: $(VENV)/.installed ## all of ONNX's own backend tests, each a second time in a poisoned arena; outputs left out in every way
	$(BIN)/python -m tests.conformance
	$(BIN)/python -m tests.runtime.omitted_outputs

check: $(VENV)/.installed ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed ## the documentation site, with the reference of commands and Python: build/docs/index.html
	$(BIN)/python -m pip install --quiet --group docs
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

wheel: $(VENV)/.installed ## a manylinux wheel in dist/; README and docs walked through with it in a clean environment
	$(BIN)/python -m pip install --quiet --group wheel
	rm -rf build/wheel dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv --clear build/wheel/clean
	build/wheel/clean/bin/python -m pip install --quiet "$$(echo dist/*.whl)[onnxruntime,png]"
	build/wheel/clean/bin/python tests/walk.py

.PHONY: lowest release release-check
release-check: ## sdist and manylinux wheels in dist/, each tried without a compiler: PYTHONS="python3.11 python3.12" (RELEASING.md)
	PYTHONS='$(PYTHONS)' .ci/release

release: ## a release: VERSION=0.2.0, then `git tag v0.2.0` (RELEASING.md)
	sed -i 's/^version = ".*"/version = "$(VERSION)"/' pyproject.toml
	sed -i 's/^## Unreleased$$/&\n\n## $(VERSION) - '"$$(date +%F)/" CHANGELOG.md
	$(MAKE) release-check
	git commit --message 'Release $(VERSION)' -- pyproject.toml CHANGELOG.md

# The checks of warnings are those of the newest versions.
lowest: ## quick tests with the lowest versions of dependencies that pyproject.toml allows, without PyTorch
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; o = p["optional-dependencies"]; \
	  print("\n".join(each.replace(">=", "==") for each in p["dependencies"] + o["onnxruntime"] + o["png"]))' > build/lowest/constraints.txt
	build/lowest/bin/python -m pip install --quiet . --requirement build/lowest/constraints.txt pytest hypothesis jsonschema scipy
	build/lowest/bin/python -m pytest -o filterwarnings=ignore $(addprefix tests/,$(LOWEST))

walk: ## README and docs, step by step, in a clean environment of each of PYTHONS="python3.11 python3.12 python3.13"
	for python in $(PYTHONS); do \
	  $$python -m venv --clear build/walk && build/walk/bin/python -m pip install --quiet '.[onnxruntime,png]' && \
	  build/walk/bin/python tests/walk.py || exit 1; \
	done

fuzz: $(VENV)/.installed build/check build/recompute build/ordering ## generated programs, plans, models, kernels and gradients; the core under sanitizers; SECONDS=600
	build/check 2000 1
	build/recompute 2000 1
	build/ordering 2000 1
	for kind in programs carries steps plans foreign onnx shapes folding; do \
	  $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) --kind $$kind || exit 1; done
	$(BIN)/python -m tests.fuzz_ranges --programs 2000
	$(BIN)/python -m tests.hostile_files --flips 10000
	$(BIN)/python -m tests.integrations.paddle.hostile --flips 10000
	$(BIN)/python -m tests.integrations.executorch.hostile --flips 10000 --mutants 1000
	$(BIN)/python -m tests.integrations.tflite.hostile --flips 10000
	$(BIN)/python -m tests.integrations.torch.hostile --flips 10000
	$(BIN)/python -m tests.integrations.torch.step_grid --count 2000
	$(BIN)/python -m tests.integrations.torch.alias_fuzz --count 1500
	$(BIN)/python -m tests.integrations.torch.mixed_grid
	$(BIN)/python -m tests.integrations.tflite.in_tflm --networks 400
	$(BIN)/python -m tests.fuzz_budget --count 1000
	$(BIN)/python -m tests.fuzz_budget --count 300 --loops
	$(BIN)/python -m tests.fuzz_orders --count 2000
	for kind in facts operators gradients; do \
	  $(BIN)/python -m tests.fuzz_kernels --seconds $(or $(SECONDS),600) --kind $$kind || exit 1; done

build/paddle/.installed:
	$(PYTHON) -m venv --clear build/paddle
	build/paddle/bin/python -m pip install --quiet paddlepaddle==3.0.0 setuptools
	touch $@

test-paddle: $(VENV)/.installed build/paddle/.installed ## the tests that run programs in Paddle 3.0.0, which gets an environment of its own
	SUBLET_PADDLE_PYTHON=$(CURDIR)/build/paddle/bin/python $(BIN)/python -m pytest --numprocesses logical --dist worksteal tests/integrations/paddle

# PyTorch, which is most of it, and Sublet come from the environment beside it.
build/executorch/.installed: $(VENV)/.installed
	$(PYTHON) -m venv --clear build/executorch
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(build/executorch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	build/executorch/bin/python -m pip install --quiet --no-compile executorch==1.5.1
	touch $@

test-executorch: $(VENV)/.installed build/executorch/.installed ## the tests that run plans in ExecuTorch 1.5.1, which gets an environment beside Sublet's
	SUBLET_EXECUTORCH_PYTHON=$(CURDIR)/build/executorch/bin/python $(BIN)/python -m pytest tests/integrations/executorch

fuzz-paddle: $(VENV)/.installed ## random Paddle programs, rewritten and mutated, judged and run in Paddle; SUBLET_PADDLE_PYTHON names its Python; PROGRAMS=2000 FIRST=0
	$(BIN)/python -m tests.integrations.paddle.fuzz --programs $(or $(PROGRAMS),2000) --first $(or $(FIRST),0)

gpu: ## the checks that need a GPU, and training steps there, with the PyTorch of PYTHON, which has nanobind and scikit-build-core beside it
	rm -rf build/gpu
	$(PYTHON) -m pip install --quiet --no-index --no-build-isolation --no-deps --target build/gpu .
	$(PYTHON) -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())'
	PYTHONPATH=build/gpu:. $(PYTHON) -m pytest -p no:cacheprovider -o pythonpath= -o filterwarnings=ignore -k 'CUDA or cuda or gpu' \
	  tests/integrations/torch/test_devices.py tests/integrations/torch/test_aliases.py
	PYTHONPATH=build/gpu:. $(PYTHON) -m benchmarks.torch_gpu --sides eager inductor sublet+inductor --jobs 12

.PHONY: torch-versions
torch-versions: ## the tests of PyTorch with the PyTorch of PYTHON, which has Sublet and the group `test` installed
	$(PYTHON) -c 'import torch; print(torch.__version__)'
	$(PYTHON) -m pytest -p no:cacheprovider --numprocesses logical --dist worksteal tests/integrations/torch

mutants: $(VENV)/.installed ## one-line mistakes that no test notices; FOLDERS="checker analysis packing runtime" SAMPLE=200 SECONDS=0
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation $(FOLDERS) --sample $(or $(SAMPLE),200) --seconds $(or $(SECONDS),0)

CORE := src/sublet/packing/core
RECOMPUTE := src/sublet/passes/recompute/core
ORDERING := src/sublet/passes/ordering/core
# A test in C++ with the core of one folder, everything checked as it runs: $(call sanitized,FOLDER)
sanitized = mkdir -p build && $(CXX) -std=c++17 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
  -D_GLIBCXX_ASSERTIONS -I$(1) -I$(CORE) $< $(filter-out %/module.cpp,$(wildcard $(1)/*.cpp)) -o $@

build/check: tests/core/check.cpp $(wildcard $(CORE)/*.?pp)
	$(call sanitized,$(CORE))

build/recompute: tests/core/recompute.cpp $(wildcard $(RECOMPUTE)/*.?pp)
	$(call sanitized,$(RECOMPUTE))

build/ordering: tests/core/ordering.cpp $(wildcard $(ORDERING)/*.?pp)
	$(call sanitized,$(ORDERING))

bench-all: $(VENV)/.installed ## the benchmarks of the plots on docs/benchmarks.md, as benchmarks/results/*.json; QUICK=1 NAMES="arenas serve"
	$(BIN)/python -m pip install --quiet --group bench --group bench-torch
	$(BIN)/python -m benchmarks.all $(if $(QUICK),--quick) $(NAMES)

bench-packing: $(VENV)/.installed ## packing: every strategy and CP-SAT on ../shared/problems; then how it scales
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.packing_table
	$(BIN)/python -m benchmarks.packing_scale

bench: $(VENV)/.installed ## Sublet beside onnxsim on real models, as a table
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.compare_onnxsim

bench-run: $(VENV)/.installed ## Sublet beside ONNX Runtime: time, memory, allocations, cost of a step
	$(BIN)/python -m benchmarks.run_table

bench-serve: $(VENV)/.installed ## one arena for every shape: Sublet over ranges beside ONNX Runtime: bytes, bits, time, growth
	$(BIN)/python -m benchmarks.serve

bench-rebinding: $(VENV)/.installed ## what it costs to let a program of 500 nodes read and write other memory
	$(BIN)/python -m benchmarks.rebinding

bench-loops: $(VENV)/.installed ## loops that carry large tensors: Sublet beside XLA and ONNX Runtime's Loop
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.loops

bench-train: $(VENV)/.installed ## training steps: arenas beside libnnc's and PyTorch's memory, time beside PyTorch's
	$(BIN)/python -m benchmarks.train_table

bench-offload: $(VENV)/.installed ## training steps in less memory: computed again, or brought to a slow memory and back; ONLY=ResNet-50
	$(BIN)/python -m benchmarks.offload --only '$(or $(ONLY),ResNet-50)'

bench-budget: $(VENV)/.installed ## training steps within budgets: extra time predicted and measured, beside checkpoints in equal stretches
	$(BIN)/python -m benchmarks.budget_table
	$(BIN)/python -m benchmarks.loop_tapes
	$(BIN)/python -m benchmarks.loop_tapes --network residual
	$(BIN)/python -m benchmarks.budget_beside_torch

bench-order: $(VENV)/.installed ## irregular networks: arenas in the order given, greedy, searched, beside what no order goes below
	$(BIN)/python -m benchmarks.orders

bench-patches: $(VENV)/.installed ## MobileNetV2 with its front in patches: arena, operations, outputs, time
	$(BIN)/python -m benchmarks.patches

bench-plan: $(VENV)/.installed ## planning time of random nested, rotating, branching loops against their size
	$(BIN)/python -m benchmarks.planning_time

bench-paddle: $(VENV)/.installed ## policies for Paddle programs, predicted and measured: SUBLET_PADDLE_PYTHON=PATH has paddlepaddle==3.0.0; SUBLET_PADDLE_1_PYTHON
	$(BIN)/python -m benchmarks.paddle

bench-executorch: build/executorch/.installed ## networks planned by ExecuTorch 1.5.1 and by Sublet, run by ExecuTorch's runtime; RANDOM=40 random ones with branches too, from seed FIRST=0
	build/executorch/bin/python -m benchmarks.executorch.planned --random $(or $(RANDOM),0) --first $(or $(FIRST),0)

bench-edge: $(VENV)/.installed ## TensorFlow Lite Micro with its own plan and with ours: what it needs, whether outputs are equal
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.edge
bench-dynamic: $(VENV)/.installed ## the dynamic graph beside PyTorch's eager mode, a remembered step beside the static one
	$(BIN)/python -m benchmarks.dynamic
	$(BIN)/python -m benchmarks.dynamic_models
	$(BIN)/python -m benchmarks.stochastic_depth

bench-torch: $(VENV)/.installed ## networks by torch.compile: exactness, memory and time beside eager, three beside inductor; NETWORKS="GPT-2 BERT" INDUCTOR=all LIMIT=900 seconds for each of its networks
	$(BIN)/python -m pip install --quiet --group bench-torch
	$(BIN)/python -m benchmarks.torch $(NETWORKS) --right $(if $(INDUCTOR),--inductor $(INDUCTOR)) $(if $(LIMIT),--limit $(LIMIT))

bench-torch-budget: $(VENV)/.installed ## extra time of torch.compile within budgets, beside PyTorch's activation_memory_budget and checkpoints; NETWORKS="GPT-2 BERT"
	$(BIN)/python -m pip install --quiet --group bench-torch
	$(BIN)/python -m benchmarks.torch.budget $(NETWORKS)

bench-control: build/executorch/.installed ## branches and loops of PyTorch's: plans beside ExecuTorch's, peaks beside eager and inductor
	build/executorch/bin/python -m benchmarks.torch.control

ddp-torch: $(VENV)/.installed ## two processes under DistributedDataParallel, eagerly and compiled: losses, and what a killed one leaves
	$(BIN)/python -m pip install --quiet --group bench-torch
	$(BIN)/python -m benchmarks.torch.distributed

fuzz-torch: $(VENV)/.installed ## random functions of PyTorch's run as torch.compile(backend="sublet") runs them, and poisoned; what people do with it; PROGRAMS=500
	$(BIN)/python -m tests.integrations.torch.fuzz --programs $(or $(PROGRAMS),500)
	$(BIN)/python -m tests.integrations.torch.dynamo

.PHONY: opinfo-torch
opinfo-torch: $(VENV)/.installed ## the samples PyTorch tests its operators with, in three layouts: kernels beside tracing; planned, poisoned, held against PyTorch; SAMPLES=8 an operator and type
	$(BIN)/python -m pip install --quiet --group opinfo
	$(BIN)/python -m tests.integrations.torch.beside --samples $(or $(SAMPLES),8)
	$(BIN)/python -m tests.integrations.torch.beside --mixed --samples $(or $(SAMPLES),8)
	$(BIN)/python -m tests.integrations.torch.opinfo --samples $(or $(SAMPLES),8)
	$(BIN)/python -m tests.integrations.torch.by_samples --samples $(or $(SAMPLES),8)

fuzz-dynamic: $(VENV)/.installed ## random Python programs: at once, remembered, and remembered in a poisoned arena; PROGRAMS=10000
	$(BIN)/python -m tests.dynamic.programs --programs $(or $(PROGRAMS),10000)

train-digits: $(VENV)/.installed ## train a small ResNet on scikit-learn's digits in the planned arena, beside PyTorch
	$(BIN)/python -m benchmarks.digits

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
