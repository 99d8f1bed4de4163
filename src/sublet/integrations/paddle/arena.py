"""The arena form of a program: tensors become views of a single arena at planned offsets, in loops and branches too.

    placeable   the variables allowed in the arena, and the reasons for the variables outside
    coalescing  shared places: outputs in the place of inputs, copies in the place of their sources
    views       the rewritten program, with the arena and the views at the beginning of each block

`to_arena_form` combines the three modules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from sublet.analysis.liveness import LiveRanges, compute_live_ranges, to_point_ranges
from sublet.base.errors import ModelError
from sublet.base.ranges import Ranges, merge, overlap
from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import (
    GRAD,
    TENSOR,
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
    new_var,
)
from sublet.integrations.paddle.operators.dialect import OpFacts, facts_for_dims, nonempty_names
from sublet.integrations.paddle.operators.shapes import VariableSizes
from sublet.integrations.paddle.peaks.control_flow import PaddleFlow, build_flow, maybe_uninitialized_names
from sublet.integrations.paddle.peaks.scopes import FORWARD_OWNERS, ScopedVariable, linked_gradient_names
from sublet.packing import Buffer, Problem, lower_bound, pack

# Selection of the variables allowed in an arena, with a reason for each variable outside.

GRADIENT_OWNERS = ("while_grad", "conditional_block_grad")


def select_placeable(
    program: PaddleProgram, flow: PaddleFlow, sizes: VariableSizes, keep: Collection[str]
) -> tuple[dict[ScopedVariable, int], dict[ScopedVariable, str]]:
    """Return the bytes of each variable allowed in an arena, and the reason for each variable outside.

    `keep` names the variables of block 0 kept for the caller; kept variables stay outside.
    """
    why = _reasons_by_operator(program, flow, sizes)
    written, perhaps = set(flow.scopes.writers), maybe_uninitialized_names(program)
    for point in flow.points:
        if point.kind == "keep":
            for place in point.uses:
                why.setdefault(place, "is saved in every iteration for the gradient block")
    nbytes: dict[ScopedVariable, int] = {}
    for block in program.blocks:
        for var in block.vars.values():
            place = ScopedVariable(block.index, var.name)
            if var.kind != TENSOR:
                why[place] = "is not a dense tensor"
            elif var.persistable:
                why[place] = "outlives the program"
            elif var.name in perhaps:
                why[place] = "may be read before its first write"
            elif block.index == 0 and var.name in keep:
                why[place] = "is kept for the caller"
            elif place not in written:
                why[place] = "is an input"
            elif None in (dims := sizes.dims(block.index, var.name) or (None,)):
                why[place] = f"has open extents {dims}"
            elif place not in why and (size := sizes.nbytes(block.index, var.name)):
                nbytes[place] = size
    return nbytes, {place: reason for place, reason in why.items() if place not in nbytes}


def _reasons_by_operator(program: PaddleProgram, flow: PaddleFlow, sizes: VariableSizes) -> dict[ScopedVariable, str]:
    """Return the reason for each variable kept outside by an operator that shares, replaces or looks up the memory."""
    why: dict[ScopedVariable, str] = {}
    for block in program.blocks:
        for op in block.ops:
            names = _memory_sensitive_names(op, facts_at(block.index, op, sizes))
            for name in nonempty_names(names):
                why.setdefault(flow.scopes.resolve(block.index, name), f"{op.type} shares or replaces its memory")
            if op.type in GRADIENT_OWNERS:
                inner = op.block_index()
                inside = [name for name in op.reads if not name.endswith(GRAD)]
                gradients = (*(f"{name}{GRAD}" for name in inside), *linked_gradient_names(op))
                for name in nonempty_names(gradients):
                    if inner is not None and name in program.blocks[inner].vars:
                        why.setdefault(ScopedVariable(inner, name), f"{op.type} passes it in and out by name")
    return why


def facts_at(block: int, op: PaddleOp, sizes: VariableSizes) -> OpFacts:
    """Return the facts of an operator of a block, for the extents of the operator's inputs in `sizes`."""
    return facts_for_dims(op, lambda name: sizes.dims(block, name))


def _memory_sensitive_names(op: PaddleOp, facts: OpFacts) -> tuple[str, ...]:
    """Return the names with memory that the operator may share, replace or inspect."""
    if op.type in FORWARD_OWNERS:
        return ()  # only the operators in the block read and write the names
    if op.type in GRADIENT_OWNERS:
        return (*op.inputs.get(f"Out{GRAD}", ()), *op.writes)
    if not facts.known:
        return (*op.reads, *op.writes)
    slots = [*(op.inputs.get(source, ()) for source, _ in facts.shares)]
    slots += [op.outputs.get(target, ()) for _, target in facts.shares]
    slots += [op.outputs.get(slot, ()) for slot in facts.moves]
    return tuple(name for names in slots for name in names)


