"""Control flow graph of a whole program: blocks in line, with loops and branches as edges between points.

    start     defines the content before the run: persistable variables and empty arrays
    op        an operator without a block
    enter     start of a loop: a `while` opens its step scopes; a `while_grad` fills gradients of its inputs with zeros
    head      top of each iteration: reads the condition or the next step scope; start of a conditional block
    begin     an iteration has its scope: a new scope with copies of changing inputs, or the kept scope in a gradient
    keep      end of a forward iteration: keeps the scope, with all variables read by the gradient block
    add       end of a backward iteration: adds the gradients of inputs to the outer gradients, or replaces them
    zeros     for a branch not taken: gradients of the branch's inputs
    end       uses persistable variables and the variables kept for the caller

A name may have several assignments. Each point uses and defines the variables resolved for its names (`scopes.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sublet.analysis.liveness import live_in_out
from sublet.integrations.paddle.format.program import GRAD, PaddleOp, PaddleProgram
from sublet.integrations.paddle.operators.dialect import effects_of, nonempty_names
from sublet.integrations.paddle.peaks.scopes import BlockOwner, PaddleScopes, ScopedVariable, linked_gradient_names


@dataclass(frozen=True, slots=True)
class PaddlePoint:
    """A program point: all `uses` are read, then all `defs` are written.

    The point belongs to operator `op` of `block`; both are -1 for start and end. `shapes` are variables of which only
    the shape is read. The content of the variables in `kills` is undefined after the point.
    """

    kind: str
    block: int
    op: int
    uses: tuple[ScopedVariable, ...]
    defs: tuple[ScopedVariable, ...]
    shapes: tuple[ScopedVariable, ...] = ()
    kills: tuple[ScopedVariable, ...] = ()


@dataclass(frozen=True)
class PaddleFlow:
    """The points of a program, and the successors of each point."""

    points: tuple[PaddlePoint, ...]
    successors: tuple[tuple[int, ...], ...]
    scopes: PaddleScopes

    @cached_property
    def point_of_operator(self) -> dict[tuple[int, int], int]:
        """The point of each operator, by (block, index): the head of an operator with a block."""
        return {
            (point.block, point.op): index for index, point in enumerate(self.points) if point.kind in ("op", "head")
        }


def build_flow(program: PaddleProgram, keep: Collection[ScopedVariable] = (), *, by_shape: bool = True) -> PaddleFlow:
    """Return the control flow graph of a program; `keep` is live at the end.

    Without `by_shape`, a point does not use variables of which it reads only the shape: the bytes may be overwritten
    before.
    """
    return _PaddleFlowBuilder(program, by_shape).build_graph(keep)


class _PaddleFlowBuilder:
    """Builder of the control flow graph."""

    def __init__(self, program: PaddleProgram, by_shape: bool) -> None:
        self.program = program
        self.by_shape = by_shape
        self.scopes = PaddleScopes(program)
        self.points: list[PaddlePoint] = []
        self.successors: list[list[int]] = []
        self.open_points: list[int] = []  # predecessors of the next point
        self.read_cache: dict[int, frozenset[ScopedVariable]] = {}  # by block, reads of the block and its nested blocks

    def build_graph(self, keep: Collection[ScopedVariable]) -> PaddleFlow:
        """Build the graph, with `keep` live at the end."""
        lasting = [
            ScopedVariable(block.index, var.name)
            for block in self.program.blocks
            for var in block.vars.values()
            if var.persistable
        ]
        self.add_point("start", -1, -1, (), (*lasting, *self.arrays_of(0)))
        self.add_block(0)
        self.add_point("end", -1, -1, (*lasting, *keep), ())
        return PaddleFlow(tuple(self.points), tuple(map(tuple, self.successors)), self.scopes)

    def add_point(
        self,
        kind: str,
        block: int,
        op: int,
        uses: Iterable[ScopedVariable],
        defs: Iterable[ScopedVariable],
        shapes: Iterable[ScopedVariable] = (),
    ) -> int:
        """Append a point after all open points, and make the new point the only open point. Return its index."""
        shaped = tuple(shapes)
        index = len(self.points)
        used = (*uses, *shaped) if self.by_shape else tuple(uses)
        self.points.append(PaddlePoint(kind, block, op, tuple(dict.fromkeys(used)), tuple(dict.fromkeys(defs)), shaped))
        self.successors.append([])
        for before in self.open_points:
            self.successors[before].append(index)
        self.open_points = [index]
        return index

    def add_block(self, block: int) -> None:
        """Append the points of a block."""
        for index, op in enumerate(self.program.blocks[block].ops):
            inner = op.block_index()
            if inner is None:
                self.add_operator(block, index, op)
            else:
                lay_out = BUILDERS_BY_OWNER.get(op.type, _PaddleFlowBuilder.add_unknown_owner)
                lay_out(self, BlockOwner(block, index, op), inner)

    def add_operator(self, block: int, index: int, op: PaddleOp) -> None:
        """Append the point of an operator without a block.

        A partial write also uses an array, and a variable with several writers: the rest of the content stays.
        """
        does = effects_of(op)
        adds = self.resolve_names(block, does.adds)
        before = [place for place in adds if self.scopes.is_array(place) or len(self.scopes.writers.get(place, ())) > 1]
        uses, shapes = self.resolve_names(block, does.reads), self.resolve_names(block, does.shapes)
        self.add_point("op", block, index, (*uses, *before), (*self.resolve_names(block, does.writes), *adds), shapes)

    def add_while(self, owner: BlockOwner, inner: int) -> None:
        """Append a loop. A training loop has a scope for each iteration, an inference loop a single scope."""
        scopes, trained = self.resolve_slot(owner, owner.op.outputs, "StepScopes"), inner in self.scopes.gradients
        self.add_owner_point("enter", owner, (), scopes if trained else self.arrays_of(inner))
        head = self.add_owner_point("head", owner, self.resolve_slot(owner, owner.op.inputs, "Condition"), ())
        if trained:
            taken = sorted(self.scopes.snapshots.get(inner, ()))
            copies = tuple(ScopedVariable(inner, name) for name in taken)
            self.add_owner_point(
                "begin", owner, self.resolve_names(owner.block, taken), (*copies, *self.arrays_of(inner))
            )
        self.add_block(inner)
        if trained:
            self.add_owner_point("keep", owner, (*self.variables_kept_for_gradient(inner), *scopes), scopes)
        self.close_loop(head)

    def add_while_grad(self, owner: BlockOwner, inner: int) -> None:
        """Append the gradient of a loop."""
        scopes = self.resolve_slot(owner, owner.op.inputs, "StepScopes")
        given = self.resolve_slot(owner, owner.op.inputs, f"Out{GRAD}")
        gradients = self.scopes.gradient_pairs(owner, inner, "X")
        added = [outer for outer, _ in gradients if outer not in given]
        empty = [place for place in given if self.begins_with_zeros(owner, place)]
        self.add_owner_point("enter", owner, scopes, (*added, *empty))
        head = self.add_owner_point("head", owner, scopes, ())
        self.add_owner_point(
            "begin",
            owner,
            (*scopes, *given),
            (
                *self.variables_restored(inner),
                *self.resolve_names(inner, linked_gradient_names(owner.op)),
                *self.arrays_of(inner),
            ),
        )
        self.add_block(inner)
        inner_ones = tuple(place for _, place in gradients)
        self.add_owner_point("add", owner, (*inner_ones, *added), tuple(outer for outer, _ in gradients))
        self.close_loop(head)

    def add_conditional(self, owner: BlockOwner, inner: int) -> None:
        """Append a conditional block."""
        scope = self.resolve_slot(owner, owner.op.outputs, "Scope")
        head = self.add_owner_point("head", owner, self.resolve_slot(owner, owner.op.inputs, "Cond"), scope)
        self.points[head] = replace(self.points[head], kills=self.undefined_if_skipped(owner, inner))
        self.add_owner_point("begin", owner, (), self.arrays_of(inner))
        self.add_block(inner)
        if inner in self.scopes.gradients:
            self.add_owner_point("keep", owner, (*self.variables_kept_for_gradient(inner), *scope), scope)
        self.open_points.append(head)

    def add_conditional_grad(self, owner: BlockOwner, inner: int) -> None:
        """Append the gradient of a conditional block."""
        scope = self.resolve_slot(owner, owner.op.inputs, "Scope")
        gradients = self.scopes.gradient_pairs(owner, inner, "Input")
        head = self.add_owner_point("head", owner, (*self.resolve_slot(owner, owner.op.inputs, "Cond"), *scope), ())
        self.add_owner_point("begin", owner, scope, (*self.variables_restored(inner), *self.arrays_of(inner)))
        self.add_block(inner)
        outer = tuple(place for place, _ in gradients)
        taken = self.add_owner_point("add", owner, (place for _, place in gradients), outer)
        self.open_points = [head]
        self.add_owner_point("zeros", owner, (), outer)
        self.open_points.append(taken)

    def add_unknown_owner(self, owner: BlockOwner, inner: int) -> None:
        """Append an unknown operator with a block, as a loop: at any time the operator may use all of its names."""
        names = self.resolve_names(owner.block, (*owner.op.reads, *owner.op.writes))
        self.add_owner_point("enter", owner, (), self.arrays_of(inner))
        head = self.add_owner_point("head", owner, names, ())
        self.add_block(inner)
        self.close_loop(head)

    def close_loop(self, head: int) -> None:
        """Connect all open points to the head of the loop, and make the head the only open point."""
        for before in self.open_points:
            self.successors[before].append(head)
        self.open_points = [head]

    def add_owner_point(
        self, kind: str, owner: BlockOwner, uses: Iterable[ScopedVariable], defs: Iterable[ScopedVariable]
    ) -> int:
        """Append a point of an operator with a block."""
        return self.add_point(kind, owner.block, owner.index, uses, defs)

    def resolve_names(self, block: int, names: Iterable[str]) -> tuple[ScopedVariable, ...]:
        """Resolve names in a block; skip empty names."""
        return tuple(self.scopes.resolve(block, name) for name in names if nonempty_names((name,)))

    def resolve_slot(
        self, owner: BlockOwner, slots: Mapping[str, tuple[str, ...]], slot: str
    ) -> tuple[ScopedVariable, ...]:
        """Resolve the names in a slot of an operator with a block."""
        return self.resolve_names(owner.block, slots.get(slot, ()))

    def arrays_of(self, block: int) -> tuple[ScopedVariable, ...]:
        """Return the tensor arrays of a block; a new scope begins with empty arrays."""
        variables = (ScopedVariable(block, name) for name in self.program.blocks[block].vars)
        return tuple(place for place in variables if self.scopes.is_array(place))

    def begins_with_zeros(self, owner: BlockOwner, place: ScopedVariable) -> bool:
        """Return True if no operator before the loop writes the gradient, so that the loop begins with zeros."""
        if place.block != owner.block:
            return False
        writers = self.scopes.writers.get(place, ())
        steps = (
            index if block == owner.block else self.scopes.enclosing_operator(owner.block, block)
            for block, index in writers
        )
        return all(step >= owner.index for step in steps)

    def undefined_if_skipped(self, owner: BlockOwner, inner: int) -> tuple[ScopedVariable, ...]:
        """Return the outputs of a conditional block that are undefined after a skip of the block.

        Only a selection between arms reads such an output after a skip. The result is empty in the body of an inference
        loop: all iterations share a scope, so the content of an earlier iteration stays.
        """
        around = self.scopes.owners.get(owner.block)
        if around is not None and around.op.type == "while" and owner.block not in self.scopes.gradients:
            return ()  # all iterations share a scope
        blocks = set(self.scopes.nested_blocks(inner))
        return tuple(
            place
            for place in self.resolve_slot(owner, owner.op.outputs, "Out")
            if place.block == owner.block and all(block in blocks for block, _ in self.scopes.writers.get(place, ()))
        )

    def variables_read(self, block: int) -> frozenset[ScopedVariable]:
        """Return all variables read by a block and its nested blocks."""
        if block not in self.read_cache:
            variables: set[ScopedVariable] = set()
            for op in self.program.blocks[block].ops:
                does, inner = effects_of(op), op.block_index()
                variables.update(
                    self.resolve_names(block, (*does.reads, *does.shapes) if self.by_shape else does.reads)
                )
                if inner is not None:
                    variables |= self.variables_read(inner)
            self.read_cache[block] = frozenset(variables)
        return self.read_cache[block]

    def variables_kept_for_gradient(self, block: int) -> tuple[ScopedVariable, ...]:
        """Return the variables of a block's scope that the gradient block reads."""
        return tuple(
            sorted(place for place in self.variables_read(self.scopes.gradients[block]) if place.block == block)
        )

    def variables_restored(self, block: int) -> tuple[ScopedVariable, ...]:
        """Return the variables that a gradient block finds in the scope kept by the forward block."""
        forward = self.scopes.forward_block(block)
        return () if forward is None else self.variables_kept_for_gradient(forward)


