"""Jit functions of a dynamic graph: the trie of recorded calls, and plans for calls made more than once."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Protocol

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.interrupts import defer_interrupts
from sublet.dynamic.call_trie import APPLY, END, OBSERVE, CallStep, ExternalTensor, TrieNode
from sublet.dynamic.control_flow_commands import PROGRAM_ATTR
from sublet.dynamic.eager_executor import EagerExecutor
from sublet.dynamic.gradient_record import Symbol
from sublet.dynamic.jit_call import JitCall
from sublet.dynamic.parameter_registry import DynamicWeights, ParameterRegistry
from sublet.dynamic.planned_call import PlannedCall, PlannedRun, SharedArena, copy_for_other_holders
from sublet.dynamic.replay_fallback import compute_deferred
from sublet.dynamic.tensor import TensorOwner
from sublet.dynamic.tensor_storage import TensorStorage
from sublet.ir.graph import Graph
from sublet.nn.graph import DTYPE_OF_NUMPY
from sublet.nn.source_location import at_line, format_position, user_position
from sublet.plan import MemoryPlan
from sublet.runtime.kernel import Backend

MAX_MISSES = 20
"""Number of reasons kept for `explain`, the latest."""

CALLS_PER_PLAN = 8
"""Recorded calls in the trie per plan of the limit; beyond, the least recently seen calls are removed."""


class PlanCache:
    """The plans of a graph, least recently used dropped first; all plans share one arena.

    most   the maximum number of plans
    made   the number of plans made so far
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.made = 0
        self.arena = SharedArena()
        self._used: OrderedDict[TrieNode, None] = OrderedDict()
        self._ends: OrderedDict[TrieNode, None] = OrderedDict()

    def plan_for(self, end: TrieNode, make: Callable[[], PlannedCall]) -> PlannedCall:
        """Return the plan of the calls ending at the trie node `end`, made by `make` if missing."""
        planned: PlannedCall | None = end.plan
        if planned is None:
            planned = end.plan = make()
            self.made += 1
        self._used[end] = None
        self._used.move_to_end(end)
        while len(self._used) > self.most:
            self._used.popitem(last=False)[0].plan = None
        return planned

    def note_end(self, end: TrieNode) -> None:
        """Note a call ending at the trie node `end`, and remove the least recently seen calls beyond the limit."""
        self._ends[end] = None
        self._ends.move_to_end(end)
        while len(self._ends) > self.most * CALLS_PER_PLAN:
            old = self._ends.popitem(last=False)[0]
            old.remove_path()
            self._used.pop(old, None)

    def latest_ends(self) -> list[TrieNode]:
        """Return the ends of the calls in the trie, the latest first."""
        return list(reversed(self._ends))

    def clear(self) -> None:
        """Drop all plans and the arena."""
        for end in self._used:
            end.plan = None
        self._used.clear()
        self.arena = SharedArena()


