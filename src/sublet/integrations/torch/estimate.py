"""Memory of a training step or an inference before the step runs.

The module may lie on `meta`: no tensor gets bytes. The eager peak comes from a run on fake tensors; arenas come from
the plans made by `torch.compile(module, backend="sublet")`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sublet.base.errors import ModelError, SubletError
from sublet.base.formatting import human, parse_bytes
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.arena_pool import Prepare, prepare_captured
from sublet.integrations.torch.compile.backend import DEFAULT_OPTIONS, KERNELS, compile_region
from sublet.integrations.torch.compile.caller_outputs import COPY_IN
from sublet.integrations.torch.compile.inductor_kernels import Division, InductorCompilation
from sublet.integrations.torch.compile.joint_graph import CapturedProgram
from sublet.integrations.torch.eager_memory import EagerMemory, StepCall, fake_call, measure_eager, storage_tracker
from sublet.integrations.torch.kernels.backend import AtenKernel, BoundTorchKernel, TorchBackend, meta_tensor
from sublet.integrations.torch.ranks import CapturingRegion, GraphCapture
from sublet.integrations.torch.reader.exported_program import CPU
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.ir.graph import Node
from sublet.plan import MemoryPlan
from sublet.plan.verdict import buffers_at_peak
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch, ModelPreparation
from sublet.planning.pipeline import plan_memory

META = "meta"
SHOWN_LINES = 12
"""Lines of tensors alive at the peak in the text of an estimate; the record holds all."""

LAYER_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""The number of a layer in the path of a module."""

Loss = Callable[..., Any]