BUILDERS_BY_OWNER = {
    "while": _PaddleFlowBuilder.add_while,
    "while_grad": _PaddleFlowBuilder.add_while_grad,
    "conditional_block": _PaddleFlowBuilder.add_conditional,
    "conditional_block_grad": _PaddleFlowBuilder.add_conditional_grad,
}
"""The method that appends an operator with a block, by operator type."""


# Text form of the dataflow sets: use, def, live-in and live-out of each point.


def live_lines(program: PaddleProgram, keep: Collection[ScopedVariable] = ()) -> Iterator[str]:
    """Yield a paragraph for each point, in the order of the flow.

    Persistable variables are live everywhere, and left out.
    """
    flow = build_flow(program, keep)
    lasting = {place for place in flow.points[0].defs if program.blocks[place.block].vars[place.name].persistable}
    for index, (point, (into, out)) in enumerate(zip(flow.points, live_in_out(flow), strict=True)):
        yield f"{index}: {point_title(program, point)}{_edges_text(flow, index)}"
        for word, places in (("use", point.uses), ("def", point.defs), ("live_in", into), ("live_out", out)):
            yield f"    {word:8} = {_set_text(each for each in places if each not in lasting)}"


def point_title(program: PaddleProgram, point: PaddlePoint) -> str:
    """Return the name of a point: block, operator and kind."""
    if point.op < 0:
        return point.kind
    op = program.blocks[point.block].ops[point.op]
    part = "" if point.kind == "op" else f" ({point.kind})"
    return f"block {point.block}, operator {point.op}: {op.type}{part}"


