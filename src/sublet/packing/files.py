"""Reading of packing problems from CSV or JSON files."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.base.files import parse_json, read_text
from sublet.packing.csv_format import Lifetimes, read_csv
from sublet.packing.problem import Buffer, Companion, Precedence, Problem

# Reader of problems with a partial order, as JSON: a graph of nodes, and the blocks of memory used by the nodes.
#
#     alignment    bytes                         deps    [from, to] pairs: from runs before to
#     order        nodes in one serial order     blocks  id, size, type, companion, head, tail
#     may_overlap  [id, id] pairs of blocks without a conflict (optional)
#
# `head` and `tail` list the nodes with the first and the last access to a block. Block a precedes block b when every
# node of a's tail runs before every node of b's head; the distance of a and b is the number of edges on the longest
# path between such nodes. Lifetimes are positions in `order`; nodes missing in `order` follow as early as the edges
# allow. `companion` is the id of a block with the same offset, or -1; with a `distance`, this block lies `distance`
# bytes above the companion. A block may also have `pinned`, the required offset, and `accesses` (see `Buffer`).
#
# Blocks of different memory kinds (`type`) never share bytes: the reader lets no block precede a block of another kind,
# so that the blocks conflict. One arena then holds every kind side by side, and its size is comparable with the sum of
# separate arenas.

MAX_NODES = 16_384  # the distances of all pairs are stored: 1 GiB at most
NO_COMPANION = -1


@dataclass(frozen=True, slots=True)
class _Block:
    """One entry of `blocks`, parsed."""

    id: str
    size: int
    kind: str
    companion: str
    distance: int
    pinned: int | None
    accesses: int
    head: list[int]
    tail: list[int]


class _ProblemReader:
    """Typed access to a parsed file; every error message names the file and the field."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, field: str, what: str) -> ProblemError:
        return ProblemError(f"{self.path}: {field}: {what}")

    def get(self, record: dict[str, Any], key: str, field: str) -> Any:
        if key not in record:
            raise self.error(field, "is missing")
        return record[key]

    def integer(self, value: Any, field: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, f"must be an integer, not {_clipped_repr(value)}")
        return value

    def name(self, value: Any, field: str) -> str:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.error(field, f"must be an integer or a text, not {_clipped_repr(value)}")
        return str(value)

    def array(self, value: Any, field: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.error(field, f"must be a list, not {_clipped_repr(value)}")
        return value

    def integers(self, value: Any, field: str) -> list[int]:
        return [self.integer(item, f"{field}[{index}]") for index, item in enumerate(self.array(value, field))]


def _clipped_repr(value: Any) -> str:
    return repr(value)[:40]


def read_json(path: str | Path) -> Problem:
    """Return the problem in a file; raises ProblemError naming the file and the wrong field."""
    path = Path(path)
    reader = _ProblemReader(path)
    document = _parse(reader)
    alignment = reader.integer(reader.get(document, "alignment", "alignment"), "alignment")
    blocks = _blocks(reader, document)
    order = reader.integers(reader.get(document, "order", "order"), "order")
    edges = _edges(reader, document)
    nodes = sorted({*order, *(node for edge in edges for node in edge), *(n for b in blocks for n in b.head + b.tail)})
    if len(nodes) > MAX_NODES or len(blocks) > MAX_NODES:
        raise reader.error("blocks", f"{len(nodes)} nodes and {len(blocks)} blocks; at most {MAX_NODES} can be read")
    rank = {node: index for index, node in enumerate(nodes)}
    successors: list[list[int]] = [[] for _ in nodes]
    for begin, end in edges:
        successors[rank[begin]].append(rank[end])
    run = _serial_order(reader, successors, [rank[node] for node in order])
    heads = [[rank[node] for node in block.head] for block in blocks]
    tails = [[rank[node] for node in block.tail] for block in blocks]
    node_distance = _node_distances(successors, run)
    _check_live_paths(reader, node_distance, heads, tails)
    distance = _block_distances(node_distance, heads, tails)
    kinds = np.array([block.kind for block in blocks], dtype=object)
    distance[kinds[:, None] != kinds[None, :]] = 0
    buffers = _buffers(reader, blocks, heads, tails, run, alignment)
    position = _positions(reader, blocks)
    companions = _companions(reader, blocks, position)
    may_overlap = _may_overlap(reader, document, position)
    return Problem(buffers, Precedence(distance), companions, path.stem, may_overlap)


def _parse(reader: _ProblemReader) -> dict[str, Any]:
    document = parse_json(read_text(reader.path, ProblemError), str(reader.path), ProblemError)
    if not isinstance(document, dict):
        raise ProblemError(f"{reader.path}: must be one JSON object, not {_clipped_repr(document)}")
    return document


def _blocks(reader: _ProblemReader, document: dict[str, Any]) -> list[_Block]:
    blocks = []
    for index, record in enumerate(reader.array(reader.get(document, "blocks", "blocks"), "blocks")):
        field = f"blocks[{index}]"
        if not isinstance(record, dict):
            raise reader.error(field, f"must be an object, not {_clipped_repr(record)}")
        head = reader.integers(reader.get(record, "head", f"{field}.head"), f"{field}.head")
        tail = reader.integers(reader.get(record, "tail", f"{field}.tail"), f"{field}.tail")
        for key, nodes in (("head", head), ("tail", tail)):
            if not nodes:
                raise reader.error(f"{field}.{key}", "is empty; it must name at least one node")
        blocks.append(
            _Block(
                id=reader.name(reader.get(record, "id", f"{field}.id"), f"{field}.id"),
                size=reader.integer(reader.get(record, "size", f"{field}.size"), f"{field}.size"),
                kind=reader.name(record.get("type", 0), f"{field}.type"),
                companion=reader.name(record.get("companion", NO_COMPANION), f"{field}.companion"),
                distance=reader.integer(record.get("distance", 0), f"{field}.distance"),
                pinned=reader.integer(record["pinned"], f"{field}.pinned") if "pinned" in record else None,
                accesses=reader.integer(record.get("accesses", 1), f"{field}.accesses"),
                head=head,
                tail=tail,
            )
        )
    return blocks


def _edges(reader: _ProblemReader, document: dict[str, Any]) -> list[tuple[int, int]]:
    edges = []
    for index, pair in enumerate(reader.array(reader.get(document, "deps", "deps"), "deps")):
        ends = reader.integers(pair, f"deps[{index}]")
        if len(ends) != 2:
            raise reader.error(f"deps[{index}]", f"must be a pair [from, to], not {_clipped_repr(pair)}")
        edges.append((ends[0], ends[1]))
    return edges


def _serial_order(reader: _ProblemReader, successors: list[list[int]], nodes: list[int]) -> list[int]:
    """Return a topological order of all nodes, as close to `nodes` as the edges allow."""
    if len(set(nodes)) != len(nodes):
        raise reader.error("order", "names a node twice")
    priority = {node: index for index, node in enumerate(nodes)}
    incoming = [0] * len(successors)
    for targets in successors:
        for target in targets:
            incoming[target] += 1
    ready = [(priority.get(node, len(nodes)), node) for node, count in enumerate(incoming) if count == 0]
    heapq.heapify(ready)
    run = []
    while ready:
        _, node = heapq.heappop(ready)
        run.append(node)
        for target in successors[node]:
            incoming[target] -= 1
            if incoming[target] == 0:
                heapq.heappush(ready, (priority.get(target, len(nodes)), target))
    if len(run) < len(successors):
        raise reader.error("deps", "the edges form a cycle")
    return run


def _node_distances(successors: list[list[int]], run: list[int]) -> NDArray[np.int32]:
    """Return `distance[b, a]`: the edges on the longest path from node a to node b, 0 without a path."""
    distance = np.zeros((len(run), len(run)), dtype=np.int32)
    for node in run:
        through = np.where(distance[node] > 0, distance[node] + 1, 0)
        through[node] = 1
        for target in successors[node]:
            np.maximum(distance[target], through, out=distance[target])
    return distance


def _check_live_paths(
    reader: _ProblemReader, nodes: NDArray[np.int32], heads: list[list[int]], tails: list[list[int]]
) -> None:
    """Raise ProblemError for a block without a path from head to tail: "precedes" would not be transitive."""
    for index, (head, tail) in enumerate(zip(heads, tails, strict=True)):
        if not set(head) & set(tail) and not nodes[np.ix_(tail, head)].any():
            raise reader.error(f"blocks[{index}]", "no path leads from a head node to a tail node")


def _block_distances(nodes: NDArray[np.int32], heads: list[list[int]], tails: list[list[int]]) -> NDArray[np.int32]:
    """Return `distance[a, b]` between blocks: 0 unless the whole tail of a runs before the whole head of b."""
    distance = np.zeros((len(heads), len(heads)), dtype=np.int32)
    if not heads:
        return distance
    nearest = np.stack([nodes[head].min(axis=0) for head in heads])  # block b x node: 0 unless before all its heads
    farthest = np.stack([nodes[head].max(axis=0) for head in heads])
    for block, tail in enumerate(tails):
        ordered = nearest[:, tail].min(axis=1) > 0
        distance[block] = np.where(ordered, farthest[:, tail].max(axis=1), 0)
    return distance


def _buffers(
    reader: _ProblemReader,
    blocks: list[_Block],
    heads: list[list[int]],
    tails: list[list[int]],
    run: list[int],
    alignment: int,
) -> tuple[Buffer, ...]:
    time = {node: index for index, node in enumerate(run)}
    buffers = []
    for index, (block, head, tail) in enumerate(zip(blocks, heads, tails, strict=True)):
        lower, upper = min(time[node] for node in head), max(time[node] for node in tail) + 1
        try:
            buffer = Buffer(block.id, block.size, lower, upper, alignment, (), block.pinned, block.accesses)
            buffers.append(buffer)
        except ProblemError as error:
            raise reader.error(f"blocks[{index}]", str(error)) from error
    return tuple(buffers)


def _positions(reader: _ProblemReader, blocks: list[_Block]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for index, block in enumerate(blocks):
        if block.id in positions:
            raise reader.error(f"blocks[{index}].id", f"{block.id!r} is the id of blocks[{positions[block.id]}] too")
        positions[block.id] = index
    return positions


def _companions(reader: _ProblemReader, blocks: list[_Block], positions: dict[str, int]) -> tuple[Companion, ...]:
    companions = set()
    for index, block in enumerate(blocks):
        if block.companion == str(NO_COMPANION):
            continue
        if block.companion not in positions or block.companion == block.id:
            raise reader.error(f"blocks[{index}].companion", f"{block.companion!r} is not the id of another block")
        other = positions[block.companion]
        forwards = Companion(other, index, block.distance)
        companions.add(forwards if other < index else Companion(index, other, -block.distance))
    return tuple(sorted(companions))


def _may_overlap(
    reader: _ProblemReader, document: dict[str, Any], positions: dict[str, int]
) -> tuple[tuple[int, int], ...]:
    pairs = set()
    for index, pair in enumerate(reader.array(document.get("may_overlap", []), "may_overlap")):
        field = f"may_overlap[{index}]"
        names = [reader.name(name, field) for name in reader.array(pair, field)]
        if len(names) != 2 or names[0] == names[1] or not all(name in positions for name in names):
            raise reader.error(field, f"must be the ids of two blocks, not {_clipped_repr(pair)}")
        first, second = sorted(positions[name] for name in names)
        pairs.add((first, second))
    return tuple(sorted(pairs))


def read_problem(path: str | Path, lifetimes: Lifetimes = Lifetimes.half_open) -> Problem:
    """Read a CSV or JSON problem; the suffix selects the format, else the first character.

    Raises ProblemError with the position of the mistake. Offsets in a CSV are dropped; `read_csv` keeps offsets.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".json" or (suffix != ".csv" and read_text(path, ProblemError).lstrip().startswith("{")):
        if lifetimes is not Lifetimes.half_open:
            raise ProblemError(f"{path}: a problem with a partial order has no lifetimes to be {lifetimes}")
        return read_json(path)
    return read_csv(path, lifetimes)[0]
