"""What each rank of a parallel training needs, before there is a cluster: traced rank by rank in this process.

The process group is PyTorch's fake one, in which nothing is sent, and tensors lie on `meta`, where they have no bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from sublet.analysis.options import Options
from sublet.api.torch.backend import PLANNED, Pair, compiled_by
from sublet.api.torch.captured import Captured, capture, extents_of
from sublet.api.torch.flights import copied_through, ready_to_plan
from sublet.api.torch.reporting import Compiled
from sublet.base.arrays import Array
from sublet.base.bytesize import human
from sublet.base.errors import ModelError, RunError, SubletError
from sublet.base.extras import require
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.frontends.torch.exported import first_line, quietly
from sublet.frontends.torch.tensors import torch
from sublet.planning.pipeline import plan_memory
from sublet.runtime.memory import aligned_bytes

Build = Callable[[int, int], tuple[Any, Sequence[Any]]]
"""(rank, number of ranks) -> the rank's module, and a tuple of example arguments."""

DEVICES = ("meta", "cpu")


@dataclass(frozen=True)
class RankPlan:
    """What one rank needs.

    graphs   what Dynamo captured there, in order; each has an arena of its own
    weights  bytes of the rank's parameters and buffers, of those that are sharded its own part
    """

    rank: int
    graphs: tuple[Compiled, ...]
    weights: int

    @property
    def arena_bytes(self) -> int:
        """Of all arenas together. They are kept from step to step."""
        return sum(each.plan.arena_bytes for each in self.graphs if each.plan is not None)

    @property
    def left(self) -> tuple[str, ...]:
        """Why graphs have no plan, and no bytes here."""
        return tuple(each.reason for each in self.graphs if each.plan is None)


@dataclass(frozen=True)
class RankPlans:
    """The plans of all ranks."""

    ranks: tuple[RankPlan, ...]

    @property
    def arena_bytes(self) -> int:
        """What the rank that needs most needs."""
        return max(each.arena_bytes for each in self.ranks)

    @property
    def imbalance(self) -> float:
        """How much more that is than the mean of all: 0.25 for a quarter."""
        mean = sum(each.arena_bytes for each in self.ranks) / len(self.ranks)
        return self.arena_bytes / mean - 1 if mean else 0.0

    def __str__(self) -> str:
        lines = []
        for each in self.ranks:
            count = len(each.graphs) - len(each.left)
            words = f"rank {each.rank}: {human(each.arena_bytes)} in {count} graph{'s' * (count != 1)}"
            lines.append(f"{words}, weights {human(each.weights)}" + "".join(f"; not planned: {w}" for w in each.left))
        return "\n".join([*lines, f"largest {human(self.arena_bytes)}, {self.imbalance:.1%} above the mean"])


def rank_plans(build: Build, world_size: int, options: Options | None = None, device: str = "meta") -> RankPlans:
    """The plans of every rank's forward and backward, by `torch.compile`; nothing is sent.

    build    `build(rank, world_size)` gives the rank's module, parallel as it will be, and example arguments in a tuple
    device   "meta", where tensors have no bytes, or "cpu" for modules that refuse that, as FSDP2's do: then a rank's
             tensors are made here, one rank after another
    A module in training mode is planned with its backward. What Dynamo leaves outside of its graphs (parameters that
    FSDP2 gathers, the optimizer) is not counted. Forgets what `torch.compile` has compiled in this process.

    Raises SubletError where a process group is there already, and for what cannot be built or traced.
    """
    if world_size < 1 or device not in DEVICES:
        raise ModelError(f"{world_size} ranks on {device!r}: give at least one rank, and one of {', '.join(DEVICES)}")
    return RankPlans(tuple(_rank_plan(build, r, world_size, options or PLANNED, device) for r in range(world_size)))


def _rank_plan(build: Build, rank: int, world_size: int, options: Options, device: str) -> RankPlan:
    t = torch()
    graphs: list[Compiled] = []

    def planning(module: Any, example: Sequence[Any]) -> Callable[..., Any]:
        return compiled_by(_Planning(options, device, graphs), module, example)

    with _as_rank(rank, world_size), quietly(), t.device(device), t.random.fork_rng(devices=[]):
        try:
            module, example = build(rank, world_size)
            weights = sum(map(_bytes_here, _held_by(module)))
            with t.set_grad_enabled(bool(getattr(module, "training", True))):
                t.compile(module, backend=planning)(*example)
        except SubletError:
            raise
        except Exception as error:  # whatever a program of somebody else's meets
            words = f"rank {rank} of {world_size} cannot be traced on {device}: {first_line(error)}"
            raise ModelError(words + ": on cpu it may be" * (device == "meta")) from error
        return RankPlan(rank, tuple(graphs), weights)


def _held_by(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()] if isinstance(module, torch().nn.Module) else []


def _bytes_here(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())


@contextmanager
def _as_rank(rank: int, world_size: int) -> Iterator[None]:
    """This process is a rank of a group in which nothing is sent."""
    fake = require("torch.testing._internal.distributed.fake_pg", extra="torch")
    distributed, dynamo = torch().distributed, torch()._dynamo
    if distributed.is_initialized():
        raise RunError("a process group is there already: plan ranks in a process of its own")
    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=fake.FakeStore())
    dynamo.reset()
    try:
        yield
    finally:
        dynamo.reset()
        distributed.destroy_process_group()


class _Planning(Pair):
    """A region whose graphs are planned, and run by PyTorch."""

    def __init__(self, options: Options, device: str, graphs: list[Compiled]) -> None:
        super().__init__(options, None)
        self._device, self._graphs = device, graphs

    def _made(self, args: Sequence[Any]) -> None:
        try:
            forward, backward = [*self._modules, None][:2]
            captured = capture(forward, backward, self._static, extents_of(forward, args), self._device)
            _, ready = ready_to_plan(replace(captured, model=replace(captured.model, weights=_blank(captured))))
            plan = plan_memory(ready.model, self._options)
        except SubletError as error:
            self._graphs.append(Compiled(self._name, 0, reason=str(error)))
            return
        self._graphs.append(Compiled(self._name, len(plan.nodes), copied_through(captured), plan))


@dataclass(frozen=True)
class _Blank:
    """The content of a weight that nobody reads."""

    spec: TensorSpec

    def array(self) -> Array:
        """Memory that takes no place until it is written."""
        return aligned_bytes(self.spec.nbytes, 64).view(NUMPY[self.spec.dtype]).reshape(self.spec.shape)


def _blank(captured: Captured) -> Mapping[str, _Blank]:
    weights = (value for value in captured.model.graph.weights if value.literal is None)
    return {value.name: _Blank(value.spec) for value in weights if isinstance(value.spec, TensorSpec)}


def build_in(place: str) -> Build:
    """The function that "script.py:name" names; the script is run. Raises ModelError where there is none."""
    path, _, name = place.rpartition(":")
    if not path or not Path(path).is_file():
        raise ModelError(f"{place}: give a script and a function in it, as in train.py:build")
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is no script of Python's")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's script meets
        raise ModelError(f"{path}: {first_line(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ModelError(f"{path} has no function {name}")
    build: Build = found
    return build