def _edges_text(flow: PaddleFlow, index: int) -> str:
    """Return the successors of a point as text; "" if the next point is the only successor."""
    others = [follower for follower in flow.successors[index] if follower != index + 1]
    return f" -> {', '.join(map(str, flow.successors[index]))}" if others else ""


def _set_text(places: Iterable[ScopedVariable]) -> str:
    """Return variables as text, sorted."""
    return f"{{{', '.join(sorted(map(str, places)))}}}"


# Maybe-uninitialized variables: variables left unwritten by control flow, and their copies.
#
# An operator that reads a variable without memory fails in Paddle. If the variable shared the memory of another, the
# operator would instead compute on unrelated bytes.

SELECT_INPUT = "select_input"
"""This operator reads one of two names, usually the written name."""


def maybe_uninitialized_names(program: PaddleProgram) -> frozenset[str]:
    """Return the maybe-uninitialized names: read, but possibly unwritten.

    A loop without iterations or a branch not taken leaves a name unwritten; `assign` copies the missing content.
    Persistable variables are always written. The analysis follows the operators in program order, up to the first write
    of each name. Later iterations of a loop and combinations of branches are not analysed.
    """
    left, found = set[str](), set[str]()

    def walk(block: int, written: set[str]) -> None:
        """Follow the operators of a block; `written` is the set of surely written names, updated in place."""
        for op in program.blocks[block].ops:
            inner, writes = op.block_index(), nonempty_names(op.writes)
            missed = left.intersection(op.reads) - written
            if inner is not None:
                walk(inner, written.union(linked_gradient_names(op)))  # a copy: writes in the block may not happen
            elif op.type != SELECT_INPUT:
                found.update(missed)
            if inner is not None and op.type != "conditional_block_grad":  # writes zeros if the branch is not taken
                left.update(name for name in writes if name not in written)
            elif op.type == "assign" and missed:
                left.update(writes)
                found.update(writes)
            else:
                written.update(writes)

    walk(0, {name for block in program.blocks for name, var in block.vars.items() if var.persistable})
    return frozenset(found)
