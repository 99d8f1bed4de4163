"""Facts of operators by version of PyTorch: known, unknown and too old versions."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sublet  # noqa: E402
import sublet.integrations.torch.api  # noqa: E402
from sublet.base.errors import ModelError, RunError  # noqa: E402
from sublet.cli.doctor import load_integration  # noqa: E402
from sublet.integrations.torch import operator_facts  # noqa: E402
from sublet.integrations.torch.operator_facts import (  # noqa: E402
    OperatorFacts,
    common_facts,
    facts_by_name,
    facts_of_version,
    known_version,
    known_versions,
    version_error,
    version_remark,
)

ROOT = Path(__file__).parents[3]
NEWER = "3.1.0"


@pytest.fixture
def unknown_version(monkeypatch: pytest.MonkeyPatch) -> str:
    """Run under a version newer than all known versions, before the warning of the process."""
    monkeypatch.setattr(torch, "__version__", f"{NEWER}+cpu")
    operator_facts._warn_unknown.cache_clear()
    torch._dynamo.reset()
    return f"this is PyTorch {NEWER}"


@pytest.mark.parametrize("minor", known_versions())
def test_the_facts_of_every_known_version_load(minor: str) -> None:
    facts = facts_of_version(minor)
    assert facts["add.Tensor"] == OperatorFacts(overwrites=(0, 1), out="add.out")
    assert facts["native_dropout.default"].random
    assert known_version(f"{minor}.7+cpu") == minor
    assert version_error(f"{minor}.0") == version_remark(f"{minor}.0") == ""


def test_the_facts_are_those_of_the_installed_version() -> None:
    minor = known_version(torch.__version__)
    assert facts_by_name() is facts_of_version(minor)
    if minor:  # each overload named by the facts exists
        for facts in facts_by_name().values():
            for overload in filter(None, (facts.out, facts.inside)):
                packet, _, name = overload.partition(".")
                assert hasattr(getattr(torch.ops.aten, packet), name), overload


def test_versions_differ_in_few_facts() -> None:
    """`leaky_relu` may overwrite its input since 2.12, and `cholesky` ends with 2.13."""
    assert facts_of_version("2.11")["leaky_relu.default"].overwrites == ()
    assert facts_of_version("2.12")["leaky_relu.default"].overwrites == (0,)
    assert "cholesky.default" in facts_of_version("2.13")
    assert "cholesky.default" not in facts_of_version("2.14")


def test_an_unknown_version_has_the_facts_of_all_known_versions() -> None:
    common, versions = facts_of_version(known_version(NEWER)), [facts_of_version(each) for each in known_versions()]
    assert common.keys() == set.intersection(*(set(each) for each in versions))
    for name, facts in common.items():
        for each in versions:
            assert set(facts.overwrites) <= set(each[name].overwrites)
            assert facts.out in ("", each[name].out)
            assert facts.random >= each[name].random
    assert common["leaky_relu.default"] == OperatorFacts(out="leaky_relu.out")


def test_facts_of_different_overloads_have_nothing_in_common_but_randomness() -> None:
    first = {"f": OperatorFacts((0, 1), out="f.out"), "g": OperatorFacts((0, 1), out="g.out"), "h": OperatorFacts()}
    second = {"f": OperatorFacts((0,), inside="f_.default"), "g": OperatorFacts((1,), out="g.out", random=True)}
    assert common_facts([first, second]) == {
        "f": OperatorFacts(),
        "g": OperatorFacts((1,), out="g.out", random=True),
    }


def test_an_unknown_version_plans_and_says_so_once(unknown_version: str) -> None:
    module, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    compiled = torch.compile(module, backend="sublet")
    with pytest.warns(UserWarning, match=unknown_version):
        assert torch.equal(compiled(x), module(x))
    planned = sublet.integrations.torch.api.report()[-1]
    assert planned.plan is not None
    assert unknown_version in planned.remark
    assert planned.remark in str(planned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sublet.from_torch(module, (x,))
        sublet.compile(model)({model.inputs[0]: x})


def test_the_doctor_names_an_unknown_and_an_old_version(
    unknown_version: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    load_integration("torch")
    assert unknown_version in capsys.readouterr().out
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    load_integration("torch")
    assert "this is PyTorch 2.5.1. Install torch>=" in capsys.readouterr().out


def test_a_version_below_the_oldest_known_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    model = sublet.from_torch(module, (x,))
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    torch._dynamo.reset()
    line = rf"Sublet needs PyTorch {known_versions()[0]} or newer, this is PyTorch 2\.5\.1"
    with pytest.warns(UserWarning, match=line):
        assert torch.equal(torch.compile(module, backend="sublet")(x), module(x))
    with pytest.raises(ModelError, match=line):
        sublet.from_torch(module, (x,))
    with pytest.raises(RunError, match=line):
        sublet.compile(model)({model.inputs[0]: x})


def test_the_extra_and_the_documents_name_the_known_versions() -> None:
    oldest, *_, newest = known_versions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={oldest}"]
    for document in ("README.md", "docs/torch.md"):
        assert f"PyTorch {oldest} to {newest}" in (ROOT / document).read_text(encoding="utf-8")
