"""Loops and branches of a graph under construction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

from sublet.base.errors import SpecError
from sublet.base.tensor import DType, Spec, TensorSpec, Unplannable
from sublet.ir import graph as ir
from sublet.ir.graph import CaseOf, Value, While
from sublet.nn.level_stack import LevelStack
from sublet.nn.source_location import at_line, user_line
from sublet.nn.tensor import Tensor, describe
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.rules import FLOATS


class Loop:
    """A loop; the body is written inside `with`.

        with g.while_({"h": h0}, over={"x": xs}) as loop:
            h = nn.tanh(loop["x"] @ w + loop["h"] @ u)
            loop.next(h=h)
            loop.stack(hs=h)
        last, all_of_them = loop["h"], loop["hs"]

    Inside, `loop["h"]` is the loop-carried value at the beginning of the iteration, and `loop["x"]` one step of the
    sequence; after the loop, `loop["h"]` is the final value, and `loop["hs"]` holds the stacked rows. `loop.counter` is
    the number of the iteration. `loop.check(condition)` ends the loop when the condition is false; nodes written before
    the check run once more than nodes written after the check. If a check may end the loop early, rows of iterations
    that did not run have arbitrary content; without `max_trips`, stacked rows lie outside the plan.

    Every method raises SpecError, beginning with the user's line, for a call at the wrong place or with a wrong tensor.
    """

    def __init__(
        self,
        levels: LevelStack,
        carried: dict[str, Tensor],
        over: dict[str, Tensor],
        rounds: int | None,
        max_trips: int | None,
        backwards: bool,
        name: str,
    ) -> None:
        self._levels, self._name, self._line = levels, name, user_line()
        twice = [key for key in carried if key in over]
        if twice:
            raise SpecError(
                at_line(f"{twice[0]!r} names both a loop-carried value and a sequence of the loop: use two names")
            )
        self._inits = {key: levels.value_of(tensor) for key, tensor in carried.items()}
        self._sequences = {key: levels.value_of(tensor) for key, tensor in over.items()}
        lengths = {key: tensor.shape[:1] for key, tensor in over.items()}
        if len({*lengths.values(), *([(rounds,)] if rounds is not None else [])}) > 1 or () in lengths.values():
            raise SpecError(
                at_line(f"the sequences and `rounds` of a loop must have one length: got {lengths} and rounds={rounds}")
            )
        self._rounds = _require_count(next((length[0] for length in lengths.values()), rounds), "rounds", 0)
        self._max_trips, self._backwards = _require_count(max_trips, "max_trips", 1), backwards
        self._open: bool | None = None
        self._updates: dict[str, Value] | None = None
        self._rows: dict[str, Value] = {}
        self._condition: Value | None = None
        self._check = 0
        self._readable: dict[str, Tensor] = {}

    def __enter__(self) -> Loop:
        """Begin the body. Raises SpecError if the loop was entered before."""
        if self._open is not None:
            raise SpecError(at_line(f"the body of the loop at {self._line} is written already: create another loop"))
        self._open = True
        levels = self._levels
        level = levels.push(f"the body of the loop at {self._line}")
        names, scope = level.emit.names, level.emit.scope + self._name

        def declare_value(key: str, spec: Spec) -> Value:
            return levels.new_tensor(Value(names.fresh(f"{scope}.{key}"), spec)).value

        self._counter = declare_value("round", TensorSpec(DType.I64))
        self._parameters = {key: declare_value(key, init.spec) for key, init in self._inits.items()}
        self._slices = {
            key: declare_value(key, TensorSpec(spec_of(value).dtype, spec_of(value).shape[1:]))
            for key, value in self._sequences.items()
        }
        self._number = levels.new_tensor(self._counter)
        self._readable = {key: levels.new_tensor(v) for key, v in {**self._parameters, **self._slices}.items()}
        return self

    @property
    def counter(self) -> Tensor:
        """The number of the iteration, from 0; an i64 scalar."""
        self._require_open()
        return self._number

    def __getitem__(self, key: str) -> Tensor:
        """Return a loop-carried value or a step of a sequence; after the loop, a final value or stacked rows.

        Raises SpecError before the loop, and for an unknown name.
        """
        if self._open is None:
            self._require_open()
        if key not in self._readable:
            later = "; stacked rows can be read after the loop" if key in self._rows else ""
            raise SpecError(at_line(f"the loop has no {key!r}; it has {', '.join(self._readable) or 'nothing'}{later}"))
        return self._readable[key]

    def _require_open(self) -> None:
        """Raise SpecError unless the body is being written."""
        if not self._open:
            state = "over" if self._open is False else "not open: write its body in `with g.while_(...) as loop:`"
            raise SpecError(at_line(f"the loop at {self._line} is {state}"))

    def check(self, condition: Tensor) -> None:
        """Continue only if `condition`, one bool, is true; otherwise end the loop before the rest of the iteration.

        Raises SpecError for a second check, or if `condition` is not one bool.
        """
        self._require_open()
        if self._condition is not None:
            raise SpecError(at_line("the loop has a check already: combine the conditions with &"))
        value = self._levels.value_of(condition)
        if condition.dtype is not DType.BOOL or spec_of(condition.value).size != 1:
            raise SpecError(at_line(f"{describe(condition)} is not a condition: expected one bool"))
        self._condition = value
        self._check = len(self._levels.emit.nodes)

    def next(self, **updates: Tensor) -> None:
        """Set the loop-carried values of the next iteration, one for each name in `carried`.

        Raises SpecError for missing or additional names, for a value of another shape or type than the initial value,
        and for a second call.
        """
        self._require_open()
        if self._updates is not None:
            raise SpecError(at_line("loop.next was already called in this loop: call it once"))
        if updates.keys() != self._inits.keys():
            missing = ", ".join(self._inits) or "nothing"
            raise SpecError(
                at_line(f"the loop carries {missing}; loop.next received {', '.join(updates) or 'nothing'}")
            )
        values = {key: self._levels.value_of(tensor) for key, tensor in updates.items()}
        for key, value in values.items():
            if value.spec != self._inits[key].spec:
                raise SpecError(
                    at_line(
                        f"{key!r} has the initial type {self._inits[key].spec}; loop.next received {updates[key]!r}"
                    )
                )
        self._updates = values

    def stack(self, **rows: Tensor) -> None:
        """Collect a row of each iteration: `hs=h[...]` becomes `loop["hs"]` of shape [iterations, ...] after the loop.

        Raises SpecError for a name already in use.
        """
        self._require_open()
        for key, tensor in rows.items():
            if key in self._rows or key in self._readable:
                raise SpecError(at_line(f"the loop has a value {key!r} already: pass another name to loop.stack"))
            self._rows[key] = self._levels.value_of(tensor)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the body and append the loop to the enclosing graph.

        Raises SpecError if `next` was not called for loop-carried values, or if nothing ends the loop.
        """
        levels = self._levels
        level = levels.pop()
        self._open = False
        if kind is not None:
            return
        updates = self._updates if self._updates is not None else {} if not self._inits else None
        if updates is None:
            raise SpecError(
                at_line(f"the loop at {self._line} carries {', '.join(self._inits)}: call loop.next(...) in the body")
            )
        condition = self._loop_condition(level.emit)
        emit = levels.emit
        hint = f"{emit.scope}{self._name}"
        finals = [Value(emit.names.fresh(f"{hint}.{key}"), init.spec) for key, init in self._inits.items()]
        stacked = [Value(emit.names.fresh(f"{hint}.{key}"), self._stacked_spec(row)) for key, row in self._rows.items()]
        inside = (self._counter, *self._parameters.values(), *self._slices.values())
        results = (*(updates[key] for key in self._inits), *self._rows.values())
        body = ir.Graph(emit.names.fresh(f"{hint}.body"), inside, tuple(level.emit.nodes), results)
        sliced, rows = len(self._sequences), len(self._rows)
        emit.nodes.append(
            While(
                emit.names.fresh(hint),
                "while",
                (*self._inits.values(), *self._sequences.values()),
                (*finals, *stacked),
                {} if self._max_trips is None else {"max_trips": self._max_trips},
                self._line,
                body=body,
                condition=condition,
                check=self._check,
                carried=len(self._inits),
                slice_axes=(0,) * sliced,
                slice_reversed=(self._backwards,) * sliced,
                row_axes=(0,) * rows,
                row_reversed=(self._backwards,) * rows,
            )
        )
        keys = [*self._inits, *self._rows]
        self._readable = dict(zip(keys, levels.result_tensors((*finals, *stacked)), strict=True))

    def _loop_condition(self, emit: Emitter) -> Value:
        """Return the loop condition: the user's check, and the comparison of the counter with a known trip count."""
        if self._rounds is None:
            if self._condition is None:
                raise SpecError(
                    at_line(f"the loop at {self._line} never ends: pass `rounds` or sequences, or call loop.check")
                )
            return self._condition
        before, after = emit.nodes[: self._check], emit.nodes[self._check :]
        emit.nodes = before
        below = emit("nn.less", self._counter, emit.constant(self._rounds, self._counter))
        if self._condition is not None:
            below = emit("nn.logical_and", below, self._condition)
        self._check = len(emit.nodes)
        emit.nodes = [*before, *after]
        return below

    def _stacked_spec(self, row: Value) -> Spec:
        """Return the spec of stacked rows; unplannable without a bound on the number of iterations."""
        extent = self._rounds if self._condition is None else (self._max_trips or self._rounds)
        spec = spec_of(row)
        if extent is None:
            reason = "the number of iterations is known only after the loop has run"
            return Unplannable(reason, str(spec.dtype), (None, *spec.shape))
        return TensorSpec(spec.dtype, (extent, *spec.shape))


