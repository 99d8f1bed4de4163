"""Memory of a program: prediction for Paddle's executor, and a lower bound for any plan in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from sublet.base.ranges import LiveCurve
from sublet.integrations.paddle.format.program import PaddleOp, PaddleProgram
from sublet.integrations.paddle.operators.dialect import SlotPairs, effects_of, facts_of, nonempty_names
from sublet.integrations.paddle.operators.shapes import VariableSizes, tensor_bytes
from sublet.integrations.paddle.peaks.executor_memory_model import GarbageCollection, SimulatedMemory, simulate_run
from sublet.integrations.paddle.peaks.scopes import PaddleScopes, ScopedVariable
from sublet.integrations.paddle.peaks.simulated_run import RunRequest, SimulatedRun, VariableBytes

# Lower bound for the memory of a run: the most bytes live at any moment, independent of names and allocations.
#
# A value is live from its definition to its last use, in any iteration. At its last use a value may pass its bytes to
# an output of the same size, if the operator is known to be safe in place. An operator that copies its input (`assign`,
# `reshape2`) defines no new value. The content of arrays is left out. So the result is a lower bound for every plan
# with the same operators in the same order.

COPY_OPERATORS = ("assign", "depend", "reshape2", "unsqueeze2", "squeeze2", "flatten_contiguous_range", "share_data")
"""Operators with an output `Out` equal to their input `X`: the same elements in the same order."""


@dataclass(slots=True)
class _LiveValue:
    """A value of a run: its bytes, the moment of its definition, and the moment of its last use (-1 if none)."""

    nbytes: int
    defined_at: int
    last_use: int = -1
    takes_over: bool = False

    @property
    def begin(self) -> int:
        """The start of the live range, in read and write slots.

        At moment t, operands are live in slot 2t; a value that takes over bytes of an operand is live only from slot 2t
        + 1 on.
        """
        return 2 * self.defined_at + self.takes_over

    @property
    def end(self) -> int:
        """The end of the live range, in read and write slots."""
        return 2 * self.last_use + 1 if self.last_use > self.defined_at else 2 * self.defined_at + 2


def may_share(op_type: str) -> SlotPairs:
    """Return the (input, output) slot pairs allowed to have the same bytes, by a common name or as views."""
    facts = facts_of(op_type)
    return facts.inplace | facts.placed | facts.placed_first | facts.shares


def peak_live_bytes(request: RunRequest, scopes: PaddleScopes) -> int:
    """Return the most bytes live at any moment of a run."""
    lives = _LiveBytesRun(request, scopes)
    lives.run()
    lives.moment += 1
    for place in request.keep:
        lives.read_value(place)
    return lives.peak_bytes()


class _LiveBytesRun(SimulatedRun[_LiveValue]):
    """A walk with values as the content of variables."""

    def __init__(self, request: RunRequest, scopes: PaddleScopes) -> None:
        super().__init__(request, scopes)
        self.moment = 0
        self.values: list[_LiveValue] = []
        self.offers: list[
            tuple[_LiveValue, list[_LiveValue]]
        ] = []  # a new value, and the values whose bytes it may take

    def visit_operator(self, block: int, index: int, op: PaddleOp) -> None:
        """Read the operands and define the outputs. An output equal to X takes over the value of X."""
        self.moment += 1
        read = {name: self.read_value(self.scopes.resolve(block, name)) for name in effects_of(op).reads}
        for slot, place in self.written_variables(block, index, op):
            source = read.get(op.first_input("X") or "")
            if self.is_persistable(place) or self.scopes.is_array(place):
                continue
            nbytes = self.sizes.written_bytes(block, index, place)
            as_many = source is not None and source.nbytes == nbytes
            if slot == "Out" and (op.type in COPY_OPERATORS or (as_many and ("X", "Out") in facts_of(op.type).equal)):
                self.bind_value(place, source)
                continue
            value = self.define_value(place, nbytes)
            offered = [
                (name, found)
                for taken, names in op.inputs.items()
                for name in names
                if (found := read.get(name)) is not None
                and ((taken, slot) in may_share(op.type) or self.scopes.resolve(block, name) == place)
            ]
            if offered:
                self.offers.append((value, [found for _, found in offered]))

    def copy_input(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Bind the copy to the value of the input."""
        self.bind_value(inner, self.content_of(outer))

    def share_gradient(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Bind the inner gradient to the value of the outer gradient."""
        self.bind_value(inner, self.content_of(outer))

    def fill_zeros(self, place: ScopedVariable) -> None:
        """Define a new value for a missing gradient."""
        if self.content_of(place) is None and not self.scopes.is_array(place) and not self.is_persistable(place):
            self.moment += 1
            self.define_value(place, self.sizes.declared_bytes(place))

    def add_gradient(self, outer: ScopedVariable, inner: ScopedVariable, carried: bool) -> None:
        """Read both gradients; a carried gradient passes its value to the outer name."""
        if carried:
            self.bind_value(outer, self.content_of(inner))
            return
        self.moment += 1
        self.read_value(inner)
        if self.read_value(outer) is None and not self.scopes.is_array(outer):
            self.define_value(outer, self.sizes.declared_bytes(outer))

    def read_value(self, place: ScopedVariable) -> _LiveValue | None:
        """Read a variable and return its value, or None."""
        value = self.content_of(place)
        if value is not None:
            value.last_use = self.moment
        return value

    def define_value(self, place: ScopedVariable, nbytes: int) -> _LiveValue:
        """Define a new value and bind the variable to the value."""
        value = _LiveValue(nbytes, self.moment)
        self.values.append(value)
        self.bind_value(place, value)
        return value

    def bind_value(self, place: ScopedVariable, value: _LiveValue | None) -> None:
        """Bind a variable to a value; None for feeds and persistable variables."""
        held = self.current_scopes[place.block].held
        held.pop(place.name, None)
        if value is not None:
            held[place.name] = value

    def peak_bytes(self) -> int:
        """Return the peak. A dying value passes the bytes to at most one new value of the same size, if allowed."""
        given: set[int] = set()
        for value, sources in self.offers:
            for source in sources:
                if source.last_use == value.defined_at and source.nbytes == value.nbytes and id(source) not in given:
                    given.add(id(source))
                    value.takes_over = True
                    break
        return LiveCurve.from_sizes((((value.begin, value.end),), value.nbytes) for value in self.values).peak_bytes


MAX_CONDITION_COMBINATIONS = 64
"""Limit of tried combinations, enough for 6 independent conditions. Beyond, the rest of the combinations is skipped."""


@dataclass(frozen=True)
class PredictedMemory:
    """Predicted memory of a program beyond feeds and persistable variables, without the scratch memory of kernels.

    `collected` is Paddle's run with garbage collection (the default), `uncollected` the peak without; `bound` is the
    least for any plan in the same order. If branches depend on fed data, each figure is that of the worst combination
    of arms.
    """

    collected: SimulatedMemory
    uncollected: int
    bound: int


@dataclass(frozen=True)
class BytesFromSizes:
    """Bytes of variables, computed from their extents."""

    sizes: VariableSizes

    def declared_bytes(self, place: ScopedVariable) -> int:
        """Return the bytes of a variable's largest assignment; 0 for an undeclared name, such as a copy of an input."""
        name = place.name
        if (
            self.sizes.program.declaring_block(place.block, name) is None
        ):  # a copy in the scope of an iteration, or undeclared
            return 0
        return self.sizes.nbytes(place.block, name)

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int:
        """Return the bytes of a variable as written by an operator."""
        dims, dtype = self.sizes.dims_at_writes.get((block, op, place.name)), self.sizes.dtype(place.block, place.name)
        if dims is None or None in dims or dtype is None:
            return self.declared_bytes(place)
        return tensor_bytes(dims, dtype)


@dataclass(frozen=True)
class BytesOfRenamed(BytesFromSizes):
    """Bytes of variables in a program with exchanged names and no further change: each write keeps its size."""

    renamed: PaddleProgram

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int:
        """Return the bytes of the original output at the same position of the operator."""
        before, after = (program.blocks[block].ops[op] for program in (self.sizes.program, self.renamed))
        name = dict(zip(after.writes, before.writes, strict=True))[place.name]
        return super().written_bytes(block, op, ScopedVariable(place.block, name))


@dataclass(frozen=True)
class BytesInArena(BytesFromSizes):
    """Bytes of variables in the arena form: variables in the arena have no bytes of their own."""

    placed: frozenset[ScopedVariable]

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int:
        """Return 0 for a variable in the arena, else the bytes as written by the operator."""
        return 0 if place in self.placed else super().written_bytes(block, op, place)


def predict_memory(
    sizes: VariableSizes,
    keep: frozenset[ScopedVariable] = frozenset(),
    trips: Mapping[str, int] | None = None,
    in_trip: Sequence[VariableSizes] = (),
) -> PredictedMemory:
    """Return the predicted memory of the program of `sizes`, run in program order.

    For a loop over sequences of several lengths, `in_trip` has the sizes of each iteration, inferred with the number of
    sequences not yet ended. Raises ModelError for unknown sizes, PlanError for unknown trip counts.
    """
    return predict_memory_of(
        sizes.program, BytesFromSizes(sizes), keep, trips, in_trip=[BytesFromSizes(each) for each in in_trip]
    )


def predict_memory_of(
    program: PaddleProgram,
    sizes: VariableBytes,
    keep: frozenset[ScopedVariable] = frozenset(),
    trips: Mapping[str, int] | None = None,
    scratch: Mapping[tuple[int, int], int] | None = None,
    in_trip: Sequence[VariableBytes] = (),
) -> PredictedMemory:
    """Return the predicted memory of a program, given the bytes of variables and the scratch bytes of kernels."""
    scopes = PaddleScopes(program)
    request = RunRequest(program, sizes, keep, trips or {}, in_trip=in_trip, scratch=scratch or {})
    kinds = [GarbageCollection(scopes, keep, collects) for collects in (True, False)]
    runs = [replace(request, met=met) for met in _condition_combinations(scopes)]
    collected, uncollected = (
        max((simulate_run(run, kind) for run in runs), key=lambda seen: seen.peak) for kind in kinds
    )
    return PredictedMemory(collected, uncollected.peak, max(peak_live_bytes(run, scopes) for run in runs))


def _condition_combinations(scopes: PaddleScopes) -> Iterator[Mapping[ScopedVariable, bool]]:
    """Yield combinations of condition values, at most MAX_CONDITION_COMBINATIONS."""
    free = sorted(_independent_conditions(scopes))
    every = (dict(zip(free, met, strict=True)) for met in product((True, False), repeat=len(free)))
    return islice(every, MAX_CONDITION_COMBINATIONS)


def _independent_conditions(scopes: PaddleScopes) -> set[ScopedVariable]:
    """Return the independent conditions of branches: a negation counts as its operand."""
    roots = set()
    for owner in scopes.owners.values():
        if owner.op.type == "conditional_block":
            for name in nonempty_names(owner.op.inputs.get("Cond", ())):
                roots.add(_origin_of_condition(scopes, scopes.resolve(owner.block, name)))
    return roots


def _origin_of_condition(scopes: PaddleScopes, place: ScopedVariable) -> ScopedVariable:
    """Return the origin of a condition through negations, copies and casts."""
    seen = set()
    while place not in seen:
        seen.add(place)
        writers = scopes.writers.get(place, ())
        if len(writers) == 1:
            block, index = writers[0]
            op = scopes.program.blocks[block].ops[index]
            source = op.first_input("X")
            if op.type in ("logical_not", "assign", "cast") and source is not None:
                place = scopes.resolve(block, source)
    return place