# Coalescing of arena variables: an output takes the place of an input, a copy takes the place of its source.
#
# Coalesced variables form a class. A class is a single buffer, live at every point where any of its variables is live.

Pair = tuple[ScopedVariable, ScopedVariable]


class CoalescingClasses:
    """Classes of coalesced variables, joined pair by pair.

    At a point, a variable may be defined where another variable has its last use only if the operator is in-place for
    the pair. `allowed` has the in-place pairs of each point. The operator facts hold for a single pair at a time, so
    each point uses at most one pair.
    """

    def __init__(
        self,
        lives: LiveRanges[ScopedVariable],
        sizes: Mapping[ScopedVariable, int],
        allowed: Mapping[int, tuple[Pair, ...]],
    ) -> None:
        self.sizes = sizes
        self.allowed = allowed
        self.used_pairs: dict[int, Pair] = {}
        self.own_ranges: dict[ScopedVariable, Ranges] = {place: lives.slot_ranges.get(place, ()) for place in sizes}
        self.class_ranges = dict(self.own_ranges)
        self.members: dict[ScopedVariable, list[ScopedVariable]] = {place: [place] for place in sizes}
        self.class_of: dict[ScopedVariable, ScopedVariable] = {place: place for place in sizes}

    def are_coalesced(self, one: ScopedVariable, other: ScopedVariable) -> bool:
        """Return True if both variables are in the same class."""
        return one in self.class_of and other in self.class_of and self.class_of[one] == self.class_of[other]

    def join(self, one: ScopedVariable, other: ScopedVariable) -> None:
        """Join the classes of two variables, if legal.

        The join is illegal if the sizes differ, if the live ranges overlap, or if a last use of a variable meets a
        definition of another at a point without the matching in-place pair.
        """
        first, second = self.class_of[one], self.class_of[other]
        if first == second or self.sizes[one] != self.sizes[other]:
            return
        if overlap(self.class_ranges[first], self.class_ranges[second]):
            return
        met = [*self._pairs_in_contact(first, second), *self._pairs_in_contact(second, first)]
        if all(pair in self.allowed.get(at, ()) and self.used_pairs.get(at, pair) == pair for at, pair in met):
            self.used_pairs.update(met)
            self._unite(first, second)

    def join_copy(self, source: ScopedVariable, copy: ScopedVariable) -> None:
        """Join a copy with the source even if both are live, if legal.

        The join is illegal if the sizes differ, if the source is written during the copy's live range, or if the live
        ranges of any two further members overlap.
        """
        first, second = self.class_of[source], self.class_of[copy]
        if first == second or self.sizes[source] != self.sizes[copy]:
            return
        if any(
            begin % 2 and overlap(((begin, begin + 1),), self.own_ranges[copy]) for begin, _ in self.own_ranges[source]
        ):
            return
        for one, other in product(self.members[first], self.members[second]):
            if (one, other) != (source, copy) and overlap(
                _widen_to_points(self.own_ranges[one]), _widen_to_points(self.own_ranges[other])
            ):
                return
        self._unite(first, second)

    def _pairs_in_contact(self, ending: ScopedVariable, beginning: ScopedVariable) -> Iterator[tuple[int, Pair]]:
        """Yield each point with a last use in class `ending` and a definition in class `beginning`, and both."""
        begins: dict[int, list[ScopedVariable]] = {}
        for member in self.members[beginning]:
            for begin, _ in self.own_ranges[member]:
                begins.setdefault(begin, []).append(member)
        for member in self.members[ending]:
            for _, end in self.own_ranges[member]:
                for other in begins.get(end, ()) if end % 2 else ():
                    yield end // 2, (member, other)

    def _unite(self, first: ScopedVariable, second: ScopedVariable) -> None:
        """Merge two classes into the larger class."""
        if len(self.members[first]) < len(self.members[second]):
            first, second = second, first
        for member in self.members[second]:
            self.class_of[member] = first
        self.members[first] += self.members.pop(second)
        self.class_ranges[first] = merge((*self.class_ranges[first], *self.class_ranges.pop(second)))


