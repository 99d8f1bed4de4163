"""Memory plans of every rank of a parallel training, made without a cluster: traced rank by rank in this process.

The process group is PyTorch's fake group, without communication. Tensors lie on `meta`, without bytes.
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
from sublet.base.arrays import Array
from sublet.base.errors import ModelError, RunError, SubletError
from sublet.base.formatting import human
from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.torch.compile.arena_pool import allocating_operators, prepare_captured
from sublet.integrations.torch.compile.backend import DEFAULT_OPTIONS, CompiledRegion, compile_region
from sublet.integrations.torch.compile.compile_report import Compiled
from sublet.integrations.torch.compile.joint_graph import CapturedProgram
from sublet.integrations.torch.reader.exported_program import CPU, error_summary, silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.ir.model import Model
from sublet.planning.pipeline import plan_memory
from sublet.runtime.memory import aligned_bytes

Build = Callable[[int, int], tuple[Any, Sequence[Any]]]
"""(rank, number of ranks) -> the module of the rank, and a tuple of example arguments."""

PLANNING_DEVICES = ("meta", "cpu")


@dataclass(frozen=True)
class RankPlan:
    """The memory of one rank.

    rank     the number of the rank
    graphs   the records of the graphs captured by Dynamo, in order; each planned graph has an arena
    weights  bytes of the rank's parameters and buffers; of a sharded tensor only the local shard
    """

    rank: int
    graphs: tuple[Compiled, ...]
    weights: int

    @property
    def arena_bytes(self) -> int:
        """The bytes of all arenas of the rank together; the arenas stay allocated from step to step."""
        return sum(each.plan.arena_bytes for each in self.graphs if each.plan is not None)

    @property
    def left(self) -> tuple[str, ...]:
        """The reasons for graphs without a plan; `arena_bytes` does not count these graphs."""
        return tuple(each.reason for each in self.graphs if each.plan is None)


@dataclass(frozen=True)
class RankPlans:
    """The plans of all ranks."""

    ranks: tuple[RankPlan, ...]

    @property
    def arena_bytes(self) -> int:
        """The arena bytes of the rank with the largest arenas."""
        return max(each.arena_bytes for each in self.ranks)

    @property
    def imbalance(self) -> float:
        """Relative excess of the largest rank over the mean of all ranks: 0.25 for a quarter more; 0 without arenas."""
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
    """Return the memory plans of every rank's forward and backward, captured by `torch.compile`, without communication.

    A module in training mode is planned with the backward pass. Memory outside of Dynamo's graphs is not counted:
    parameters gathered by FSDP2, the optimizer. All code compiled by `torch.compile` in this process is discarded.

    Args:
        build: `build(rank, world_size)` returns the rank's module, already parallelized, and a tuple of example
            arguments.
        world_size: number of ranks, at least 1.
        options: planning options; by default the options of `torch.compile(backend="sublet")`.
        device: "meta" for tensors without bytes; "cpu" for modules refusing "meta", as of FSDP2: the tensors of each
            rank are then allocated in this process, one rank after another.

    Returns:
        The plan of each rank; sizes in bytes.

    Raises:
        RunError: if a process group is already initialized.
        ModelError: for a wrong `world_size` or `device`, and for a module impossible to build or trace.
    """
    if world_size < 1 or device not in PLANNING_DEVICES:
        raise ModelError(
            f"{world_size} ranks on {device!r}: give at least one rank, and one of {', '.join(PLANNING_DEVICES)}"
        )
    return RankPlans(
        tuple(_rank_plan(build, r, world_size, options or DEFAULT_OPTIONS, device) for r in range(world_size))
    )


def _rank_plan(build: Build, rank: int, world_size: int, options: Options, device: str) -> RankPlan:
    """Return the plan of one rank."""
    t = torch()
    captures: list[GraphCapture] = []

    def capturing(module: Any, example: Sequence[Any]) -> Callable[..., Any]:
        return compile_region(CapturingRegion(options, device, captures, "all"), module, example)

    with _fake_process_group(rank, world_size), silence_tracing(), t.device(device), t.random.fork_rng(devices=[]):
        try:
            module, example = build(rank, world_size)
            weights = sum(map(_local_bytes, _weights_of(module)))
            with t.set_grad_enabled(bool(getattr(module, "training", True))):
                t.compile(module, backend=capturing)(*example)
            graphs = tuple(each.compile_record(options) for each in captures)
        except SubletError:
            raise
        except Exception as error:  # user code raises errors of any type
            words = f"rank {rank} of {world_size} cannot be traced on {device}: {error_summary(error)}"
            raise ModelError(words + ": on cpu it may be" * (device == "meta")) from error
        return RankPlan(rank, graphs, weights)


def _weights_of(module: Any) -> list[Any]:
    """Return the parameters and buffers of a module; an empty list for any other callable."""
    return [*module.parameters(), *module.buffers()] if isinstance(module, torch().nn.Module) else []


def _local_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor on this rank; of a sharded tensor the bytes of the local shard."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())


@contextmanager
def _fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """Make this process a rank of a fake process group without communication, as a context manager.

    Raises RunError if a process group is already initialized.
    """
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


@dataclass(frozen=True)
class GraphCapture:
    """A graph captured by Dynamo for planning: the program, or the reason against a plan."""

    name: str
    program: CapturedProgram | None
    reason: str = ""

    def compile_record(self, options: Options) -> Compiled:
        """Return the record of the graph with its plan for the CPU, or with the reason against a plan."""
        if self.program is None:
            return Compiled(self.name, 0, reason=self.reason)
        try:
            plan = plan_memory(prepare_captured(self.program)[1].model, options)
        except SubletError as error:
            return Compiled(self.name, 0, reason=str(error))
        return Compiled(self.name, len(plan.nodes), allocating_operators(self.program), plan)


class CapturingRegion(CompiledRegion):
    """A compiled region that only captures its graphs; PyTorch runs the graphs. No content of a weight is read.

    A capture for a budget keeps arguments in the arena that the forward pass changes.
    """

    def __init__(
        self,
        options: Options,
        device: str,
        captures: list[GraphCapture],
        samples: int | str,
        runs_on: str = CPU,
        budget: int | None = None,
    ) -> None:
        super().__init__(options, budget, samples=samples)
        self._device, self._runs_on, self._captures = device, runs_on, captures

    def _make_plan(self, args: Sequence[Any]) -> tuple[None, Compiled]:
        """Return no plan to run; the capture is kept."""
        try:
            program, _, _ = self._capture(args, self._device, self._runs_on)
            program = replace(program, model=replace(program.model, weights=unread_contents(program.model)))
            self._captures.append(GraphCapture(self._pass_names, program))
        except SubletError as error:
            self._captures.append(GraphCapture(self._pass_names, None, str(error)))
        return None, Compiled(self._pass_names, 0)

    def _keep_record(self, compiled: Compiled) -> None:
        """Keep the record out of `report`: no plan of the region runs."""


@dataclass(frozen=True)
class _UnreadContent:
    """The content of a weight never read."""

    spec: TensorSpec

    def array(self) -> Array:
        """Return uninitialized memory; the operating system assigns pages at the first write."""
        return aligned_bytes(self.spec.nbytes, 64).view(NUMPY[self.spec.dtype]).reshape(self.spec.shape)


def unread_contents(model: Model) -> Mapping[str, _UnreadContent]:
    """Return unread contents for all weights of a model by name, literals excluded."""
    weights = (value for value in model.graph.weights if value.literal is None)
    return {value.name: _UnreadContent(value.spec) for value in weights if isinstance(value.spec, TensorSpec)}


def load_build_function(place: str) -> Build:
    """Return the function named by "script.py:name" after running the script, as Python does: modules beside the script
    can be imported.

    Raises ModelError for a missing script or function, and for an error of the script.
    """
    path, _, name = place.rpartition(":")
    if not path or not Path(path).is_file():
        raise ModelError(f"{place}: give a script and a function in it, as in train.py:build")
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is no script of Python's")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"{path}: {error_summary(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"{path} has no function {name}")
    build: Build = function
    return build
