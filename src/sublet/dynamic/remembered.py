"""Jit functions of a dynamic graph: the trie of recorded calls, and plans for calls made more than once."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Protocol

from sublet.base.interrupts import uninterrupted
from sublet.dynamic.call import Call
from sublet.dynamic.declared import Declared
from sublet.dynamic.eager import Eager
from sublet.dynamic.planned import Arena, Planned, Run, apart
from sublet.dynamic.programs import WRITTEN
from sublet.dynamic.rebuild import rebuilt
from sublet.dynamic.record import Symbol
from sublet.dynamic.storage import Storage
from sublet.dynamic.tensor import Owner
from sublet.dynamic.traces import APPLY, CUT, END, Moment, Step
from sublet.nn.lines import line_of, user_code
from sublet.runtime.kernel import Backend

MISSES = 20
"""Number of reasons kept for `explain`, the latest."""

TRACES = 8
"""Recorded calls in the trie per plan of the limit; beyond, the least recently seen calls are removed."""


class Plans:
    """The plans of a graph, least recently used dropped first; all plans share one arena.

    most   the maximum number of plans
    made   the number of plans made so far
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.made = 0
        self.arena = Arena()
        self._used: OrderedDict[Moment, None] = OrderedDict()
        self._ends: OrderedDict[Moment, None] = OrderedDict()

    def of(self, end: Moment, make: Callable[[], Planned]) -> Planned:
        """Return the plan of the calls ending at the trie node `end`, made by `make` if missing."""
        planned: Planned | None = end.plan
        if planned is None:
            planned = end.plan = make()
            self.made += 1
        self._used[end] = None
        self._used.move_to_end(end)
        while len(self._used) > self.most:
            self._used.popitem(last=False)[0].plan = None
        return planned

    def ended(self, end: Moment) -> None:
        """Note a call ending at the trie node `end`, and remove the least recently seen calls beyond the limit."""
        self._ends[end] = None
        self._ends.move_to_end(end)
        while len(self._ends) > self.most * TRACES:
            old = self._ends.popitem(last=False)[0]
            old.cut_off()
            self._used.pop(old, None)

    def clear(self) -> None:
        """Drop all plans and the arena."""
        for end in self._used:
            end.plan = None
        self._used.clear()
        self.arena = Arena()


class Calling(Owner, Protocol):
    """The interface of a dynamic graph for jit functions: `calling` is the call in progress."""

    calling: Any
    backends: list[Backend]
    _eager: Eager
    _declared: Declared