class RecordedCall:
    """A recorded call of a jit function: all later calls with equal steps are computed by one graph and one plan.

    signature   the tensors passed from outside, in the order of their first use
    """

    def __init__(self, function: JitFunction, end: TrieNode) -> None:
        self._function, self._end = function, end
        steps = [moment.step for moment in end.path() if moment.step is not None]
        outside = [one for step in steps for one in step.external_operands if isinstance(one, ExternalTensor)]
        self.signature = tuple(one.kind.spec for one in outside if one.parameter is None)

    def __repr__(self) -> str:
        return f"<RecordedCall ({', '.join(map(str, self.signature))}) -> {len(self._end.path())} steps>"

    @property
    def graph(self) -> Graph:
        """The graph that the plan computes: commands after simplification and fusion, in the planned order."""
        return self._function.planned_call(self._end).model.graph

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan of the graph, checked; made at the first request if no call was replayed yet."""
        return self._function.planned_call(self._end).plan


class JitGraph(TensorOwner, Protocol):
    """The interface of a dynamic graph for jit functions: `calling` is the call in progress."""

    calling: Any
    backends: list[Backend]
    _eager: EagerExecutor
    _declared: ParameterRegistry


class JitFunction:
    """A function decorated by `DynamicGraph.jit`: calls are recorded, and repeated calls computed by a plan.

    replayed         the number of calls computed by a plan
    recorded_calls   the number of calls recorded, the first included
    """

    def __init__(self, graph: JitGraph, function: Callable[..., Any], plans: PlanCache) -> None:
        update_wrapper(self, function)
        self._graph = graph
        self._function = function
        self._plans = plans
        self._misses: deque[str] = deque(maxlen=MAX_MISSES)
        self.root = TrieNode(None, None)
        self.replayed = 0
        self.recorded_calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        with self._graph.exclusive_access.held_inside():
            return self._run_call(args, named, replay=True)

    def eagerly(self, *args: Any, **named: Any) -> Any:
        """Call the function, computing command by command; the call is recorded too."""
        with self._graph.exclusive_access.held_inside():
            return self._run_call(args, named, replay=False)

    def _run_call(self, args: Sequence[Any], named: Mapping[str, Any], *, replay: bool) -> Any:
        """Run a call of the function; a call inside another call is part of the outer call."""
        graph = self._graph
        args, named = [self._operand(one) for one in args], {key: self._operand(one) for key, one in named.items()}
        if graph.calling is not None:  # an inner call is part of the outer call
            return self._function(*args, **named)
        graph._eager.require_open()
        call = graph.calling = JitCall(graph, graph._eager, self, replay=replay)
        try:
            with graph._declared.restart_numbering():
                result = self._function(*args, **named)
            del args, named
            call.finish_call()
        except BaseException as error:
            call.roll_back(error)
            raise
        finally:
            graph.calling = None
        return result

    def _operand(self, given: Any) -> Any:
        """Return an array of numbers as a tensor, any other argument unchanged."""
        is_numeric = isinstance(given, np.ndarray) and given.dtype in DTYPE_OF_NUMPY
        return self._graph._eager.tensor_from_array(given) if is_numeric else given

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """The recorded calls, the latest first: one for each signature, and for each path of Python's branches."""
        ends = {*self.root.call_ends()}
        return tuple(RecordedCall(self, end) for end in self._plans.latest_ends() if end in ends)

    @property
    def graph(self) -> Graph:
        """The graph of the latest call, see `RecordedCall.graph`. Raises SpecError before the first call."""
        return self._latest_call().graph

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan of the latest call, see `RecordedCall.plan`. Raises SpecError before the first call."""
        return self._latest_call().plan

    def _latest_call(self) -> RecordedCall:
        """Return the latest recorded call. Raises SpecError before the first call."""
        for call in self.calls:
            return call
        raise SpecError(at_line("the jit function has no recorded call yet: call it once"))

    def planned_call(self, end: TrieNode) -> PlannedCall:
        """Return the plan of the calls ending at a trie node. Raises SpecError inside a jit function or a loop."""
        with self._graph.exclusive_access.held_inside(), defer_interrupts():
            if self._graph.calling is not None:
                raise SpecError(at_line("the graph of a jit function cannot be read inside a jit function or a loop"))
            self._graph._eager.require_open()
            return self._plans.plan_for(end, lambda: PlannedCall(end, self._graph.backends, self._plans.arena))

    @property
    def weights(self) -> DynamicWeights:
        """All parameters and states of the graph by name, as `DynamicGraph.weights`."""
        return DynamicWeights(self._graph, self._graph._declared)

    @property
    def planned(self) -> int:
        """The number of plans made so far for all jit functions of the graph."""
        return self._plans.made

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena of the most recent call; 0 before a plan exists."""
        planned = self.root.latest_end().plan
        return planned.plan.arena_bytes if planned else 0

    def explain(self) -> str:
        """Return a report on the calls, with the reasons for recorded calls, the latest last.

        A reason names the line, the step recorded before, and the present step.
        """
        lines = [f"{self.replayed} calls replayed, {self.recorded_calls} recorded, {self._plans.made} plans made"]
        return "\n".join([*lines, *self._misses])

    # The interface for calls

    def compute_observed(self, call: JitCall, moment: TrieNode, slot: int) -> TensorStorage:
        """Run the plan up to the suspension point `moment`, and return the storage of the observed value `slot`."""
        with defer_interrupts():
            run = self._run_through(call, moment)
            self._run_piece(call, run, run.run_next_piece)
            tensor = call.handles[slot]()
            assert tensor is not None
            return call.eager.pool.store_copy(tensor._kind, run.saved_values()[slot])

    def compute_rest(self, call: JitCall, moment: TrieNode) -> None:
        """Run the rest of the plan, up to the end `moment`, and store the results and the updated parameters."""
        with defer_interrupts():
            run = self._run_through(call, moment)
            updated = run.planned.updated
            for parameter in updated:
                copy_for_other_holders(parameter, holders=parameter in call.contents_before)
            self._run_piece(call, run, run.run_last_piece)
            for slot, array in run.result_arrays().items():
                tensor = call.handles[slot]()
                if tensor is not None:
                    tensor._storage = call.eager.pool.store_copy(tensor._kind, array)
            for parameter in call.contents_before:
                before = parameter._symbol
                parameter._storage, parameter._symbol = parameter.bound_storage, Symbol(parameter._kind, True)
                parameter._call = None
                if before is not None:
                    before.release_handle()
            call.contents_before.clear()
            call.moment = None
            moment.mark_latest()
            self._plans.note_end(moment)
            self.replayed += 1

    def switch_to_recording(self, call: JitCall) -> None:
        """Compute the deferred values command by command, and continue the call as a recorded call."""
        computed = dict(call.seen)
        if call.run is not None:
            for slot, array in call.run.saved_values().items():
                step = next((each for each in call.path if slot in each.result_slots), None)
                if slot not in computed and step is not None:
                    computed[slot] = call.eager.pool.store_copy(step.kinds[slot - step.base], array)
        call.run = None
        call.next = max((step.result_slots.stop for step in call.path if step.kinds), default=0)
        call.next = max(call.next, 1 + max((e.slot for step in call.path for e in step.external_operands), default=-1))
        compute_deferred(call, computed)
        call.moment = None

    def add_to_trie(self, call: JitCall) -> None:
        """Add the steps of a recorded call to the trie."""
        self.recorded_calls += 1
        moment, steps = self.root, list(call.path)
        while steps:
            child = next((each for each in moment.children if each.step is steps[0]), None)
            if child is None:
                break
            moment = child
            steps.pop(0)
        end = moment.add_path(steps)
        end.mark_latest()
        self._plans.note_end(end)

    def note_miss(
        self, call: JitCall, moment: TrieNode, what: str, inputs: Sequence[Any], op: str, attrs: Mapping[str, Any]
    ) -> None:
        """Note the reason for the end of a replay: the step without a match after `moment`."""
        step = moment.children[0].step
        assert step is not None
        here = format_position(user_position())
        name = op or {OBSERVE: "a read of a value", END: "the end of the call"}.get(what, what)
        reason = f"{here}: {name}; the recorded call has {step}"
        if what is APPLY and step.op == op:
            reason = f"{here}: {op}: the recorded call has {_describe_difference(step, inputs, attrs, call)}"
        elif what is END and step.what is END:
            reason = f"the end: the call returns other tensors than the recorded tensors {list(step.kept)}"
        self._misses.append(reason)

    def _run_through(self, call: JitCall, moment: TrieNode) -> PlannedRun:
        """Return the run of the call, by a plan of the steps up to `moment`.

        If the present plan does not contain `moment`, a run of another plan begins. The new run continues from the
        values saved at the latest suspension point if possible, and otherwise computes the preceding pieces again.
        """
        run = call.run
        if run is not None and moment in run.planned.path_nodes and run.planned.end.plan is run.planned:
            run.load_inputs(_external_contents(call))
            return run
        end = moment.latest_end()
        graph = self._graph
        planned = self._plans.plan_for(end, lambda: PlannedCall(end, graph.backends, self._plans.arena))
        kept = {} if run is None else {slot: array.copy() for slot, array in run.saved_values().items()}
        other = PlannedRun(planned, {parameter: storage for parameter, (storage, _) in call.contents_before.items()})
        other.load_inputs(_external_contents(call))
        if run is not None and run.piece and planned.can_resume(run.piece):
            other.take(run.piece, kept)
        call.run = other
        before = sum(step.what is OBSERVE for step in call.path[:-1])
        while other.piece < before:  # the earlier pieces' results are lost: compute them again
            self._run_piece(call, other, other.run_next_piece)
        return other

    @staticmethod
    def _run_piece(call: JitCall, run: PlannedRun, piece: Callable[[], None]) -> None:
        """Run a piece. An error ends the run, and in the last piece also the replay."""
        try:
            piece()
        except BaseException:
            call.run = None
            if piece == run.run_last_piece:
                call.moment = None
            raise


