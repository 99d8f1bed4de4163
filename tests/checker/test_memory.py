"""The abstract memory against the simplest one: a dict from address to byte."""

from __future__ import annotations

import random

from sublet.checker.memory import AbstractMemory, TokenRange, meet_memories
from sublet.plan import Region

Cells = dict[int, tuple[str, int]]
SIZE = 40


def random_memory(rng: random.Random, steps: int) -> tuple[AbstractMemory, Cells]:
    memory = AbstractMemory()
    cells: Cells = {}
    for _ in range(steps):
        mutate(rng, memory, cells)
    return memory, cells


def mutate(rng: random.Random, memory: AbstractMemory, cells: Cells) -> None:
    begin = address = rng.randrange(SIZE)
    pieces = [TokenRange(rng.choice("abcd"), rng.randrange(4), rng.randint(1, 6)) for _ in range(rng.randint(1, 3))]
    memory.write("arena", begin, tuple(pieces), "a test")
    for token, start, length in pieces:
        for i in range(length):
            cells[address] = (token, start + i)
            address += 1


def known(memory: AbstractMemory) -> Cells:
    """What the memory holds, byte by byte; checks that its segments are sorted and disjoint."""
    cells: Cells = {}
    end = 0
    for segment in memory.tracks.get("arena", []):
        assert end <= segment.begin < segment.end
        end = segment.end
        if segment.token is not None:
            cells.update((at, (segment.token, at - segment.base)) for at in range(segment.begin, segment.end))
    return cells


def test_writing_agrees_with_single_bytes() -> None:
    rng = random.Random(1)
    for _ in range(300):
        memory, cells = random_memory(rng, rng.randint(0, 20))
        assert known(memory) == cells
        assert memory.known_bytes() == len(cells)


def test_meeting_keeps_the_bytes_that_agree() -> None:
    rng = random.Random(2)
    for _ in range(300):
        one, one_cells = random_memory(rng, rng.randint(0, 15))
        other, other_cells = one.copy(), dict(one_cells)
        for _ in range(rng.randint(0, 5)):
            mutate(rng, other, other_cells)
        both = dict(one_cells.items() & other_cells.items())
        assert known(meet_memories(one, other)) == both == known(meet_memories(other, one))
        assert known(one) == one_cells


def test_meeting_long_tracks_keeps_their_common_ends() -> None:
    one = AbstractMemory()
    for i in range(1000):
        one.write("arena", 4 * i, (TokenRange(f"v{i}", 0, 4),), "a test")
    other = one.copy()
    other.write("arena", 1998, (TokenRange("new", 0, 8),), "a test")
    both = meet_memories(one, other)
    assert both.known_bytes() == 4000 - 8
    assert {at for at, _ in known(one).items() - known(both).items()} == set(range(1998, 2006))


def test_mismatches_tell_what_is_there_instead() -> None:
    memory = AbstractMemory()
    memory.write("arena", 8, (TokenRange("x", 0, 8),), "node x")
    memory.write("arena", 12, (TokenRange("y", 2, 2),), "node y")
    assert list(memory.mismatches("arena", 8, (TokenRange("x", 0, 4),))) == []
    wrong = list(memory.mismatches("arena", 6, (TokenRange("x", 0, 10),)))
    assert [(s.begin, s.end, s.token, s.begin - s.base) for s in wrong if s.token] == [
        (8, 12, "x", 0),
        (12, 14, "y", 2),
        (14, 16, "x", 6),
    ]
    assert (wrong[0].begin, wrong[0].end, wrong[0].token) == (6, 8, None)


def test_forgetting_the_middle_leaves_both_ends() -> None:
    memory = AbstractMemory()
    memory.write("arena", 0, (TokenRange("a", 0, 16),), "node a")
    memory.forget(Region("arena", 4, 8), "somebody")
    assert list(memory.mismatches("arena", 0, (TokenRange("a", 0, 4),))) == []
    assert list(memory.mismatches("arena", 12, (TokenRange("a", 12, 4),))) == []
    (wrong,) = memory.mismatches("arena", 0, (TokenRange("a", 0, 16),))
    assert (wrong.begin, wrong.end, wrong.token, wrong.writer) == (4, 12, None, "somebody")
    memory.forget(Region("arena", 16, 8), "nobody wrote here")
    assert memory.known_bytes() == 8


def test_a_copy_is_not_changed_with_what_it_was_copied_from() -> None:
    memory = AbstractMemory()
    memory.write("arena", 0, (TokenRange("a", 0, 8),), "a test")
    copy = memory.copy()
    memory.write("arena", 2, (TokenRange("b", 0, 4),), "a test")
    copy.write("arena", 6, (TokenRange("c", 0, 2),), "a test")
    assert [(one.begin, one.end, one.token) for one in memory.tracks["arena"]] == [
        (0, 2, "a"),
        (2, 6, "b"),
        (6, 8, "a"),
    ]
    assert [(one.begin, one.end, one.token) for one in copy.tracks["arena"]] == [(0, 6, "a"), (6, 8, "c")]