def _widen_to_points(halves: Ranges) -> Ranges:
    """Return ranges of read and write slots, widened to whole points."""
    return merge((begin // 2 * 2, (end + 1) // 2 * 2) for begin, end in halves)


def coalesce_variables(
    program: PaddleProgram,
    flow: PaddleFlow,
    lives: LiveRanges[ScopedVariable],
    sizes: VariableSizes,
    nbytes: Mapping[ScopedVariable, int],
) -> tuple[CoalescingClasses, dict[ScopedVariable, str]]:
    """Return the classes of the variables in `nbytes`, and the variables that must leave the arena, with reasons.

    A variable must leave if an operator compares only allocations: in an arena such an operator takes any place of its
    inputs for an in-place output.
    """
    points = {  # a block that is never run has no points
        flow.point_of_operator[block.index, index]: (block.index, op)
        for block in program.blocks
        for index, op in enumerate(block.ops)
        if (block.index, index) in flow.point_of_operator
    }
    allowed = {at: tuple(_inplace_pairs(flow, *where, sizes, nbytes)) for at, where in sorted(points.items())}
    classes = CoalescingClasses(lives, nbytes, allowed)
    for pairs in allowed.values():
        for one, other in pairs:
            classes.join(one, other)
    excluded: dict[ScopedVariable, str] = {}
    for at, (block, op) in sorted(points.items()):
        if facts_at(block, op, sizes).holder:
            for source, copy in _copy_pairs(flow, block, op, sizes, nbytes):
                classes.join_copy(source, copy)
            for place in _outputs_beside_inputs(flow, block, op, classes, allowed[at]):
                excluded[place] = f"{op.type} treats an output in the allocation of an input as a view of the input"
    return classes, excluded


def _inplace_pairs(
    flow: PaddleFlow, block: int, op: PaddleOp, sizes: VariableSizes, found: Mapping[ScopedVariable, int]
) -> Iterator[Pair]:
    """Yield the (input, output) pairs for which the operator is known to be in-place."""
    facts = facts_at(block, op, sizes)
    for source, target in sorted(facts.placed | facts.placed_first):
        names = op.inputs.get(source, ())
        for name in names if (source, target) in facts.placed else names[:1]:
            for out in op.outputs.get(target, ()):
                pair = flow.scopes.resolve(block, name), flow.scopes.resolve(block, out)
                if op.reads.count(name) == 1 and pair[0] != pair[1] and all(place in found for place in pair):
                    yield pair


def _copy_pairs(
    flow: PaddleFlow, block: int, op: PaddleOp, sizes: VariableSizes, found: Mapping[ScopedVariable, int]
) -> Iterator[Pair]:
    """Yield the in-place pairs with an output equal to the input."""
    equal = facts_at(block, op, sizes).equal
    return (
        pair
        for pair in _inplace_pairs(flow, block, op, sizes, found)
        if any(
            pair == (flow.scopes.resolve(block, name), flow.scopes.resolve(block, out))
            for source, target in equal
            for name in op.inputs.get(source, ())
            for out in op.outputs.get(target, ())
        )
    )


def _outputs_beside_inputs(
    flow: PaddleFlow, block: int, op: PaddleOp, classes: CoalescingClasses, allowed: tuple[Pair, ...]
) -> Iterator[ScopedVariable]:
    """Yield the outputs in the arena, beside an input in the arena, that are not coalesced with an allowed input."""
    beside = any(flow.scopes.resolve(block, name) in classes.class_of for name in op.reads)
    for name in op.writes:
        out = flow.scopes.resolve(block, name)
        on = any(other == out and classes.are_coalesced(one, out) for one, other in allowed)
        if beside and out in classes.class_of and not on:
            yield out


# The arena form of a program: a single tensor, and views at planned offsets at the beginning of each block.

ARENA = "sublet.arena"
ARENA_END = "sublet.arena.end"
ALIGNMENT = 64
PADDLE_UINT8 = 20
POISON = 255
"""A byte with all bits set: NaN in every floating-point type, -1 in every signed integer type."""


@dataclass(frozen=True)
class ArenaForm:
    """A program in the arena form.

    places   the offset and bytes of each variable in the arena
    outside  the reason for each variable outside of the arena
    bytes    the size of the arena
    bound    a lower bound in bytes for any arena with the same variables, live ranges and coalescing
    """

    program: PaddleProgram
    places: Mapping[ScopedVariable, tuple[int, int]]
    outside: Mapping[ScopedVariable, str]
    bytes: int
    bound: int


def to_arena_form(
    program: PaddleProgram, sizes: VariableSizes, keep: Collection[str] = (), *, poisoned: bool = False
) -> ArenaForm:
    """Return the arena form of a program. The variables `keep` of block 0 can be fetched after a run.

    With `poisoned`, the program fills the arena with NaN (-1 for integers) before each run, to expose reads before
    writes. Raises ModelError if the program already is in the arena form.
    """
    if any(name in block.vars for block in program.blocks for name in (ARENA, ARENA_END)):
        raise ModelError(f"the program has a variable {ARENA!r}: the program is in the arena form already")
    graph = build_flow(program, [ScopedVariable(0, name) for name in keep], by_shape=False)
    lives = compute_live_ranges(graph)
    found, why = select_placeable(program, graph, sizes, keep)
    while True:
        classes, left = coalesce_variables(program, graph, lives, sizes, found)
        if not left:
            break
        why.update(left)
        found = {place: size for place, size in found.items() if place not in left}
    places, total, bound = _pack_classes(classes)
    blocks = tuple(_with_views(block, places, total, poisoned) for block in program.blocks)
    return ArenaForm(replace(program, blocks=blocks), places, why, total, bound)


def with_lasting_arena(program: PaddleProgram) -> PaddleProgram:
    """Return a program in the arena form with an arena kept from run to run.

    A training program needs a lasting arena. Otherwise each run allocates an arena, and Paddle may free the arena of
    the previous run a moment later. An inference predictor keeps the arena by itself, and would search for a lasting
    arena among the parameters.
    """
    top = program.blocks[0]
    if ARENA not in top.vars:
        return program
    kept = {**top.vars, ARENA: replace(top.vars[ARENA], persistable=True)}
    return replace(program, blocks=(replace(top, vars=kept), *program.blocks[1:]))


def _pack_classes(classes: CoalescingClasses) -> tuple[dict[ScopedVariable, tuple[int, int]], int, int]:
    """Return the places of all variables, the size of the arena and a lower bound for the size."""
    buffers = []
    for number, (head, members) in enumerate(sorted(classes.members.items())):
        pieces = to_point_ranges(classes.class_ranges[head])
        if pieces:
            size = max(classes.sizes[member] for member in members)
            buffers.append((Buffer.alive_in(str(number), size, pieces, ALIGNMENT), members))
    if not buffers:
        return {}, 0, 0
    problem = Problem(tuple(buffer for buffer, _ in buffers))
    packing = pack(problem).packing
    places = {
        member: (offset, classes.sizes[member])
        for offset, (_, members) in zip(packing.offsets, buffers, strict=True)
        for member in members
    }
    return places, packing.arena_bytes, lower_bound(problem).bytes


def _with_views(
    block: PaddleBlock, places: Mapping[ScopedVariable, tuple[int, int]], total: int, poisoned: bool
) -> PaddleBlock:
    """Return a block with its view operators in front; block 0 also defines the arena."""
    views = [
        _view_operator(name, *places[ScopedVariable(block.index, name)])
        for name in block.vars
        if ScopedVariable(block.index, name) in places
    ]
    if block.index:
        return replace(block, ops=(*views, *block.ops)) if views else block
    arena_vars: dict[str, PaddleVar] = {
        ARENA: new_var(ARENA, DType.U8, (total,)),
        ARENA_END: new_var(ARENA_END, DType.U8, (1,)),
    }
    end = () if not total else (_view_operator(ARENA_END, 0, 1),)  # the last use of the arena: Paddle frees it last
    front = (_arena_operator(total, poisoned), *views) if total else ()
    return replace(block, vars={**block.vars, **arena_vars}, ops=(*front, *block.ops, *end)) if total else block


def _arena_operator(total: int, poisoned: bool) -> PaddleOp:
    """Return the operator that allocates the arena, or fills the arena if `poisoned`."""
    attrs = {"shape": PaddleAttr("LONGS", (total,)), "dtype": PaddleAttr("INT", PADDLE_UINT8)}
    if poisoned:
        attrs |= {"value": PaddleAttr("FLOAT", float(POISON)), "str_value": PaddleAttr("STRING", str(POISON))}
    return new_op("fill_constant" if poisoned else "empty", {}, {"Out": [ARENA]}, attrs)


def _view_operator(name: str, offset: int, size: int) -> PaddleOp:
    """Return the operator that makes a variable a view of arena bytes [offset, offset + size)."""
    attrs = {"begin_idx": PaddleAttr("LONG", offset), "end_idx": PaddleAttr("LONG", offset + size)}
    return new_op("view_slice", {"input": [ARENA]}, {"out": [name]}, attrs)


__all__ = ["ArenaForm", "to_arena_form", "with_lasting_arena"]
