"""The bytes alive at each moment when some nodes are computed again, worked out from a `Level` alone.

The same as `passes/live_bytes.py` tells of the graph with these clones, without writing it: a search asks for it often.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sublet.passes.recompute.level import Clones, Level


@dataclass(frozen=True)
class Lives:
    """One content of a block: from the moment it is made to the last one it is read at.

    made     the moment, -1 when it is there before
    read     the moments at which it is read, in order
    kept     whether it is needed after all nodes
    """

    block: int
    made: int
    kept: bool
    read: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Timeline:
    """What runs at each moment, and what is alive then.

    nodes    the node that runs
    slots    the position that it runs at: its own, or for a clone that of the reader
    lives    every content of every block
    latest   by block the contents, in order
    live     the bytes alive
    seconds  of all that runs
    """

    nodes: list[int]
    slots: list[int]
    lives: list[Lives]
    latest: list[list[int]]
    live: NDArray[np.int64]
    seconds: float

    @property
    def peak(self) -> int:
        """The most bytes alive at once."""
        return int(self.live.max(initial=0))

    def content(self, block: int, moment: int) -> Lives | None:
        """The content of the block that a reader at the moment sees."""
        found = None
        for number in self.latest[block]:
            if self.lives[number].made >= moment:
                break
            found = self.lives[number]
        return found


def timeline(level: Level, clones: Clones) -> Timeline:
    """What runs when these nodes are computed again; clones, and what they replace, not when nobody reads them."""
    nodes, slots = _in_order(level, clones)
    several = {j for j, _ in clones} | set(level.away)
    while True:
        lives, latest, reads, born = _lives(level, nodes, slots)
        idle = _idle(nodes, slots, several, lives, born)
        if not idle:
            break
        kept = [moment for moment in range(len(nodes)) if moment not in idle]
        nodes, slots = [nodes[m] for m in kept], [slots[m] for m in kept]
    live = _live(level, nodes, slots, lives, reads, born)
    return Timeline(nodes, slots, lives, latest, live, sum(level.seconds[j] for j in nodes))


def _in_order(level: Level, clones: Clones) -> tuple[list[int], list[int]]:
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


def _lives(
    level: Level, nodes: list[int], slots: list[int]
) -> tuple[list[Lives], list[list[int]], list[list[int]], list[list[int]]]:
    """Every content of every block; which of them there are of a block, and each moment reads and makes."""
    blocks = level.blocks
    lives: list[Lives] = []
    latest: list[list[int]] = [[] for _ in blocks.nbytes]
    made_at_all = {b for born in blocks.born for b in born}
    for b in range(len(blocks.nbytes)):
        if b not in made_at_all:
            latest[b].append(len(lives))
            lives.append(Lives(b, -1, b in blocks.kept))
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
            lives.append(Lives(b, moment, original and b in blocks.kept))
        reads.append(read)
        born.append(made)
    return lives, latest, reads, born


def _idle(nodes: list[int], slots: list[int], several: set[int], lives: list[Lives], born: list[list[int]]) -> set[int]:
    """The moments that can be left out: nobody reads what they make, or only others that can be left out."""
    idle: set[int] = set()
    for moment in range(len(nodes) - 1, -1, -1):
        if nodes[moment] in several and not any(
            lives[number].kept or any(m not in idle for m in lives[number].read) for number in born[moment]
        ):
            idle.add(moment)
    return idle


def _live(
    level: Level,
    nodes: list[int],
    slots: list[int],
    lives: list[Lives],
    reads: list[list[int]],
    born: list[list[int]],
) -> NDArray[np.int64]:
    """The bytes alive at each moment, as `Blocks.curve` counts them."""
    blocks, sizes = level.blocks, level.blocks.nbytes
    live = level.steady + sum(sizes[block] for block in blocks.present)
    found = np.empty(len(nodes), np.int64)
    for moment, (j, r) in enumerate(zip(nodes, slots, strict=True)):
        original = j == r
        ending = [lives[n].block for n in reads[moment] if lives[n].read[-1] == moment and not lives[n].kept]
        made = sum(sizes[lives[n].block] for n in born[moment]) + (0 if original else level.wasted[j])
        saved, over = 0, blocks.over[j]
        if over and ending:
            saved = written_over(level, over, ending)
        if original:
            for block, target in blocks.at_home[j]:
                at = next((n for n in reads[moment] if lives[n].block == target), None)
                made -= sizes[block] if at is not None and lives[at].read[-1] == moment else 0
        found[moment] = live + made - saved + blocks.extra[j]
        unread = sum(sizes[lives[n].block] for n in born[moment] if not lives[n].read and not lives[n].kept)
        live += made - sum(sizes[b] for b in ending) - unread - (0 if original else level.wasted[j])
    return found


def written_over(level: Level, over: list[tuple[int, int]], ending: list[int]) -> int:
    """The bytes of what ends that a node with such pairs (made, read) writes its results over."""
    taken: set[int] = set()
    done: set[int] = set()
    saved = 0
    for made, source in over:
        part = level.blocks.nbytes[source] < level.blocks.nbytes[made]  # a whole has several
        if source in ending and source not in taken and (part or made not in done):
            taken.add(source)
            done.add(made)
            saved += level.blocks.nbytes[source]
    return saved
