"""What runs on a device, run on the CPU: an arena that is one tensor, PyTorch's operators alone, calls recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sublet.integrations.torch.compile.backend import DEFAULT_OPTIONS, CompiledRegion, compile_region
from sublet.integrations.torch.compile.device_pool import DeviceArena, DevicePool
from sublet.integrations.torch.compile.joint_graph import CapturedProgram
from sublet.integrations.torch.compile.micro_batched_inference import MicroBatches
from sublet.integrations.torch.kernels.backend import CallRecorder
from sublet.runtime.kernel import Call

NO_NUMBER = 255
"""Bytes of this are no number of a float type, and no index."""


class Poisoned(DevicePool):
    """Nothing lies in an arena when a call begins."""

    def run_pass(
        self, arena: DeviceArena, number: int, args: Sequence[Any], into: Mapping[int, Any] | None = None
    ) -> list[Any]:
        if number == 0:
            for name in arena.memory.arenas:
                arena.memory.raw(name).fill_(NO_NUMBER)
        return super().run_pass(arena, number, args, into)


class OnDevice(CompiledRegion):
    """A region that runs on the CPU as it would on another device."""

    def __init__(
        self,
        recorder: Callable[[str], CallRecorder] | None = None,
        samples: int | str = "auto",
        budget: int | None = None,
    ) -> None:
        super().__init__(DEFAULT_OPTIONS, budget, samples=samples)
        self._recorder = recorder

    def _capture(
        self, args: Sequence[Any], device: str, runs_on: str
    ) -> tuple[CapturedProgram, MicroBatches | None, str]:
        return super()._capture(args, device, "cpu:0")

    def _make_pool(self, captured: CapturedProgram, args: Sequence[Any], device: str) -> DevicePool:
        return Poisoned(captured, self._options, device, self._recorder, self._budget)


def backend(graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
    """A backend of torch.compile's."""
    return compile_region(OnDevice(), graph, example)


def recorded(graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
    """The same; what a stretch of calls does is recorded and replayed."""
    return compile_region(OnDevice(Tape), graph, example)


class Tape:
    """Records the operators that calls come to, with their tensors, and replays them over the same memory.

    As with a CUDA graph no Python of the calls runs again, what an operator allocated has the same place in each
    replay, numbers are drawn anew, and what reads a number of a tensor cannot be recorded.
    """

    records = replays = 0

    def __init__(self, device: str) -> None:
        self._device = device

    def record(self, call: Call) -> Call:
        Tape.records += 1
        operators = _Operators()
        with operators:
            call()

        def replay() -> None:
            Tape.replays += 1
            with torch.inference_mode():
                for function, args, kwargs, results in operators.calls:
                    for place, made in zip(results, _tensors(function(*args, **kwargs)), strict=True):
                        if place.data_ptr() != made.data_ptr():
                            place.copy_(made)

        return replay


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number is read while calls are recorded")
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, _tensors(made)))
        return made


def _tensors(made: Any) -> list[Any]:
    return [each for each in pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
