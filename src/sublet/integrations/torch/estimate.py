"""Memory of a training step or an inference before the step runs.

The module may lie on `meta`: no tensor gets bytes. The eager peak comes from a run on fake tensors; arenas come from
the plans made by `torch.compile(module, backend="sublet")`, or by `sublet.torch.train_step`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.base.errors import ModelError, SubletError
from sublet.base.formatting import human, parse_bytes
from sublet.integrations.torch.compile.backend import KERNELS
from sublet.integrations.torch.eager_memory import EagerMemory, fake_call, measure_eager
from sublet.integrations.torch.reader.exported_program import CPU
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.sublet_memory import (
    COMPILE,
    TRAIN_STEP,
    LoweredCall,
    SubletMemory,
    planned_by,
)

META = "meta"
SHOWN_LINES = 12
"""Lines of tensors alive at the peak in the text of an estimate; the record holds all."""

LAYER_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""The number of a layer in the path of a module."""

_NAMES = {COMPILE: "Sublet", TRAIN_STEP: "train_step"}
"""Sublet's side in the text of an estimate, by step."""

Loss = Callable[..., Any]


@dataclass(frozen=True)
class Estimate:
    """The memory of a training step or an inference; bytes.

    eager     the step as PyTorch runs it
    sublet    the step compiled by Sublet; None for a graph without a plan
    budgeted  the step within `memory`, if the plain plans need more, and a program within `memory` was found
    memory    the bytes to fit into; None if not given
    reason    the reason for `sublet` or `budgeted` without value; "" without such a reason
    """

    eager: EagerMemory
    sublet: SubletMemory | None
    budgeted: SubletMemory | None = None
    memory: int | None = None
    reason: str = ""

    @property
    def parameters(self) -> int:
        """The bytes of the parameters."""
        return self.eager.resident["parameters"]

    @property
    def buffers(self) -> int:
        """The bytes of the buffers."""
        return self.eager.resident["buffers"]

    @property
    def optimizer_state(self) -> int:
        """The bytes of the optimizer's state after a step."""
        return self.eager.resident["optimizer state"]

    @property
    def gradients(self) -> int:
        """The bytes of all gradients."""
        return self.eager.gradients

    @property
    def fits(self) -> bool | None:
        """True if Sublet needs at most `memory`; None without `memory`, and if a graph has no plan."""
        if self.memory is None or self.sublet is None:
            return None
        return self.budgeted is not None or self.sublet.peak_bytes <= self.memory

    @property
    def verdict(self) -> str:
        """The verdict on `memory` for eager PyTorch and for Sublet; "" without `memory`."""
        if self.memory is None:
            return ""
        said = [f"eager {_yes_or_no(self.eager.peak_bytes, self.memory)}"]
        if self.sublet is not None:
            said.append(f"{_NAMES[self.sublet.step]} {_yes_or_no(self.sublet.peak_bytes, self.memory)}")
        if self.budgeted is not None:
            said.append(f"with budget yes, {human(self.budgeted.peak_bytes)}{self.budgeted.time_words(' at')}")
        return f"{human(self.memory)}: {'; '.join(said)}" + (f"; {self.reason}" if self.reason else "")

    def __str__(self) -> str:
        kinds = {**self.eager.resident, "gradients": self.gradients, "results": self.eager.results}
        kinds["optimizer temporaries"] = self.eager.optimizer_bytes
        lines = [f"{kind:21} {human(nbytes):>10}" for kind, nbytes in kinds.items() if nbytes]
        lines += ["", f"{'peak, eager':21} {human(self.eager.peak_bytes):>10}  in the {self.eager.phase} phase"]
        for need in (self.sublet, self.budgeted):
            if need is not None:
                name = "peak, " + ("budget" if need is self.budgeted else _NAMES[need.step])
                lines.append(f"{name:21} {human(need.peak_bytes):>10}  {_parts_of_peak(need)}")
                lines += [f"{'':34}{need.call_words}"] if need.budget is not None else []
        lines += ["", "alive at the peak of eager PyTorch:"]
        alive = (
            (each.kind, each.module, f"{each.operator} {each.line}".strip(), each.nbytes, each.count)
            for each in self.eager.live
        )
        lines += _live_lines(alive, " ", "tensors")
        lines += _buffer_lines(self.budgeted or self.sublet)
        lines += ["", self.verdict or self.reason] if self.verdict or self.reason else []
        return "\n".join(lines)


def _parts_of_peak(need: SubletMemory) -> str:
    """Return the parts of Sublet's peak, and the predicted time of a budget, for people."""
    parts = "the lines above"
    if need.step == TRAIN_STEP:
        parts += " without gradients and optimizer temporaries"
    beside = f", {human(need.allocated_bytes)} in a kernel" if need.allocated_bytes else ""
    more = need.time_words(",") if need.words else ""
    return f"{parts}{beside} and the arena, {human(need.arena_bytes)}{more}"


def _buffer_lines(need: SubletMemory | None) -> list[str]:
    """Return the lines of the buffers alive at the peak of the largest arena; no line without a plan."""
    if need is None or need.largest_plan is None:
        return []
    title = f"alive at the peak of Sublet's arena, {human(need.largest_plan.peak.nbytes)}:"
    entries = (("", module, source, nbytes, 1) for module, source, nbytes in need.live_in_arena)
    return ["", title, *_live_lines(entries, ", ", "buffers")]


