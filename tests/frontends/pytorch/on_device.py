"""What runs on a device, run on the CPU: an arena that is one tensor, PyTorch's operators alone, calls recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sublet.api.torch.backend import PLANNED, Pair, compiled_by
from sublet.api.torch.captured import Captured
from sublet.api.torch.on_device import DeviceArena, DevicePool
from sublet.api.torch.parts import Parts
from sublet.runtime.backends.torch.backend import Recorder
from sublet.runtime.kernel import Call

NO_NUMBER = 255
"""Bytes of this are no number of a float type, and no index."""


class Poisoned(DevicePool):
    """Nothing lies in an arena when a call begins."""

    def run(
        self, arena: DeviceArena, number: int, args: Sequence[Any], into: Mapping[int, Any] | None = None
    ) -> list[Any]:
        if number == 0:
            for name in arena.memory.arenas:
                arena.memory.raw(name).fill_(NO_NUMBER)
        return super().run(arena, number, args, into)


class OnDevice(Pair):
    """A region that runs on the CPU as it would on another device."""

    def __init__(self, recorder: Callable[[str], Recorder] | None = None, samples: int | str = "auto") -> None:
        super().__init__(PLANNED, None, samples=samples)
        self._recorder = recorder

    def _captured(self, args: Sequence[Any], device: str, runs_on: str) -> tuple[Captured, Parts | None, str]:
        return super()._captured(args, device, "cpu:0")

    def _pool(self, captured: Captured, args: Sequence[Any], device: str) -> DevicePool:
        return Poisoned(captured, self._options, device, self._recorder)


def backend(graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
    """A backend of torch.compile's."""
    return compiled_by(OnDevice(), graph, example)


def recorded(graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
    """The same; what a stretch of calls does is recorded and replayed."""
    return compiled_by(OnDevice(Tape), graph, example)


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