@dataclass(frozen=True)
class SubletMemory:
    """Bytes of a call compiled with `torch.compile(backend="sublet")`.

    peak_bytes       all bytes at once: resident tensors, arenas, gradients, results, and the temporaries of the
                     optimizer or the bytes allocated by a kernel
    arena_bytes      bytes of the arenas of all graphs
    allocated_bytes  the most bytes that PyTorch allocates within one kernel of Sublet
    extra_time       predicted additional time by recomputation, as a share of the plain plan's time; None for kernels
                     of Inductor
    plans            the plans of the graphs
    words            the changes within the budget; "" for the plain plans
    budget           the `"budget"` of `torch.compile` for these plans, in bytes; None for the plain plans
    """

    peak_bytes: int
    arena_bytes: int
    allocated_bytes: int
    extra_time: float | None
    plans: tuple[MemoryPlan, ...]
    words: str = ""
    budget: int | None = None

    @property
    def largest_plan(self) -> MemoryPlan | None:
        """The plan of the graph with the largest arena; None for kernels of Inductor."""
        return max(self.plans, key=lambda each: each.arena_bytes, default=None)

    @property
    def live_in_arena(self) -> list[tuple[str, str, int]]:
        """The buffers alive at the peak of the largest arena: module path; line of code and operator; bytes."""
        plan = self.largest_plan
        if plan is None:
            return []
        nodes = {node.name: node for node in plan.nodes}
        makers = {place.value: nodes.get(place.producer or "") for place in plan.placements}
        found: list[tuple[str, str, int]] = []
        for each in buffers_at_peak(plan):
            maker = next(filter(None, map(makers.get, each.values)), None)
            source = maker.source.removeprefix("module.") if maker else f"argument {each.values[0]}"
            module, _, line = source.partition(", ")
            operator = "" if maker is None else "copy of an argument" if maker.op == COPY_IN else maker.op
            found.append((module, ", ".join(filter(None, (line, operator))), each.nbytes))
        return found

    def time_words(self, joint: str) -> str:
        """Return the predicted time after `joint`; "" without a prediction."""
        if self.extra_time is None:
            return ""
        return f"{joint} {self.extra_time:+.1%} predicted time over Sublet without a budget"


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
            said.append(f"Sublet {_yes_or_no(self.sublet.peak_bytes, self.memory)}")
        if self.budgeted is not None:
            said.append(f"with budget yes, {human(self.budgeted.peak_bytes)}{self.budgeted.time_words(' at')}")
        return f"{human(self.memory)}: {'; '.join(said)}" + (f"; {self.reason}" if self.reason else "")

    def __str__(self) -> str:
        kinds = {**self.eager.resident, "gradients": self.gradients, "results": self.eager.results}
        kinds["optimizer temporaries"] = self.eager.optimizer_bytes
        lines = [f"{kind:21} {human(nbytes):>10}" for kind, nbytes in kinds.items() if nbytes]
        lines += ["", f"{'peak, eager':21} {human(self.eager.peak_bytes):>10}  in the {self.eager.phase} phase"]
        for name, need in (("peak, Sublet", self.sublet), ("peak, budget", self.budgeted)):
            if need is not None:
                more = need.time_words(",") if need.words else ""
                beside = f", {human(need.allocated_bytes)} in a kernel" if need.allocated_bytes else ""
                words = f"the lines above{beside} and the arena, {human(need.arena_bytes)}{more}"
                lines.append(f"{name:21} {human(need.peak_bytes):>10}  {words}")
                if need.budget is not None:
                    lines.append(f'{"":34}torch.compile(..., options={{"budget": {need.budget}}})')
        lines += ["", "alive at the peak of eager PyTorch:"]
        alive = (
            (each.kind, each.module, f"{each.operator} {each.line}".strip(), each.nbytes, each.count)
            for each in self.eager.live
        )
        lines += _live_lines(alive, " ", "tensors")
        lines += _buffer_lines(self.budgeted or self.sublet)
        lines += ["", self.verdict or self.reason] if self.verdict or self.reason else []
        return "\n".join(lines)


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
) -> Estimate:
    """Return the memory of a training step or an inference, for eager PyTorch and for Sublet; no tensor gets bytes.

    The step is `loss(module(*inputs), *targets).backward(); optimizer.step()`, with module and loss compiled together
    for Sublet. Only shapes, strides and types of tensors count, so all tensors may lie on "meta".

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

    Returns:
        The estimate. Not counted: the context of a device, workspaces of its libraries, and fragmentation. On the CPU,
        bytes allocated within kernels are counted, by rules found by measurement for those of oneDNN.

    Raises:
        ModelError: for a step that cannot run on tensors without content, and for unknown kernels.
    """
    if kernels not in KERNELS:
        raise ModelError(f"kernels={kernels!r}: there are {' and '.join(map(repr, KERNELS))}")
    limit = parse_bytes(memory) if isinstance(memory, str) else memory
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    place = device_of_step(module, device)
    with fake_call(module, loss, optimizer, arguments, tuple(targets), place, amp) as call:
        eager = measure_eager(call)
        if not plan:
            return Estimate(eager, None, memory=limit)
        try:
            planned = (PlannedCall if kernels == KERNELS[0] else _LoweredCall)(call, eager, place)
            plain = planned.plain
        except SubletError as error:
            return Estimate(eager, None, memory=limit, reason=str(error))
        if limit is None or plain.peak_bytes <= limit:
            return Estimate(eager, plain, memory=limit)
        answer = planned.fit_within(limit)
    if isinstance(answer, str):
        return Estimate(eager, plain, None, limit, answer)
    return Estimate(eager, plain, answer, limit)


def allocated_bytes(program: CapturedProgram) -> int:
    """Return the most bytes that PyTorch allocates within one kernel of a captured program, on the CPU."""
    backend, found = TorchBackend(), dict[Hashable, int]()
    for node in (*program.model.graph.walk(), *(made for made, _ in program.computed.values())):
        key = (node.op, *(value and value.spec for value in (*node.inputs, *node.outputs)), repr(node.attrs))
        if key not in found:
            kernel = backend.kernel(node, {})
            if "conv" in node.op and isinstance(kernel, AtenKernel | BoundTorchKernel):
                found[key] = _allocated_by_convolution(kernel, node)
            else:
                found[key] = kernel.allocates if isinstance(kernel, AtenKernel) else 0
    return max(found.values(), default=0)


