"""Live bytes of a level in any order of the nodes, as modelled by the compiled search.

The unit is the atom: bytes with a common definition and a common last use. A view consists of atoms of the base, a
concatenation of the atoms of the operands; neither takes bytes. A result takes over the atoms of an operand at the last
use, where the op allows in-place execution. If `is_bound`, no plan of any order has fewer bytes at the peak; otherwise
the model is an estimate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup, present_shares
from sublet.passes.ordering import _ordering
from sublet.passes.reordering import DataFlow


class RootRange(NamedTuple):
    """The bytes from `begin` to `end` of the value defined as `root`."""

    root: Value
    begin: int
    end: int


Content = tuple[RootRange, ...]
"""The bytes of a value, in order."""


@dataclass(frozen=True)
class AtomModel:
    """The atoms and nodes of a level, by position.

    size      bytes of each atom
    kept      True for atoms live after the last node
    maker     node defining each atom, -1 for atoms live before the first node
    read      atoms read by each node
    inplace   by node: (bytes of a result, the atoms of each operand the result may overwrite)
    extra     bytes needed by each node inside the sub-graphs of the node
    before    predecessors of each node
    is_bound  True if no plan of any order has fewer live bytes: the level has no control flow and no updates, and no
              operand has to be copied into a concatenation, where two copies might share bytes
    """

    size: tuple[int, ...]
    kept: tuple[bool, ...]
    maker: tuple[int, ...]
    read: tuple[tuple[int, ...], ...]
    inplace: tuple[tuple[tuple[int, tuple[tuple[int, ...], ...]], ...], ...]
    extra: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    is_bound: bool

    def compiled_problem(self) -> _ordering.Problem:
        """Return the model as a problem for the compiled search."""
        return _ordering.problem(self.size, self.kept, self.maker, self.before, self.read, self.inplace, self.extra)


def atom_model_of(
    graph: Graph,
    nodes: Sequence[Node],
    wanted: Iterable[Value],
    extra: Mapping[str, int],
    flow: DataFlow,
    outside: Collection[Value],
    *,
    in_all: bool = True,
) -> AtomModel:
    """Return the model of some nodes of a level. The `wanted` values are live after the last node.

    Values in `outside` have no bytes, nor has an update written in place by the last reader of the target. An operand
    lies in place in all concatenations reading the operand or, with `in_all` False, in the first only, like in most
    plans.
    """
    home = {*outside, *_updates_in_place(graph, nodes, flow)}
    reads = [reads_inside(node) for node in nodes]
    read_at_all = set().union(*reads)
    contents: dict[Value, Content] = {}
    maker: dict[Value, int] = {}
    for value in (*graph.inputs, *graph.weights):
        if value in read_at_all:
            contents[value], maker[value] = (RootRange(value, 0, value.nbytes),), -1
    wholes: dict[Value, set[RootRange]] | None = None if in_all else {}
    for i, node in enumerate(nodes):
        _define_results(node, contents, home, wholes)
        maker.update((segment.root, i) for v in node.defs for segment in contents[v] if segment.root in node.defs)
    kept = {*wanted, *graph.weights, *graph.updated_values}
    proves = not graph.updates and not any(node.subgraphs or _needs_copy(node, contents) for node in nodes)
    return _divide_into_atoms(nodes, reads, contents, maker, kept, home, extra, flow, proves)


def _needs_copy(node: Node, contents: Mapping[Value, Content]) -> bool:
    """True if a concatenation has to copy an operand, or holds one operand twice."""
    rest: dict[Value, int] = {}
    for whole, part, _ in present_shares(node, lookup(node.op).parts(node)):
        rest[whole] = rest.get(whole, whole.nbytes) - part.nbytes
    own = {whole: sum(end - begin for root, begin, end in contents[whole] if root == whole) for whole in rest}
    return any(own[whole] > left for whole, left in rest.items())


def _updates_in_place(graph: Graph, nodes: Sequence[Node], flow: DataFlow) -> set[Value]:
    """Return the updates written into the memory of the target: no node after the update reads the target."""
    targets = {source: target for target, source in graph.updates}
    readers: dict[Value, list[int]] = {}
    for i, node in enumerate(nodes):
        for value in reads_inside(node) & {*targets.values()}:
            readers.setdefault(value, []).append(i)
    in_place = set()
    for i, node in enumerate(nodes):
        for made, read, _ in present_shares(node, () if node.subgraphs else lookup(node.op).inplace(node)):
            if targets.get(made) == read and all(k == i or k in flow.before[i] for k in readers[read]):
                in_place.add(made)
    return in_place


def _define_results(
    node: Node,
    contents: dict[Value, Content],
    outside: Collection[Value],
    wholes: dict[Value, set[RootRange]] | None,
) -> None:
    """Add the contents of the results of a node to `contents`.

    If `wholes` is a dict, each operand lies in place in a single concatenation: `wholes` maps a value to the content of
    the concatenation. If None, an operand lies in place in every concatenation.
    """
    placed: dict[Value, list[tuple[int, Content]]] = {}
    if not node.subgraphs:
        op = lookup(node.op)
        for output, base, offset in present_shares(node, op.views(node)):
            if base in contents and output not in placed:
                placed[output] = [(0, sub_content(contents[base], offset, offset + output.nbytes))]
        for output, part, offset in present_shares(node, op.parts(node)):
            if part not in contents or any(s.root in outside for s in contents[part]):
                continue
            if wholes is None or all(wholes.get(s.root, set()) <= set(contents[part]) for s in contents[part]):
                placed.setdefault(output, []).append((offset, contents[part]))
    for value in node.defs:
        contents[value] = _compose_content(value, placed.get(value, ()))
        if wholes is not None and len(placed.get(value, ())) > 1:
            wholes.update((segment.root, set(contents[value])) for segment in contents[value])


def sub_content(content: Content, begin: int, end: int) -> Content:
    """Return the bytes from `begin` to `end` of a content."""
    ranges, position = [], 0
    for root, first, last in content:
        low, high = max(begin - position, 0), min(end - position, last - first)
        if low < high:
            ranges.append(RootRange(root, first + low, first + high))
        position += last - first
    return tuple(ranges)


def _compose_content(value: Value, pieces: Sequence[tuple[int, Content]]) -> Content:
    """Return the content of a value composed of the contents in `pieces`, at offsets.

    The remaining bytes are new bytes of the value, and so are bytes occurring twice.
    """
    ranges: list[RootRange] = []
    end = own_bytes = 0
    for offset, content in [*sorted(pieces, key=lambda pair: pair[0]), (value.nbytes, ())]:
        nbytes = sum(segment.end - segment.begin for segment in content)
        if offset < end or offset + nbytes > value.nbytes or share_bytes(ranges, content):
            continue
        if end < offset:
            ranges.append(RootRange(value, own_bytes, own_bytes + offset - end))
            own_bytes += offset - end
        ranges += content
        end = offset + nbytes
    return tuple(ranges)


def share_bytes(some: Iterable[RootRange], others: Content) -> bool:
    """True if two contents share bytes."""
    return any(a.root == b.root and a.begin < b.end and b.begin < a.end for a in some for b in others)


def _divide_into_atoms(
    nodes: Sequence[Node],
    reads: Sequence[set[Value]],
    contents: Mapping[Value, Content],
    maker: Mapping[Value, int],
    outputs: Collection[Value],
    outside: Collection[Value],
    extra: Mapping[str, int],
    flow: DataFlow,
    proves: bool,
) -> AtomModel:
    """Return the model, with every value divided into atoms at the boundaries of its parts."""
    bounds: dict[Value, set[int]] = {}
    for content in contents.values():
        for root, begin, end in content:
            bounds.setdefault(root, set()).update((begin, end))
    cuts = {root: sorted(edges) for root, edges in bounds.items()}
    first, count = {}, 0
    for root, edges in cuts.items():
        first[root] = count
        count += len(edges) - 1

    def atoms_of(value: Value) -> list[int]:
        """Return the numbers of the atoms of a value."""
        numbers: list[int] = []
        for root, begin, end in contents.get(value, ()):
            start = first[root]
            numbers += range(start + bisect_left(cuts[root], begin), start + bisect_left(cuts[root], end))
        return numbers

    size = [0 if root in outside else end - begin for root, edges in cuts.items() for begin, end in pairwise(edges)]
    made_by = [maker[root] for root, edges in cuts.items() for _ in edges[1:]]
    stays = [False] * count
    for value in outputs:
        for a in atoms_of(value):
            stays[a] = True
    read = [
        tuple(sorted({a for value in edges for a in atoms_of(value) if made_by[a] != i}))
        for i, edges in enumerate(reads)
    ]
    over = [_inplace_slots(node, contents, atoms_of) for node in nodes]
    more = tuple(extra.get(node.name, 0) for node in nodes)
    return AtomModel(tuple(size), tuple(stays), tuple(made_by), tuple(read), tuple(over), more, flow.before, proves)


def _inplace_slots(
    node: Node, contents: Mapping[Value, Content], atoms: Callable[[Value], list[int]]
) -> tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]:
    """Return the operands each result may overwrite, for results with new bytes only."""
    slots: dict[Value, list[tuple[int, ...]]] = {}
    for made, read, _ in present_shares(node, () if node.subgraphs else lookup(node.op).inplace(node)):
        if contents[made] == (RootRange(made, 0, made.nbytes),) and made.nbytes and read in contents:
            slots.setdefault(made, []).append(tuple(atoms(read)))
    return tuple((made.nbytes, tuple(dict.fromkeys(operands))) for made, operands in slots.items())