def _external_contents(call: JitCall) -> dict[int, Any]:
    """Return the contents from outside so far, by slot."""
    contents: dict[int, Any] = dict(call.numbers)
    contents.update((slot, call.content_at_start(slot)[0].array) for slot in call.externals)
    return contents


def _describe_difference(step: CallStep, inputs: Sequence[Any], attrs: Mapping[str, Any], call: JitCall) -> str:
    """Return the difference of a recorded step and the present step, as text."""
    for key in {**step.attrs, **attrs}:
        if key == PROGRAM_ATTR and step.attrs.get(key) != attrs.get(key):
            return "another loop body or branch arm"
        if repr(step.attrs.get(key)) != repr(attrs.get(key)):
            return f"{key} = {step.attrs.get(key)!r}, not {attrs.get(key)!r}"
    for position, (entry, given) in enumerate(zip(step.operands, inputs, strict=False)):
        if isinstance(entry, int):
            fits = getattr(given, "_slot", -1) == entry and given._call is call
        else:
            fits = entry.fits(given, call, inputs)
        if not fits:
            what = "another value of the call" if isinstance(entry, int) else entry
            return f"{what} as operand {position}, not {_describe_operand(given, call)}"
    return (
        "another number of operands" if len(inputs) != len(step.operands) else "another setting of gradient recording"
    )


def _describe_operand(given: Any, call: JitCall) -> str:
    """Return a description of an operand for messages."""
    spec = getattr(getattr(given, "_kind", None), "spec", None)
    name = getattr(given, "name", "tensor")
    if spec is None:
        return repr(given)
    if name != "tensor":
        return f"the parameter {name!r}"
    return f"{'a value of the call' if given._call is call else 'a tensor from outside'}, {spec}"