def _allocated_by_convolution(kernel: AtenKernel | BoundTorchKernel, node: Node) -> int:
    """Return the most bytes that PyTorch allocates at once in a kernel: the kernel runs on fake tensors.

    0 for a kernel that cannot run on fake tensors: a product by oneDNN, which writes to the planned place.
    """
    t = torch()
    mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()
    tracker = storage_tracker(t.nn.Module())
    with t.device(CPU), mode:
        inputs, outputs = (
            [t.empty_like(meta_tensor(x), device=CPU) if x else None for x in side]
            for side in (node.inputs, node.outputs)
        )
        scratch = t.empty(kernel.scratch, dtype=t.uint8)
    tracker.mark([each for each in (*inputs, *outputs, scratch) if each is not None], "operands")
    tracker.begin()
    try:
        with t.device(CPU), tracker, mode:
            if isinstance(kernel, AtenKernel):
                kernel.run_on(inputs, outputs)
            else:
                kernel.at_once()(inputs, outputs, scratch)
    except (RuntimeError, NotImplementedError):
        return 0
    return int(tracker.peak_bytes - tracker.live_bytes)


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


class PlannedCall:
    """The graphs of a call as captured by `torch.compile`, with their plans; the call has fake tensors."""

    def __init__(self, call: StepCall, eager: EagerMemory, device: str) -> None:
        self._call, self._device = call, device
        self._kept = eager.resident_bytes + eager.gradients + eager.results
        self._optimizer_bytes = eager.optimizer_bytes
        self._allocated = 0

    @property
    def outside(self) -> int:
        """The bytes beside the arenas at the peak of a step, once graphs are planned."""
        return self._kept + max(self._optimizer_bytes, self._allocated)

    @property
    def _prepare(self) -> Prepare:
        """The preparation of captured programs for planning, as in the pool of arenas of the device."""
        if self._device == CPU:
            return lambda program: prepare_captured(program)[1].model
        return lambda program: program.model

    @cached_property
    def plain(self) -> SubletMemory:
        """The bytes with plain plans. Raises ModelError for a graph without a plan."""
        programs = self._programs(None)
        plans = tuple(plan_memory(self._prepare(each), DEFAULT_OPTIONS) for each in programs)
        self._count_allocated(programs)
        return self._memory(plans, 0.0)

    def _memory(
        self, plans: tuple[MemoryPlan, ...], extra_time: float, words: str = "", budget: int | None = None
    ) -> SubletMemory:
        arenas = sum(each.arena_bytes for each in plans)
        return SubletMemory(self.outside + arenas, arenas, self._allocated, extra_time, plans, words, budget)

    def _count_allocated(self, programs: Sequence[CapturedProgram]) -> None:
        """Note the most bytes that PyTorch allocates within one kernel. Kernels of a GPU are not counted."""
        if self._device == CPU:
            self._allocated = max(map(allocated_bytes, programs), default=0)

    def fit_within(self, memory: int) -> SubletMemory | str:
        """Return the bytes with a plan of the largest graph within `memory`, or the reason against such a plan."""
        search = self.search
        budget = memory - self.outside - self.other_arenas
        if budget < 0:
            return (
                f"{human(self.outside + self.other_arenas)} lie outside of the arena: no budget of the arena is enough"
            )
        answer = search.best_within(budget)
        if answer.outcome is not SearchOutcome.FITS:
            beside = self.outside + self.other_arenas
            words = f"{answer.words}; {beside:,} bytes lie beside this arena"
            if answer.outcome is SearchOutcome.IMPOSSIBLE:
                return words
            return f"{words}, so {beside + answer.program.nbytes:,} bytes for all together are enough"
        plans = (answer.program.plan, *self._other_plans)
        return self._memory(plans, answer.extra_time, answer.words, budget)

    @cached_property
    def search(self) -> BudgetSearch:
        """The search for programs of the graph with the largest arena."""
        programs, prepare = self._programs(0), self._prepare
        models = [prepare(each) for each in programs]
        self._count_allocated(programs)
        plans = [plan_memory(each, DEFAULT_OPTIONS) for each in models]
        largest = max(range(len(plans)), key=lambda at: plans[at].arena_bytes)
        plan, program, ready = plans[largest], programs[largest], models[largest]
        self._other_plans = [other for other in plans if other is not plan]
        changed = ModelPreparation(program.model, lambda model: prepare(replace(program, model=model)))
        return BudgetSearch(ready, DEFAULT_OPTIONS, preparation=changed, known_plan=plan)

    @property
    def other_arenas(self) -> int:
        """The bytes of the arenas of all graphs but the largest."""
        assert self.search
        return sum(each.arena_bytes for each in self._other_plans)

    def _programs(self, budget: int | None) -> list[Any]:
        """Return the captured programs, as for a budget if `budget` is no None. Raises ModelError without a program."""
        captures: list[GraphCapture] = []
        samples = "auto" if self._device == CPU else "all"

        def capture(module: Any, example: Sequence[Any]) -> Callable[..., Any]:
            region = CapturingRegion(DEFAULT_OPTIONS, self._device, captures, samples, self._device, budget)
            return compile_region(region, module, example)

        self._compile(capture)
        reasons = [each.reason for each in captures if each.program is None]
        if reasons or not captures:
            raise ModelError(f"Sublet leaves a graph to PyTorch: {reasons[0] if reasons else 'no graph is captured'}")
        return [each.program for each in captures]

    def _compile(self, backend: Callable[[Any, Sequence[Any]], Callable[..., Any]]) -> None:
        """Compile module and loss together by a backend of `torch.compile`, and run the call once."""
        t, guards = torch(), require("torch._guards", extra="torch")
        call = self._call

        def compile_graph(module: Any, example: Sequence[Any]) -> Callable[..., Any]:
            mode = guards.TracingContext.get().fake_mode  # PyTorch 2.10 refuses arguments of another mode
            return backend(module, [mode.from_tensor(each, static_shapes=True) for each in example])

        def forward(arguments: Any, targets: Any) -> Any:
            result = call.module(*arguments)
            return result if call.loss is None else call.loss(result, *targets)

        forward.__code__ = forward.__code__.replace()  # Dynamo counts recompilations by code object
        with call.mode, t.set_grad_enabled(call.loss is not None), call.autocast():
            t.compile(forward, backend=compile_graph, dynamic=False)(call.arguments, call.targets)