def _live_lines(entries: Iterable[tuple[str, str, str, int, int]], joint: str, unit: str) -> list[str]:
    """Return the lines of what is alive, the most bytes first, and after `SHOWN_LINES` lines the bytes of the rest.

    Equal entries are one line, and so are entries of equal size in layers that differ in their numbers alone.

    entries  kind, path of the module, operator and line of code, bytes, number of tensors or buffers
    joint    the text behind the path of the module
    unit     "tensors" or "buffers"
    """
    groups: defaultdict[tuple[str, str, str, int], list[tuple[str, int]]] = defaultdict(list)
    for kind, module, source, nbytes, count in entries:
        groups[kind, LAYER_NUMBER.sub("*", module), source, nbytes].append((module, count))
    found: list[tuple[int, str]] = []
    for (kind, pattern, source, nbytes), members in groups.items():
        path = pattern if len({module for module, _ in members}) > 1 else members[0][0]
        place = joint.join(filter(None, (path, source)))
        total = sum(count for _, count in members)
        words = f" ({total} {unit})" if total > 1 else ""
        found.append((len(members) * nbytes, "  ".join(filter(None, (kind, place))) + words))
    found.sort(key=lambda each: -each[0])
    rest = found[SHOWN_LINES:]
    lines = [f"{human(nbytes):>10}  {text}" for nbytes, text in found[:SHOWN_LINES]]
    return [*lines, f"{human(sum(nbytes for nbytes, _ in rest)):>10}  in {len(rest)} more lines"] if rest else lines


def _yes_or_no(nbytes: int, memory: int) -> str:
    """Return "yes" or "no" with the bytes needed."""
    return f"{'yes' if nbytes <= memory else 'no'}, {human(nbytes)}"


def estimate(
    module: Any,
    loss: Loss | None,
    optimizer: Any,
    inputs: Any,
    targets: Sequence[Any] = (),
    *,
    memory: int | str | None = None,
    device: str | None = None,
    amp: Any = None,
    plan: bool = True,
    kernels: str = KERNELS[0],
    step: str = COMPILE,
) -> Estimate:
    """Return the memory of a training step or an inference, for eager PyTorch and for Sublet; no tensor gets bytes.

    The step is `loss(module(*inputs), *targets).backward(); optimizer.step()`, with module and loss compiled together
    for Sublet; or `sublet.torch.train_step(module, loss, optimizer)(inputs, *targets)`. Only shapes, strides and types
    of tensors count, so all tensors may lie on "meta".

    Args:
        module: a module, in training or evaluation mode.
        loss: a function or module; its first tensor is differentiated. None for an inference without gradients.
        optimizer: an optimizer of the module's parameters, of any class that needs no content of tensors; or None.
        inputs: the argument of the module; a tuple for several arguments.
        targets: further arguments of the loss.
        memory: bytes for all together, a number or a text such as "24GiB". If the plain plans need more, Sublet
            searches a program within `memory`.
        device: the device of the step, "cpu" or "cuda"; by default the device of the parameters, "cpu" for "meta".
        amp: the dtype of `torch.autocast` around forward pass and loss; None for no autocast.
        plan: False for eager PyTorch alone, in seconds for modules of any size.
        kernels: "sublet", or "inductor" for a call with `options={"kernels": "inductor"}`: Inductor lowers the graphs
            without compiling kernels, and arenas are the peaks read from Inductor's allocations.
        step: "compile", or "train_step" for a step with gradients and updates in the arena, on the CPU.

    Returns:
        The estimate. Not counted: the context of a device, workspaces of its libraries, and fragmentation. On the CPU,
        bytes allocated within kernels are counted, by rules found by measurement for those of oneDNN.

    Raises:
        ModelError: for a step that cannot run on tensors without content, and for unknown `kernels` or `step`.
    """
    if kernels not in KERNELS:
        raise ModelError(f"kernels={kernels!r}: there are {' and '.join(map(repr, KERNELS))}")
    plans = planned_by(step)
    if step == TRAIN_STEP and kernels != KERNELS[0]:
        raise ModelError(f"step={step!r} runs kernels of Sublet: leave out kernels={kernels!r}")
    limit = parse_bytes(memory) if isinstance(memory, str) else memory
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    place = device_of_step(module, device)
    with fake_call(module, loss, optimizer, arguments, tuple(targets), place, amp) as call:
        eager = measure_eager(call)
        if not plan:
            return Estimate(eager, None, memory=limit)
        try:
            planned = (plans if kernels == KERNELS[0] else LoweredCall)(call, eager, place)
            plain = planned.plain
        except SubletError as error:
            return Estimate(eager, None, memory=limit, reason=str(error))
        if limit is None or plain.peak_bytes <= limit:
            return Estimate(eager, plain, memory=limit)
        answer = planned.fit_within(limit)
    if isinstance(answer, str):
        return Estimate(eager, plain, None, limit, answer)
    return Estimate(eager, plain, answer, limit)


def device_of_step(module: Any, device: str | None) -> str:
    """Return the type of the device of a step. Raises ModelError for a device that this PyTorch cannot trace."""
    t = torch()
    if device is None:
        first = next(iter(module.parameters()), None)
        device = CPU if first is None or first.device.type == META else first.device.type
    kind = str(t.device(device).type)
    if kind not in (CPU, "cuda") or (kind != CPU and not t.cuda.is_available()):
        raise ModelError(
            f"device={device!r}: estimates are made for {CPU!r}, and for 'cuda' where PyTorch finds a GPU: which "
            f"kernels run, and so the memory, depends on the GPU. Pass device={CPU!r}"
        )
    return kind