def _require_count(number: int | None, what: str, minimum: int) -> int | None:
    """Return a number of iterations. Raises SpecError, naming `what`, unless None or an integer >= `minimum`."""
    if number is not None and (not isinstance(number, int) or number < minimum):
        hint = "; for a number known only at run time, use loop.check" if isinstance(number, Tensor) else ""
        raise SpecError(at_line(f"{what} = {number!r} must be an integer >= {minimum}{hint}"))
    return number


class Branch:
    """A branch; each arm is written inside `with`.

        with g.case_of(x.sum() > 0) as case:
            with case.arm():
                case.give(x)
            with case.arm():
                case.give(nn.relu(x))
        y = case[0]

    The first arm is for False or 0. All arms give equally many results, of equal shapes and types; the results are
    `case[0]`, `case[1]`, ... after the branch. Every method raises SpecError, beginning with the user's line, for a
    call at the wrong place or with a wrong tensor.
    """

    def __init__(self, levels: LevelStack, index: Tensor, fallback: tuple[Tensor, ...], name: str) -> None:
        self._levels, self._name, self._line = levels, name, user_line()
        self._index = levels.value_of(index)
        if index.dtype in FLOATS or index.size != 1:
            raise SpecError(at_line(f"{describe(index)} cannot select an arm: expected one bool or integer"))
        self._fallback = tuple(levels.value_of(tensor) for tensor in fallback)
        self._arms: list[ir.Graph] = []
        self._in_arm = self._closed = False
        self._given: tuple[Value, ...] | None = None
        self._results: tuple[Tensor, ...] = ()

    def __enter__(self) -> Branch:
        return self

    @contextmanager
    def arm(self) -> Iterator[None]:
        """Write the next arm inside `with`; the arm must call `give`.

        Raises SpecError outside of the branch, inside another arm, and for an arm without results.
        """
        if self._in_arm or self._closed:
            raise SpecError(
                at_line(f"case.arm() must be called directly inside the branch at {self._line}, not inside another arm")
            )
        levels = self._levels
        level = levels.push(f"an arm of the branch at {self._line}")
        self._given, self._in_arm, line = None, True, user_line()
        try:
            yield
        finally:
            levels.pop()
            self._in_arm = False
        if self._given is None:
            raise SpecError(at_line(f"the arm at {line} has no results: call case.give(...) in the arm"))
        name = levels.emit.names.fresh(f"{levels.emit.scope}{self._name}.arm{len(self._arms)}")
        self._arms.append(ir.Graph(name, (), tuple(level.emit.nodes), self._given))

    def give(self, *results: Tensor) -> None:
        """Set the results of the arm.

        Raises SpecError outside of an arm, for a second call, and for shapes or types different from the first arm's.
        """
        if not self._in_arm:
            raise SpecError(
                at_line("case.give(...) must be called inside an arm: write `with case.arm():` around the call")
            )
        if self._given is not None:
            raise SpecError(at_line("case.give was already called in this arm: call it once"))
        values = tuple(self._levels.value_of(tensor) for tensor in results)
        like = self._arms[0].outputs if self._arms else self._fallback or values
        if [value.spec for value in values] != [value.spec for value in like]:
            shown = ", ".join(str(value.spec) for value in like)
            raise SpecError(at_line(f"this arm gives {', '.join(map(repr, results))}; the other arms give {shown}"))
        self._given = values

    def __getitem__(self, position: int) -> Tensor:
        """Return a result of the branch. Raises SpecError before the end of the branch, and for an unknown position."""
        if not self._closed:
            raise SpecError(at_line(f"the results of the branch at {self._line} can be read after the branch"))
        if position not in range(len(self)):
            raise SpecError(
                at_line(f"the branch at {self._line} has no result {position}; number of results: {len(self)}")
            )
        return self._results[position]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self)))

    def __len__(self) -> int:
        return len(self._results)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the branch and append the node to the enclosing graph. Raises SpecError for missing arms."""
        self._closed = True
        if kind is not None:
            return
        if not self._arms:
            raise SpecError(at_line(f"the branch at {self._line} has no arm: write `with case.arm():`"))
        if len(self._arms) == 1 and spec_of(self._index).dtype is DType.BOOL and not self._fallback:
            raise SpecError(at_line(f"the branch at {self._line} has no arm for True: the first arm is for False"))
        emit = self._levels.emit
        hint = f"{emit.scope}{self._name}"
        outputs = tuple(
            Value(emit.names.fresh(hint if i == 0 else f"{hint}.{i}"), value.spec)
            for i, value in enumerate(self._arms[0].outputs)
        )
        name = outputs[0].name if outputs else emit.names.fresh(hint)
        inputs = (self._index, *self._fallback)
        emit.nodes.append(CaseOf(name, "case", inputs, outputs, {}, self._line, arms=tuple(self._arms)))
        self._results = tuple(self._levels.result_tensors(outputs))


# Shared interface of symbolic and dynamic graphs: loops, branches, and the switch between training and evaluation.


class ControlFlowWriter(Protocol):
    """A graph with control flow.

    training   True for layers in training mode: batch normalisation and dropout depend on the mode
    """

    training: bool

    def _level_stack(self) -> LevelStack:
        """Return the stack of levels for the next loop or branch."""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Set evaluation mode inside `with`: normalise by running statistics, drop nothing."""
        before, self.training = self.training, False
        try:
            yield
        finally:
            self.training = before

    def while_(
        self,
        carried: Mapping[str, Tensor] | None = None,
        *,
        over: Mapping[str, Tensor] | None = None,
        rounds: int | None = None,
        max_trips: int | None = None,
        backwards: bool = False,
        name: str = "loop",
    ) -> Loop:
        """Return a loop, see `Loop`: `with g.while_({"h": h0}, over={"x": xs}) as loop: ... loop.next(h=...)`.

        carried    initial values by name, of any shape; each iteration must set the next values
        over       sequences by name, all of equal length; an iteration reads one step along axis 0
        rounds     the number of iterations, if known; the length of `over` by default
        max_trips  the maximum number of iterations of a loop ended by a check, for planning stacked rows
        backwards  read the steps of `over` from the end, and stack rows from the end
        name       the prefix of names in the loop

        Raises SpecError for sequences of different lengths, a number of iterations that is not an integer, and a name
        both in `carried` and in `over`.
        """
        return Loop(self._level_stack(), dict(carried or {}), dict(over or {}), rounds, max_trips, backwards, name)

    def case_of(self, index: Tensor, fallback: Sequence[Tensor] = (), name: str = "case") -> Branch:
        """Return a branch, see `Branch`: arm i runs when `index`, one bool or integer, is i; False is 0, True is 1.

        With an index below 0 no arm runs, and the results are `fallback`. Raises SpecError for an index of another type
        or of several elements.
        """
        return Branch(self._level_stack(), index, tuple(fallback), name)
