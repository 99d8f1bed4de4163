"""Memory of a call planned by Sublet before the call runs: compiled by `torch.compile`, or a step of `train_step`.

Arenas come from the plans that the call itself would make. No tensor gets bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest, model_with_kernels
from sublet.base.errors import ModelError, SubletError
from sublet.base.formatting import human
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.arena_pool import prepare_captured
from sublet.integrations.torch.compile.backend import DEFAULT_OPTIONS, compile_region
from sublet.integrations.torch.compile.caller_outputs import COPY_IN
from sublet.integrations.torch.compile.inductor_kernels import Division, InductorCompilation
from sublet.integrations.torch.compile.joint_graph import CapturedProgram
from sublet.integrations.torch.eager_memory import EagerMemory, StepCall, storage_tracker
from sublet.integrations.torch.kernels.backend import AtenKernel, BoundTorchKernel, TorchBackend, meta_tensor
from sublet.integrations.torch.ranks import CapturingRegion, GraphCapture, unread_contents
from sublet.integrations.torch.reader.exported_program import CPU, error_summary
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.train.step import BACKENDS, model_of_step
from sublet.ir.graph import Node
from sublet.ir.model import Model
from sublet.plan import MemoryPlan
from sublet.plan.verdict import buffers_at_peak
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch, ModelPreparation
from sublet.planning.pipeline import plan_memory

COMPILE, TRAIN_STEP = "compile", "train_step"
STEPS = (COMPILE, TRAIN_STEP)
"""Ways to run a step with Sublet: `torch.compile(module, backend="sublet")`, and `sublet.torch.train_step`."""


@dataclass(frozen=True)
class SubletMemory:
    """Bytes of a call compiled with `torch.compile(backend="sublet")`, or of a step of `sublet.torch.train_step`.

    peak_bytes       all bytes at once: resident tensors, arenas, results, the bytes allocated by a kernel or the
                     temporaries of the optimizer, and gradients. The arena of `train_step` holds temporaries and
                     gradients
    arena_bytes      bytes of the arenas of all graphs
    allocated_bytes  the most bytes that PyTorch allocates within one kernel of Sublet
    extra_time       predicted additional time by recomputation, as a share of the plain plan's time; None for kernels
                     of Inductor
    plans            the plans of the graphs
    words            the changes within the budget; "" for the plain plans
    budget           the budget for these plans, in bytes; None for the plain plans
    step             "compile" or "train_step"
    """

    peak_bytes: int
    arena_bytes: int
    allocated_bytes: int
    extra_time: float | None
    plans: tuple[MemoryPlan, ...]
    words: str = ""
    budget: int | None = None
    step: str = COMPILE

    @property
    def call_words(self) -> str:
        """The call with the budget of these plans."""
        if self.step == TRAIN_STEP:
            return f"train_step(..., budget={self.budget})"
        kernels = "" if self.plans else '"kernels": "inductor", '
        return f'torch.compile(..., options={{{kernels}"budget": {self.budget}}})'

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
class StepProgram:
    """The program of `train_step` for one step; computes no result in memory of the caller."""

    model: Model
    computed: Mapping[str, tuple[Node, Node]] = field(default_factory=dict)


Program = CapturedProgram | StepProgram
"""A program to plan: a graph captured by `torch.compile`, or a whole step."""


def allocated_bytes(program: Program) -> int:
    """Return the most bytes that PyTorch allocates within one kernel of a program, on the CPU."""
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


class PlannedCall:
    """The graphs of a call as captured by `torch.compile`, with their plans; the call has fake tensors.

    step     the way to run the step, see `STEPS`
    options  the planning options
    """

    step = COMPILE
    options = DEFAULT_OPTIONS

    def __init__(self, call: StepCall, eager: EagerMemory, device: str) -> None:
        self._call, self._device = call, device
        self._kept = eager.resident_bytes + eager.gradients + eager.results
        self._optimizer_bytes = eager.optimizer_bytes
        self._allocated = 0

    @property
    def outside(self) -> int:
        """The bytes beside the arenas at the peak of a step, once graphs are planned."""
        return self._kept + max(self._optimizer_bytes, self._allocated)

    def _prepare(self, program: Any) -> Model:
        """Return a program prepared for planning, as in the pool of arenas of the device."""
        return prepare_captured(program)[1].model if self._device == CPU else program.model

    @cached_property
    def plain(self) -> SubletMemory:
        """The bytes with plain plans. Raises ModelError for a graph without a plan."""
        programs = self._programs(None)
        plans = tuple(plan_memory(self._prepare(each), self.options) for each in programs)
        self._count_allocated(programs)
        return self._memory(plans, 0.0)

    def _memory(
        self, plans: tuple[MemoryPlan, ...], extra_time: float, words: str = "", budget: int | None = None
    ) -> SubletMemory:
        arenas = sum(each.arena_bytes for each in plans)
        peak = self.outside + arenas
        return SubletMemory(peak, arenas, self._allocated, extra_time, plans, words, budget, self.step)

    def _count_allocated(self, programs: Sequence[Program]) -> None:
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
        programs = self._programs(0)
        models = [self._prepare(each) for each in programs]
        self._count_allocated(programs)
        plans = [plan_memory(each, self.options) for each in models]
        largest = max(range(len(plans)), key=lambda at: plans[at].arena_bytes)
        plan, program, ready = plans[largest], programs[largest], models[largest]
        self._other_plans = [other for other in plans if other is not plan]
        changed = ModelPreparation(program.model, lambda model: self._prepare(replace(program, model=model)))
        return BudgetSearch(ready, self.options, preparation=changed, known_plan=plan)

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
            region = CapturingRegion(self.options, self._device, captures, samples, self._device, budget)
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
        breaks: Counter[str] = require("torch._dynamo.utils", extra="torch").counters["graph_break"]
        before = Counter(breaks)
        try:
            with call.mode, t.set_grad_enabled(call.loss is not None), call.autocast():
                t.compile(forward, backend=compile_graph, dynamic=False)(call.arguments, call.targets)
        except SubletError:
            raise
        except Exception as error:  # user code raises errors of any type
            raise ModelError(f"torch.compile cannot trace the step: {error_summary(error)}") from error
        for reason in Counter(breaks) - before:
            first = reason.strip().splitlines()[0].rstrip(".")
            raise ModelError(
                f"torch.compile breaks the graph: {first}. Tensors between the graphs lie in no plan, so the peak is "
                "unknown"
            )


class PlannedStep(PlannedCall):
    """A whole step as planned by `train_step`: gradients and temporaries of the optimizer lie in the arena."""

    step = TRAIN_STEP
    options = Options()

    def __init__(self, call: StepCall, eager: EagerMemory, device: str) -> None:
        if device != CPU:
            raise ModelError(f"train_step runs on the CPU, not on {device!r}: leave out step={TRAIN_STEP!r}")
        if call.loss is None or call.optimizer is None:
            raise ModelError(f"step={TRAIN_STEP!r} needs a loss and an optimizer")
        super().__init__(call, eager, device)
        self._kept, self._optimizer_bytes = eager.resident_bytes + eager.results, 0

    def _prepare(self, program: Any) -> Model:
        """Return the program with the scratch memory of its kernels."""
        return model_with_kernels(CompileRequest(program.model, backend=BACKENDS, optimize="none")).model

    def _programs(self, budget: int | None) -> list[Any]:
        """Return the program of a step in a list. Raises ModelError for a step impossible to plan."""
        call = self._call
        assert call.loss is not None
        with call.autocast():
            model = model_of_step(call.module, call.loss, call.optimizer, call.arguments, call.targets, budget)
        return [StepProgram(replace(model, weights=unread_contents(model)))]


class LoweredCall(PlannedCall):
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


def planned_by(step: str) -> type[PlannedCall]:
    """Return the class planning a call of a step in `STEPS`. Raises ModelError for an unknown step."""
    if step not in STEPS:
        raise ModelError(f"step={step!r}: there are {' and '.join(map(repr, STEPS))}")
    return PlannedStep if step == TRAIN_STEP else PlannedCall