class _LoweredCall(PlannedCall):
    """The graphs of a call as lowered by Inductor, without kernels."""

    @cached_property
    def plain(self) -> SubletMemory:
        """The bytes of the divisions without a budget. Raises ModelError for a graph with an unknown peak."""
        return self._memory_of(self._divisions_for(None))

    def fit_within(self, memory: int) -> SubletMemory | str:
        """Return the bytes with each graph within the bytes left of `memory`, or the reason against that."""
        budget = memory - self.outside
        if budget < 0:
            return f"{human(self.outside)} lie outside of the kernels' memory: no budget is enough"
        try:
            found = replace(self._memory_of(self._divisions_for(budget)), budget=budget)
        except SubletError as error:
            return f"{error}; {self.outside:,} bytes lie beside"
        return found if found.peak_bytes <= memory else f"{human(found.peak_bytes)} for several graphs together"

    def _memory_of(self, divisions: Sequence[Division]) -> SubletMemory:
        peak = sum(each.peak for each in divisions)
        again = sum(each.again for each in divisions)
        words = f"{again} tensors are computed again" if again else ""
        return SubletMemory(self.outside + peak, peak, 0, None, (), words)

    def _divisions_for(self, budget: int | None) -> list[Division]:
        """Return the division of each graph, as compiled within a budget."""
        divisions: list[Division] = []
        errors: list[str] = []

        def lower(module: Any, example: Sequence[Any]) -> Callable[..., Any]:
            try:
                division = InductorCompilation(module, example, budget).choose_division()
                errors.extend(filter(None, [division.lowering.why_unknown]))
                divisions.append(division)
            except SubletError as error:
                errors.append(str(error))
            return module  # type: ignore[no-any-return]

        self._compile(lower)
        if errors or not divisions:
            raise ModelError(errors[0] if errors else "no graph is captured")
        return divisions


# The largest batch.
