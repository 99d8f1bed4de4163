"""The rematerialization problem: the root level of a program as numbers, with nodes, blocks of bytes, and seconds.

Blocks are the blocks of `passes/live_bytes.py`: a view shares the bytes of the base. Values outside of the arena have 0
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sublet.ir.dataflow import producer_positions, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup, present_shares
from sublet.passes.live_bytes import LiveBlocks, blocks_of
from sublet.passes.recompute.rematerialize import (
    is_offload,
    latest_clone_positions,
    offload_pair,
    offloaded_values,
    outputs_not_renewed,
    values_read_by_clone,
)
from sublet.passes.reordering import reorder_levels

Clones = frozenset[tuple[int, int]]
"""Pairs (node, position of the reader): recompute the node right before the reader."""

NO_CLONES: Clones = frozenset()


@dataclass(frozen=True)
class RematProblem:
    """The nodes of a root level, in order, and the blocks; both identified by position.

    blocks   estimated blocks: sizes, definitions, reads and in-place pairs
    cloned   blocks read by a clone of each node
    renewed  blocks redefined by a clone of each node, for later readers
    wasted   bytes of blocks defined by a clone without a reader
    views    nodes naming bytes of a block defined by the node
    latest   last node before which a clone of the node may stand
    seconds  duration of a run of each node
    away     by block, the node offloading the block to slow memory, -1 for none; runs only if the block is reloaded
    steady   bytes in the arena throughout
    """

    names: tuple[str, ...]
    blocks: LiveBlocks
    cloned: tuple[tuple[int, ...], ...]
    renewed: tuple[tuple[int, ...], ...]
    wasted: tuple[int, ...]
    views: tuple[tuple[int, ...], ...]
    latest: tuple[int, ...]
    seconds: tuple[float, ...]
    away: tuple[int, ...]
    steady: int

    @cached_property
    def maker(self) -> dict[int, int]:
        """The node defining each block, without blocks live before the first node."""
        return {b: j for j, born in enumerate(self.blocks.born) for b in born}

    def named_pairs(self, clones: Clones) -> tuple[tuple[str, str], ...]:
        """Return the clones as pairs of names, in order of execution, with the views between clones and readers."""
        pairs = {(k, r) for j, r in clones for k in (j, *self.views[j]) if k < r}
        return tuple((self.names[j], self.names[r]) for j, r in sorted(pairs, key=lambda pair: (pair[1], pair[0])))


def remat_problem_of(
    graph: Graph, seconds: Mapping[str, float], *, io_bound: bool, weights_bound: bool
) -> RematProblem:
    """Return the problem of the root level of a graph. `seconds` maps the name of each node to its duration."""
    extra = _subgraph_bytes(graph)
    blocks = blocks_of(graph, graph.nodes, results(graph), extra)
    block = blocks.block_of
    if io_bound:
        for value in (*graph.inputs, *graph.outputs):
            if value in block:
                blocks.nbytes[block[value]] = 0
    for value in (*graph.weights, *offloaded_values(graph)):
        if value in block:
            blocks.nbytes[block[value]] = 0
    _overlay_concat_parts(graph.nodes, blocks)
    made_at = producer_positions(graph.nodes)
    closed = {**_zero_stepwise_updates(graph, blocks, made_at), **_zero_pieced_updates(graph, blocks, made_at)}
    views: list[list[int]] = [[] for _ in graph.nodes]
    maker = {b: j for j, born in enumerate(blocks.born) for b in born}
    for j, node in enumerate(graph.nodes):
        for value in node.defs:
            if maker.get(block[value], j) != j:
                views[maker[block[value]]].append(j)
    for j, node in enumerate(graph.nodes):
        if is_offload(node):
            views[j] = [k for k in views[maker[block[offload_pair(node)[0]]]] if k > j]
    cloned = [_blocks_read_by_clone(node, block) for node in graph.nodes]
    latest = list(latest_clone_positions(graph))
    for j, viewing in enumerate(views):
        latest[j] = min([latest[j], *(latest[k] for k in viewing)])
        latest[j] = min([latest[j], *(closed[b] for b in cloned[j] if b in closed)])
    away = [-1] * len(blocks.nbytes)
    for j, node in enumerate(graph.nodes):
        if is_offload(node):
            away[block[offload_pair(node)[0]]] = j
    moved = [{block[value] for value in outputs_not_renewed(node)} for node in graph.nodes]
    return RematProblem(
        tuple(node.name for node in graph.nodes),
        blocks,
        tuple(cloned),
        tuple(_renewed_blocks(*each, block) for each in zip(graph.nodes, blocks.born, moved, strict=True)),
        tuple(sum(blocks.nbytes[b] for b in out) for out in moved),
        tuple(map(tuple, views)),
        tuple(latest),
        tuple(seconds[node.name] for node in graph.nodes),
        tuple(away),
        0 if weights_bound else sum(weight.nbytes for weight in graph.weights),
    )


def _renewed_blocks(node: Node, born: Sequence[int], moved: set[int], block: Mapping[Value, int]) -> tuple[int, ...]:
    """Return the blocks redefined by a clone of the node."""
    return (block[offload_pair(node)[0]],) if is_offload(node) else tuple(b for b in born if b not in moved)


def _overlay_concat_parts(nodes: Sequence[Node], blocks: LiveBlocks) -> None:
    """Let each concatenation take over the bytes of operands computed in place, by adding in-place pairs."""
    for node, over in zip(nodes, blocks.inplace, strict=True):
        if not node.subgraphs:
            for share in lookup(node.op).parts(node):
                whole, part = node.outputs[share.output], node.inputs[share.input]
                if whole in blocks.block_of and part in blocks.block_of:
                    pair = blocks.block_of[whole], blocks.block_of[part]
                    if 0 < blocks.nbytes[pair[1]] <= blocks.nbytes[pair[0]] and pair[1] not in blocks.kept:
                        over.append(pair)


def _zero_pieced_updates(graph: Graph, blocks: LiveBlocks, maker: dict[Value, int]) -> dict[int, int]:
    """Give updates 0 bytes if written, part by part, over views of the updated value.

    Returns, by block of the updated value, the first overwriting node: no clone reading the block may stand after the
    node.
    """
    closed: dict[int, int] = {}
    for target, source in graph.updates:
        joining = maker.get(source)
        if joining is None or target not in blocks.block_of or blocks.nbytes[blocks.block_of[target]]:
            continue
        whole, home = graph.nodes[joining], blocks.block_of[target]
        parts = [whole.inputs[share.input] for share in lookup(whole.op).parts(whole)] if not whole.subgraphs else []
        if parts and all(
            part in maker and _may_write_over(graph.nodes[maker[part]], part, home, blocks) for part in parts
        ):
            for value in (source, *parts):
                if value is not None and blocks.block_of[value] != home:
                    blocks.nbytes[blocks.block_of[value]] = 0
            closed[home] = min(maker[part] for part in parts if part is not None)
    return closed


def _zero_stepwise_updates(graph: Graph, blocks: LiveBlocks, maker: Mapping[Value, int]) -> dict[int, int]:
    """Give each step towards an update 0 bytes if each overwrites the step before, and the first the updated value.

    Returns, by overwritten block, the overwriting node: no clone reading the block may stand after the node.
    """
    closed: dict[int, int] = {}
    for target, source in graph.updates:
        if target in blocks.block_of and not blocks.nbytes[blocks.block_of[target]]:
            steps = _inplace_chain(graph.nodes, maker, blocks, target, source)
            for before, node, after in steps if len(steps) > 1 else ():  # `update_in_place` covers a single step
                blocks.nbytes[blocks.block_of[after]] = 0
                closed[blocks.block_of[before]] = node
    return closed


def _inplace_chain(
    nodes: Sequence[Node], maker: Mapping[Value, int], blocks: LiveBlocks, target: Value, source: Value
) -> list[tuple[Value, int, Value]]:
    """Return the chain of in-place nodes from `target` to `source`, or [] if no chain exists.

    Each entry is (operand with the last use at the node, position of the node, result overwriting the operand). The
    chain is in backward order, from `source`.
    """
    chain: list[tuple[Value, int, Value]] = []
    after = source
    while after != target:
        j = maker.get(after)
        if j is None or nodes[j].subgraphs:
            return []
        pairs = present_shares(nodes[j], lookup(nodes[j].op).inplace(nodes[j]))
        operands = [
            v for output, v, _ in pairs if output == after and v.nbytes == after.nbytes and v in blocks.block_of
        ]
        last = [v for v in operands if blocks.readers[blocks.block_of[v]][-1:] == [j]]
        if len(last) != 1 or (last[0] != target and len(blocks.readers[blocks.block_of[last[0]]]) > 1):
            return []
        chain.append((last[0], j, after))
        after = last[0]
    return chain


def _may_write_over(node: Node, part: Value | None, home: int, blocks: LiveBlocks) -> bool:
    """True if the node may write `part` over bytes of the block `home`."""
    if node.subgraphs:
        return False
    pairs = present_shares(node, lookup(node.op).inplace(node))
    return any(output == part and blocks.block_of.get(operand) == home for output, operand, _ in pairs)


def _blocks_read_by_clone(node: Node, block: Mapping[Value, int]) -> tuple[int, ...]:
    """Return the blocks read by a clone of the node."""
    read = node.uses if node.subgraphs else [v for v in (*node.uses, *node.defs) if v in values_read_by_clone(node)]
    return tuple(dict.fromkeys(block[value] for value in read if value in block))


def _subgraph_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes needed inside loops and branches besides the results, by name of the node."""
    bytes_by_node: dict[str, int] = {}

    def as_given(
        level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
    ) -> tuple[tuple[Node, ...], int]:
        bytes_by_node.update(extra)
        return tuple(nodes), blocks_of(level, nodes, wanted, extra).peak(range(len(nodes)))[0]

    choose: Callable[..., tuple[tuple[Node, ...], int]] = as_given
    reorder_levels(graph, choose)
    return bytes_by_node
