"""Every layout of a small graph that the facts of its ops allow, and running it there in poison.

A layout says which values are bytes of which others: an output that is a view of an input or takes its bytes over, an
input that lies in its place inside an output, and several of these at once. The checker has the last word on which are
right, so that whatever it accepts must run right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from sublet.checker import check_bytes
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.recipe import with_scratch
from sublet.ops import lookup
from sublet.plan import ARENA, MemoryPlan
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.kernel_choice import Kernels, bind_node, choose_kernels, scratch_of
from sublet.runtime.memory import ExecutableMemory, ValuePlaces, aligned_bytes
from sublet.runtime.poison import GUARD, POISON
from tests.support.plans import plan_at

ALIGNMENTS = (1, 2, 4, 8, 16, 64)
ALL_SUBSETS = 4
"""Of so many facts every subset is a layout; of more, those of one, of two, and all."""

Fact = tuple[Value, Value, int]
"""The first value lies so many bytes after where the second starts."""

Layout = tuple[Fact, ...]


def facts(graph: Graph) -> list[Fact]:
    """What the planner may do with the values of a graph without loops and branches."""
    found: list[Fact] = []
    for node in graph.nodes:
        op = lookup(node.op)
        found += [(out, x, offset) for x, out, offset in _pairs(node, op.views(node))]
        found += [(x, out, offset) for x, out, offset in _pairs(node, op.parts(node))]
        found += [(out, x, 0) for x, out, _ in _pairs(node, op.inplace(node))]
    return list(dict.fromkeys(found))


def _pairs(node: Node, shares: Any) -> Iterator[tuple[Value, Value, int]]:
    for share in shares:
        source, output = node.inputs[share.input], node.outputs[share.output]
        if source is not None and output is not None:
            yield source, output, share.offset


def layouts(graph: Graph) -> Iterator[Layout]:
    """No fact, each fact, and several of them at once."""
    known = facts(graph)
    sizes = range(len(known) + 1) if len(known) <= ALL_SUBSETS else (0, 1, 2, len(known))
    for size in sizes:
        yield from combinations(known, size)


def some(found: Sequence[Any], most: int) -> list[Any]:
    """The first, the last, and so many more in between; all, if there are no more."""
    between = random.Random(len(found)).sample(found[1:-1], min(most, max(0, len(found) - 2)))
    return [*found[:1], *between, *found[1:][-1:]]


def planned(graph: Graph, layout: Layout, alignment: int) -> MemoryPlan | None:
    """The plan that puts values as the layout says, at multiples of `alignment` and of no larger power of two.

    None where the layout contradicts itself or is not aligned.
    """
    groups = _grouped(graph, layout)
    if groups is None:
        return None
    places: dict[str, int] = {}
    end = 0
    for group in groups:
        lowest = min(group.values())
        if any((offset - lowest) % alignment for offset in group.values()):
            return None
        begin = -(-end // (2 * alignment)) * 2 * alignment + alignment
        places |= {value.name: begin + offset - lowest for value, offset in group.items()}
        end = begin + max(offset + value.nbytes for value, offset in group.items()) - lowest
    return plan_at(graph, places, end, alignment)


def legal(graph: Graph, layout: Layout) -> bool:
    """Whether the checker accepts the layout. Nothing shared, and one fact of one node by itself, it must accept."""
    plan = planned(graph, layout, 1)
    found = () if plan is None else check_bytes(graph, plan.schedule, plan)
    plain = len(layout) < 2 and len(graph.nodes) == 1 and plan is not None
    if plain and not any(parent in graph.weights for _, parent, _ in layout):
        assert not found, f"{layout}: {found}"
    return plan is not None and not found


def _grouped(graph: Graph, layout: Layout) -> list[dict[Value, int]] | None:
    """The values that the facts tie together, with their distances; None if there are two between two values."""
    groups = {value: {value: 0} for value in graph.values() if value.plannable}
    for child, parent, offset in layout:
        own, other = groups[child], groups[parent]
        shift = other[parent] + offset - own[child]
        if own is other:
            if shift:
                return None
            continue
        for value in own:
            other[value] = own[value] + shift
            groups[value] = other
    return list({id(group): group for group in groups.values()}.values())


def alike(graph: Graph, view: Callable[[Value, Value], Node]) -> Iterator[tuple[Graph, dict[str, str]]]:
    """The graph of one node as it is; then with two inputs that are the same value, or one a view of the other.

    They are two that one output may overwrite: else no layout has the output over both. `view` makes a node whose
    output is its input. Also which input each that is gone was like.
    """
    yield graph, {}
    (node,) = graph.nodes
    over = list(_pairs(node, lookup(node.op).inplace(node)))
    overwritten = {value: {out for source, out, _ in over if source == value} for value in graph.inputs}
    for kept, gone in combinations(graph.inputs, 2):
        if kept.spec == gone.spec and overwritten[kept] & overwritten[gone]:
            like = {gone.name: kept.name}
            inputs = tuple(value for value in graph.inputs if value != gone)
            same = tuple(kept if value == gone else value for value in node.inputs)
            yield replace(graph, inputs=inputs, nodes=(replace(node, inputs=same),)), like
            yield replace(graph, inputs=inputs, nodes=(view(kept, gone), node)), like


def prepared(graph: Graph, backends: Sequence[Backend], constants: Mapping[Value, Array]) -> tuple[Graph, Kernels]:
    """The graph with the scratch memory of its kernels, and these."""
    kernels = choose_kernels(graph, backends, constants)
    return with_scratch(graph, dict(scratch_of(kernels))), kernels


def run(graph: Graph, kernels: Kernels, plan: MemoryPlan, given: Mapping[Value, Array]) -> dict[Value, Array]:
    """What the outputs are when all else is poison. Raises AssertionError where a node touches what is not its own.

    What lies in its place already is not the node's own: it must be as it was.
    """
    memory = ExecutableMemory(graph, plan)
    block = aligned_bytes(plan.arena_bytes + 2 * GUARD, GUARD)
    block[:] = POISON
    memory.adopt_bytes(ARENA, block[GUARD : GUARD + plan.arena_bytes], ARENA, 1)
    places = memory.places_at()
    for value, content in given.items():
        places.bytes_of(value)[...] = content.reshape(-1).view(np.uint8)
    for node in graph.nodes:
        call, before = bind_node(node, places, kernels), block.copy()
        call()
        changed = block != before
        for value in node.defs:
            begin = GUARD + places.region(value).offset
            changed[begin : begin + value.nbytes] = False
        for source, output, offset in _in_place(node, places):
            begin = GUARD + places.region(output).offset + offset
            changed[begin : begin + source.nbytes] = (
                block[begin : begin + source.nbytes] != before[begin : begin + source.nbytes]
            )
        assert not changed.any(), (
            f"{node.name} wrote byte {int(changed.argmax()) - GUARD} of the arena, which is not its own"
        )
    return {value: np.array(places.array(value)) for value in dict.fromkeys(graph.outputs)}


def _in_place(node: Node, places: ValuePlaces) -> Iterator[tuple[Value, Value, int]]:
    """The (input, output, where in it) of parts that lie in their place; and of views, the output as a part."""
    op = lookup(node.op)
    for part, whole, offset in _pairs(node, op.parts(node)):
        if part.nbytes and places.region(part).offset == places.region(whole).offset + offset:
            yield part, whole, offset
    for base, view, offset in _pairs(node, op.views(node)):
        if view.nbytes and places.region(view).offset == places.region(base).offset + offset:
            yield view, view, 0