class Remembered:
    """A function decorated by `DynamicGraph.jit`: calls are recorded, and repeated calls computed by a plan.

    replayed         the number of calls computed by a plan
    recorded_calls   the number of calls recorded, the first included
    """

    def __init__(self, graph: Calling, function: Callable[..., Any], plans: Plans) -> None:
        update_wrapper(self, function)
        self._graph = graph
        self._function = function
        self._plans = plans
        self._misses: deque[str] = deque(maxlen=MISSES)
        self.root = Moment(None, None)
        self.replayed = 0
        self.recorded_calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        with self._graph.presence.held():
            return self._called(args, named, replay=True)

    def eagerly(self, *args: Any, **named: Any) -> Any:
        """Call the function, computing command by command; the call is recorded too."""
        with self._graph.presence.held():
            return self._called(args, named, replay=False)

    def _called(self, args: Sequence[Any], named: Mapping[str, Any], *, replay: bool) -> Any:
        """Run a call of the function; a call inside another call is part of the outer call."""
        graph = self._graph
        if graph.calling is not None:  # an inner call is part of the outer call
            return self._function(*args, **named)
        graph._eager.require_open()
        call = graph.calling = Call(graph, graph._eager, self, replay=replay)
        try:
            with graph._declared.anew():
                result = self._function(*args, **named)
            del args, named
            call.ended()
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            graph.calling = None
        return result

    @property
    def planned(self) -> int:
        """The number of plans made so far for all jit functions of the graph."""
        return self._plans.made

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena of the most recent call; 0 before a plan exists."""
        planned = self.root.latest().plan
        return planned.plan.arena_bytes if planned else 0

    def explain(self) -> str:
        """Return a report on the calls, with the reasons for recorded calls, the latest last.

        A reason names the line, the step recorded before, and the present step.
        """
        lines = [f"{self.replayed} calls replayed, {self.recorded_calls} recorded, {self._plans.made} plans made"]
        return "\n".join([*lines, *self._misses])

    # The interface for calls

    def at_cut(self, call: Call, moment: Moment, slot: int) -> Storage:
        """Run the plan up to the suspension point `moment`, and return the storage of the observed value `slot`."""
        with uninterrupted():
            run = self._going(call, moment)
            self._go_on(call, run, run.go_on)
            tensor = call.handles[slot]()
            assert tensor is not None
            return call.eager.pool.filled(tensor._kind, run.kept()[slot])

    def at_end(self, call: Call, moment: Moment) -> None:
        """Run the rest of the plan, up to the end `moment`, and store the results and the updated parameters."""
        with uninterrupted():
            run = self._going(call, moment)
            updated = run.planned.updated
            for parameter in updated:
                apart(parameter, holders=parameter in call.before)
            self._go_on(call, run, run.finish)
            for slot, array in run.left().items():
                tensor = call.handles[slot]()
                if tensor is not None:
                    tensor._storage = call.eager.pool.filled(tensor._kind, array)
            for parameter in call.before:
                before = parameter._symbol
                parameter._storage, parameter._symbol = parameter.home, Symbol(parameter._kind, True)
                parameter._call = None
                if before is not None:
                    before.dropped()
            call.before.clear()
            call.moment = None
            moment.to_front()
            self._plans.ended(moment)
            self.replayed += 1

    def recorded(self, call: Call) -> None:
        """Compute the deferred values command by command, and continue the call as a recorded call."""
        computed = dict(call.seen)
        if call.run is not None:
            for slot, array in call.run.kept().items():
                step = next((each for each in call.path if slot in each.made), None)
                if slot not in computed and step is not None:
                    computed[slot] = call.eager.pool.filled(step.kinds[slot - step.base], array)
        call.run = None
        call.next = max((step.made.stop for step in call.path if step.kinds), default=0)
        call.next = max(call.next, 1 + max((e.slot for step in call.path for e in step.new), default=-1))
        rebuilt(call, computed)
        call.moment = None

    def learnt(self, call: Call) -> None:
        """Add the steps of a recorded call to the trie."""
        self.recorded_calls += 1
        moment, steps = self.root, list(call.path)
        while steps:
            child = next((each for each in moment.children if each.step is steps[0]), None)
            if child is None:
                break
            moment = child
            steps.pop(0)
        end = moment.grow(steps)
        end.to_front()
        self._plans.ended(end)

    def missed(
        self, call: Call, moment: Moment, what: str, inputs: Sequence[Any], op: str, attrs: Mapping[str, Any]
    ) -> None:
        """Note the reason for the end of a replay: the step without a match after `moment`."""
        step = moment.children[0].step
        assert step is not None
        here = line_of(user_code())
        name = op or {CUT: "a look at a value", END: "the end of the call"}.get(what, what)
        reason = f"{here}: {name}, where {step} came before"
        if what is APPLY and step.op == op:
            reason = f"{here}: {op} was seen here with {_difference(step, inputs, attrs, call)}"
        elif what is END and step.what is END:
            reason = f"the end: tensors {list(step.kept)} were left before, others now"
        self._misses.append(reason)

    def _going(self, call: Call, moment: Moment) -> Run:
        """Return the run of the call, by a plan of the steps up to `moment`.

        If the present plan does not contain `moment`, a run of another plan begins. The new run continues from the
        values saved at the latest suspension point if possible, and otherwise computes the preceding pieces again.
        """
        run = call.run
        if run is not None and moment in run.planned.moments and run.planned.end.plan is run.planned:
            run.feed(_contents(call))
            return run
        end = moment.latest()
        graph = self._graph
        planned = self._plans.of(end, lambda: Planned(end, graph.backends, self._plans.arena))
        kept = {} if run is None else {slot: array.copy() for slot, array in run.kept().items()}
        other = Run(planned, {parameter: storage for parameter, (storage, _) in call.before.items()})
        other.feed(_contents(call))
        if run is not None and run.piece and planned.resumed(run.piece):
            other.take(run.piece, kept)
        call.run = other
        before = sum(step.what is CUT for step in call.path[:-1])
        while other.piece < before:  # the earlier pieces' results are lost: compute them again
            self._go_on(call, other, other.go_on)
        return other

    @staticmethod
    def _go_on(call: Call, run: Run, piece: Callable[[], None]) -> None:
        """Run a piece. An error ends the run, and in the last piece also the replay."""
        try:
            piece()
        except BaseException:
            call.run = None
            if piece == run.finish:
                call.moment = None
            raise


def _contents(call: Call) -> dict[int, Any]:
    """Return the contents from outside so far, by slot."""
    contents: dict[int, Any] = dict(call.numbers)
    contents.update((slot, call.given(slot)[0].array) for slot in call.outside)
    return contents


def _difference(step: Step, inputs: Sequence[Any], attrs: Mapping[str, Any], call: Call) -> str:
    """Return the difference of a recorded step and the present step, as text."""
    for key in {**step.attrs, **attrs}:
        if key == WRITTEN and step.attrs.get(key) != attrs.get(key):
            return "another body, or other arms"
        if repr(step.attrs.get(key)) != repr(attrs.get(key)):
            return f"{key} = {step.attrs.get(key)!r}, not {attrs.get(key)!r}"
    for position, (entry, given) in enumerate(zip(step.operands, inputs, strict=False)):
        if isinstance(entry, int):
            fits = getattr(given, "_slot", -1) == entry and given._call is call
        else:
            fits = entry.fits(given, call, inputs)
        if not fits:
            what = "another value of the call" if isinstance(entry, int) else entry
            return f"{what} as operand {position}, not {_kind(given, call)}"
    return "another number of operands" if len(inputs) != len(step.operands) else "gradients on, or off"


def _kind(given: Any, call: Call) -> str:
    """Return a description of an operand for messages."""
    spec = getattr(getattr(given, "_kind", None), "spec", None)
    name = getattr(given, "name", "tensor")
    if spec is None:
        return repr(given)
    if name != "tensor":
        return f"the parameter {name!r}"
    return f"{'a value of the call' if given._call is call else 'one from outside'}, {spec}"
