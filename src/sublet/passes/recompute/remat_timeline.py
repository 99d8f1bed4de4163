"""The live bytes at each moment of a rematerialized program, computed from a `RematProblem` without writing the graph.

The numbers equal the numbers of `passes/live_bytes.py` for the graph with the clones. A search evaluates the timeline
often. A moment is a position in the sequence of nodes and clones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sublet.passes.recompute.remat_problem import Clones, RematProblem


@dataclass(frozen=True)
class ContentLifetime:
    """The live range of a content of a block: from the definition to the last read.

    made     moment of the definition, -1 if live before the first node
    read     moments of the reads, in order
    kept     True if live after the last node
    """

    block: int
    made: int
    kept: bool
    read: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class RematTimeline:
    """The sequence of nodes and clones, and the live bytes at each moment.

    nodes              the node running
    slots              the position of the node or, for a clone, of the reader
    contents           every content of every block
    contents_by_block  by block, the numbers of the contents, in order
    live               live bytes
    seconds            total duration of the sequence
    """

    nodes: list[int]
    slots: list[int]
    contents: list[ContentLifetime]
    contents_by_block: list[list[int]]
    live: NDArray[np.int64]
    seconds: float

    @property
    def peak(self) -> int:
        """The peak of live bytes."""
        return int(self.live.max(initial=0))

    def content_seen(self, block: int, moment: int) -> ContentLifetime | None:
        """Return the content of the block seen by a reader at the moment, or None."""
        seen = None
        for number in self.contents_by_block[block]:
            if self.contents[number].made >= moment:
                break
            seen = self.contents[number]
        return seen


def remat_timeline(level: RematProblem, clones: Clones) -> RematTimeline:
    """Return the timeline of the program with clones. Clones, and originals of clones, without readers do not run."""
    nodes, slots = _schedule_clones(level, clones)
    removable = {j for j, _ in clones} | set(level.away)
    while True:
        lives, latest, reads, born = _content_lifetimes(level, nodes, slots)
        idle = _removable_moments(nodes, slots, removable, lives, born)
        if not idle:
            break
        kept = [moment for moment in range(len(nodes)) if moment not in idle]
        nodes, slots = [nodes[m] for m in kept], [slots[m] for m in kept]
    live = _live_bytes(level, nodes, slots, lives, reads, born)
    return RematTimeline(nodes, slots, lives, latest, live, sum(level.seconds[j] for j in nodes))


def _schedule_clones(level: RematProblem, clones: Clones) -> tuple[list[int], list[int]]:
    """Return the nodes in order of execution, and the slot of each."""
    before: dict[int, list[int]] = {}
    for j, r in sorted(clones):
        before.setdefault(r, []).append(j)
    nodes: list[int] = []
    slots: list[int] = []
    for r in range(len(level.names)):
        for j in before.get(r, ()):
            nodes.append(j)
            slots.append(r)
        nodes.append(r)
        slots.append(r)
    return nodes, slots


def _content_lifetimes(
    level: RematProblem, nodes: list[int], slots: list[int]
) -> tuple[list[ContentLifetime], list[list[int]], list[list[int]], list[list[int]]]:
    """Return all contents, the contents of each block, and the contents read and defined at each moment."""
    blocks = level.blocks
    lives: list[ContentLifetime] = []
    latest: list[list[int]] = [[] for _ in blocks.nbytes]
    made_at_all = {b for born in blocks.born for b in born}
    for b in range(len(blocks.nbytes)):
        if b not in made_at_all:
            latest[b].append(len(lives))
            lives.append(ContentLifetime(b, -1, b in blocks.kept))
    reads: list[list[int]] = []
    born: list[list[int]] = []
    for moment, (j, r) in enumerate(zip(nodes, slots, strict=True)):
        original = j == r
        read = [latest[b][-1] for b in (blocks.read[j] if original else level.cloned[j])]
        for number in read:
            lives[number].read.append(moment)
        made = []
        for b in blocks.born[j] if original else level.renewed[j]:
            made.append(len(lives))
            latest[b].append(len(lives))
            lives.append(ContentLifetime(b, moment, original and b in blocks.kept))
        reads.append(read)
        born.append(made)
    return lives, latest, reads, born


def _removable_moments(
    nodes: list[int], slots: list[int], several: set[int], lives: list[ContentLifetime], born: list[list[int]]
) -> set[int]:
    """Return the removable moments: every reader of the results, if any, is removable too."""
    idle: set[int] = set()
    for moment in range(len(nodes) - 1, -1, -1):
        if nodes[moment] in several and not any(
            lives[number].kept or any(m not in idle for m in lives[number].read) for number in born[moment]
        ):
            idle.add(moment)
    return idle


def _live_bytes(
    level: RematProblem,
    nodes: list[int],
    slots: list[int],
    lives: list[ContentLifetime],
    reads: list[list[int]],
    born: list[list[int]],
) -> NDArray[np.int64]:
    """Return the live bytes at each moment, computed like `LiveBlocks.curve`."""
    blocks, sizes = level.blocks, level.blocks.nbytes
    live = level.steady + blocks.bytes_at_start
    live_at = np.empty(len(nodes), np.int64)
    for moment, (j, r) in enumerate(zip(nodes, slots, strict=True)):
        original = j == r
        ending = [lives[n].block for n in reads[moment] if lives[n].read[-1] == moment and not lives[n].kept]
        made = sum(sizes[lives[n].block] for n in born[moment]) + (0 if original else level.wasted[j])
        saved = blocks.bytes_overwritten(j, ending)
        if original:
            for block, target in blocks.update_in_place[j]:
                at = next((n for n in reads[moment] if lives[n].block == target), None)
                made -= sizes[block] if at is not None and lives[at].read[-1] == moment else 0
        live_at[moment] = live + made - saved + blocks.extra[j]
        unread = sum(sizes[lives[n].block] for n in born[moment] if not lives[n].read and not lives[n].kept)
        live += made - sum(sizes[b] for b in ending) - unread - (0 if original else level.wasted[j])
    return live_at
