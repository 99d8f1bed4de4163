"""DistributedDataParallel under `torch.compile(backend="sublet")`: what Dynamo captures nothing of is told, once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sublet

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import distributed, nn  # noqa: E402

if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("PyTorch is built without gloo", allow_module_level=True)

Parallel = nn.parallel.DistributedDataParallel


class Own(nn.Module):
    """A module whose forward is the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Disabled(Own):
    """A module whose forward Dynamo must not trace."""

    @torch._dynamo.disable
    def forward(self, x: Any) -> Any:
        return self.layers(x)


def layers() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    torch._dynamo.reset()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
    torch._dynamo.reset()


def told(make: Callable[[], Any]) -> tuple[list[str], list[Any]]:
    """Train a compiled module for three steps. Return Sublet's warnings and the records that were added."""
    before = len(sublet.torch.report())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = make()
        for _ in range(3):
            run(torch.randn(4, 8)).sum().backward()
    said = [str(each.message) for each in caught if "sublet leaves" in str(each.message)]
    return said, list(sublet.torch.report()[before:])


@pytest.mark.parametrize("make", [layers, Disabled])
def test_a_parallel_module_of_which_nothing_is_captured_is_told_once(make: Callable[[], Any]) -> None:
    said, records = told(lambda: torch.compile(Parallel(make()), backend="sublet"))
    (warning,), (record,) = said, records
    name = f"DistributedDataParallel({make().__class__.__name__})"
    assert warning.startswith(f"sublet leaves {name} to PyTorch: Dynamo captured no graph")
    assert "DistributedDataParallel(torch.compile(module" in warning
    assert (record.name, record.plan) == (name, None)
    assert record.reason in warning


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(Parallel(Own()), backend="sublet"),
        lambda: Parallel(torch.compile(layers(), backend="sublet")),
    ],
    ids=["a forward of the user's", "compiled before it is wrapped"],
)
def test_a_parallel_module_that_is_captured_is_planned(make: Callable[[], Any]) -> None:
    said, records = told(make)
    assert not said
    assert [record.plan is not None for record in records] == [True]


def test_a_parallel_module_of_another_backend_is_not_told() -> None:
    torch.compile(Own(), backend="sublet")
    said, records = told(lambda: torch.compile(Parallel(layers()), backend="eager"))
    assert (said, records) == ([], [])


def test_a_second_parallel_module_that_runs_the_code_of_the_first_is_captured() -> None:
    said, _ = told(lambda: torch.compile(Parallel(Own()), backend="sublet"))
    more, _ = told(lambda: torch.compile(Parallel(Own()), backend="sublet"))
    assert said + more == []
