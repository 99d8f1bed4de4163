"""Residual copies of loops, branches and updates, with the reasons; and the possible bindings of renamed values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sublet.analysis.alias_planner import AliasPlanner
from sublet.analysis.byte_provenance import row_bytes
from sublet.analysis.options import MIN_ROW_BYTES, Options
from sublet.analysis.program_facts import ProgramFacts
from sublet.analysis.sharing import BufferAssignment
from sublet.base.errors import PlanError
from sublet.ir.dataflow import assignments, slices_and_rows
from sublet.ir.graph import Graph, Value, While
from sublet.plan import RUN, UPDATE, CopiedMove, Edge, MemoryPlan
from sublet.plan.schedule import next_storages

MAX_LISTED_MOVES = 20
"""Moves listed in an error message."""


def find_residual_copies(graph: Graph, assignment: BufferAssignment, aliases: AliasPlanner) -> tuple[CopiedMove, ...]:
    """Return the moves copying bytes in any body version; every move of the program appears once.

    The destination of an update into swapped memory is the value owning the memory after the swap.
    """
    value_after_swap = {other: name for name, other in next_storages(aliases.swap_cycles).items()}
    bound = aliases.storages
    parameters = {p: f for node in _loops_of(graph) for p, f in zip(node.parameters, node.finals, strict=True)}
    tied = {*bound, *(parameter for parameter, final in parameters.items() if final in bound)}
    residual: dict[tuple[Edge, Value, Value], CopiedMove] = {}
    moves = [
        *_residual_carries(assignment, tied, aliases.options),
        *_residual_slices(graph, assignment, aliases.options),
    ]
    for edge, source, to, nbytes, why in moves:
        if nbytes:
            name = value_after_swap.get(to.name, to.name) if edge.kind == UPDATE else to.name
            residual.setdefault((edge, source, to), CopiedMove(edge, source.name, name, nbytes, why))
    return tuple(residual.values())


def require_no_copies(moves: tuple[CopiedMove, ...]) -> None:
    """Raise PlanError if `moves` is not empty; the message lists up to MAX_LISTED_MOVES moves."""
    if not moves:
        return
    lines = [
        f"  {m.edge}: {m.nbytes:,} bytes from %{m.source} to %{m.destination}: {m.why}"
        for m in moves[:MAX_LISTED_MOVES]
    ]
    if len(moves) > MAX_LISTED_MOVES:
        lines.append(f"  and {len(moves) - MAX_LISTED_MOVES} more")
    raise PlanError("\n".join(["copies are forbidden, but loops, branches or updates would move bytes:", *lines]))


def copied_parts(graph: Graph, plan: MemoryPlan) -> Iterator[CopiedMove]:
    """Yield the channel slices and concat operands of a batch that nodes copy, with the reasons.

    The nodes are those of the root level. `plan` is a plan of `graph` in a single stream.
    """
    facts, regions = ProgramFacts(graph).row_facts, {place.value: place.region for place in plan.placements}
    contiguous = dict.fromkeys((*graph.inputs, *graph.weights, *graph.outputs), "is an input, weight or output")
    for node in graph.nodes:
        known = facts.get(node.name)
        taken = (known.strided_inputs, known.strided_outputs) if known else (frozenset[int](), frozenset[int]())
        for operands, strided in zip((node.inputs, node.outputs), taken, strict=True):
            needed = (value for i, value in enumerate(operands) if value is not None and i not in strided)
            contiguous.update(dict.fromkeys(needed, f"must be contiguous for node {node.name}"))
    for node in graph.nodes:
        known = facts.get(node.name)
        views = [(node.outputs[s.output], node.inputs[s.input], s.offset) for s in known.views] if known else []
        parts = [(node.inputs[s.input], node.outputs[s.output], s.offset) for s in known.parts] if known else []
        for part, whole, offset in (*views, *parts):
            if known is None or part is None or whole is None or part.name not in regions or whole.name not in regions:
                continue
            ends = [[regions[value.name].row(i, known.rows) for value in (part, whole)] for i in (0, known.rows - 1)]
            if all(one.storage == other.storage and one.offset == other.offset + offset for one, other in ends):
                continue
            why = f"%{part.name} {contiguous[part]}" if part in contiguous else _why_rows_are_copied(part, whole, plan)
            source, to = (whole, part) if part in node.outputs else (part, whole)
            yield CopiedMove(Edge(RUN, node.name), source.name, to.name, part.nbytes, why)


def _why_rows_are_copied(part: Value, whole: Value, plan: MemoryPlan) -> str:
    """Return the reason why the rows of a part, in which all kernels take strides, do not lie in the whole."""
    if row_bytes(part) < MIN_ROW_BYTES:
        return f"a row has fewer than {MIN_ROW_BYTES:,} bytes, and a copy costs less"
    if row_bytes(whole) % plan.alignment:
        return f"rows of {row_bytes(whole):,} bytes are no multiple of the alignment, {plan.alignment}"
    return f"calls a row would cost more, the arena would grow, or %{part.name} shares other bytes"


def possible_bindings(graph: Graph, pointers: Collection[Value]) -> dict[Value, tuple[str, ...]]:
    """Map every renamed value to the names of the stored values it may be bound to, in order of assignment."""
    assigned = {to: sources for node in graph.walk() for to, sources in assignments(node)}
    bindings: dict[Value, dict[Value, None]] = {pointer: {} for pointer in assigned if pointer in pointers}
    users: dict[Value, list[Value]] = {}
    for pointer, direct in bindings.items():
        for source in assigned[pointer]:
            if source in pointers:
                users.setdefault(source, []).append(pointer)
            else:
                direct[source] = None
    for source in (todo := list(bindings)):
        for pointer in users.get(source, ()):
            if not bindings[source].keys() <= bindings[pointer].keys():
                bindings[pointer] |= bindings[source]
                todo.append(pointer)
    return {pointer: tuple(target.name for target in bound) for pointer, bound in bindings.items()}


ResidualCopies = Iterator[tuple[Edge, Value, Value, int, str]]


def _residual_carries(assignment: BufferAssignment, bound: Collection[Value], options: Options) -> ResidualCopies:
    """Yield the loop-carried values and branch results that are copied.

    Each item is (edge, source, destination, bytes, reason).
    """
    instances = assignment.flow.unrolling.versions
    for point, source, to in assignment.residual_copies:
        # a value bound to any of several versions is no version itself
        start, end = (instances[value].base if value in instances else value for value in (source, to))
        if not options.share:
            why = "sharing is off (share=False)"
        elif point.kind == UPDATE:
            why = _why_update_copies(assignment, source, to)
        elif end in bound:
            why = f"%{end.name}, or the final value of %{end.name}, lies in the caller's memory"
        else:
            why = assignment.renaming_obstacles.get(end) or "its source is overwritten while it is live"
        yield point.plan_point.edge, start, end, to.nbytes, why


def _why_update_copies(assignment: BufferAssignment, source: Value, target: Value) -> str:
    """Return the reason why the source of an update was not written straight into the target."""
    first, homes = (
        assignment.flow.points[0],
        {m.value: buffer.bound_storage for buffer in assignment.buffers for m in buffer.members},
    )
    if source in first.defs:
        return f"%{source.name} has its own bytes before the run"
    if source not in homes:
        return f"%{source.name} may be bound to one of several values with other bytes"
    if homes[source] and homes[target] and homes[source] != homes[target]:
        return f"%{source.name} and %{target.name} are bound to different memory"
    return f"%{target.name} is live when %{source.name} is computed, or %{source.name} shares other bytes"


def _residual_slices(graph: Graph, assignment: BufferAssignment, options: Options) -> ResidualCopies:
    """Yield the slices of sequences and rows of stacked outputs copied in some body version.

    Each item is (edge, source, destination, bytes, reason).
    """
    in_place: dict[tuple[str, str, Value, Value], bool] = {}
    instances = assignment.flow.unrolling.versions
    for window in assignment.flow.unrolling.loop_views:
        part, whole = (instances[value].base for value in (window.value, window.whole))
        key = (window.loop.name, window.kind, part, whole)
        in_place[key] = in_place.get(key, True) and (window.value, window.whole) in assignment.placed_loop_views
    for node in _loops_of(graph):
        for kind, part, whole, axis, _ in slices_and_rows(node):
            key = (node.name, kind, part, whole)
            if in_place.get(key, False):
                continue
            facts = assignment.flow.unrolling.facts
            why = facts.why_not_loop_view(part, whole, axis, options.alignment, options.min_view_bytes)
            if not options.share:
                why = "sharing is off (share=False)"
            elif not why:
                why = _why_not_in_place(kind, part, whole, pointing=key not in in_place)
            edge, what = ("fetch", "a slice is copied") if kind == "slice" else ("next", "a row is copied")
            source, to = (whole, part) if kind == "slice" else (part, whole)
            yield Edge(edge, node.name), source, to, part.nbytes, f"{what}: {why}"


def _why_not_in_place(kind: str, part: Value, whole: Value, *, pointing: bool) -> str:
    """Return the reason why a slice or row is copied although a view is possible; `pointing`: a renamed value."""
    if pointing:
        return f"%{part.name} or %{whole.name} is renamed"
    if kind == "slice":
        return f"a loop or branch passes %{part.name} on"
    return f"%{part.name} is passed on, or not computed in the iteration, or shares other bytes"


def _loops_of(graph: Graph) -> Iterable[While]:
    """Return the loops of a graph, nested loops included."""
    return (node for node in graph.walk() if isinstance(node, While))
