"""The check of a packing, held against one pair after another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.base.errors import PackingError
from sublet.packing import Buffer, Companion, Packing, Problem, check_packing
from sublet.packing.validate import MAX_OVERLAPS, _colliding_pairs, find_violations
from tests.packing.random_problems import conflict_pairs, problems


@given(problems(), st.lists(st.integers(0, 30), min_size=6, max_size=6))
@settings(max_examples=300, deadline=None)
def test_finds_exactly_the_overlaps(problem: Problem, offsets: list[int]) -> None:
    offsets = offsets[: len(problem.buffers)]
    packing = Packing(tuple(offsets), 100, "test")
    overlaps = set()
    for i, j in conflict_pairs(problem):
        a, b = problem.buffers[i], problem.buffers[j]
        if a.size and b.size and offsets[i] < offsets[j] + b.size and offsets[j] < offsets[i] + a.size:
            overlaps.add((f"buffer {a.id}", b.id))
    found = [finding for finding in find_violations(problem, packing) if finding.rule == "overlap"]
    assert len(found) == len(overlaps)
    assert {(f.where, f.what.split("buffer ")[1].split(" ")[0]) for f in found} == overlaps


def test_tells_all_findings() -> None:
    buffers = (Buffer("a", 8, 0, 4, 4), Buffer("b", 8, 3, 5), Buffer("c", 8, 5, 6))
    problem = Problem(buffers, companions=(Companion(0, 2),))
    with pytest.raises(PackingError) as error:
        check_packing(problem, Packing((2, 9, -1), 16, "test"))
    assert [finding.rule for finding in error.value.findings] == [
        "misaligned",
        "outside",
        "outside",
        "companions",
        "overlap",
    ]
    assert "buffer a: bytes 2-10 overlap buffer b at 9-17" in str(error.value)


def test_one_offset_a_buffer() -> None:
    problem = Problem((Buffer("a", 8, 0, 4),))
    with pytest.raises(PackingError, match="2 offsets for 1 buffers"):
        check_packing(problem, Packing((0, 8), 16, "test"))


class CountedBuffers(tuple[Buffer, ...]):
    """Buffers that count their reads by position."""

    reads = 0

    def __getitem__(self, position: Any) -> Any:
        self.reads += 1
        return super().__getitem__(position)


def test_overlaps_of_reused_addresses_are_found_in_linear_steps() -> None:
    """A buffer that is never freed lies below all later buffers of its address; all other addresses are reused too."""
    reads = []
    for count in (1_000, 2_000, 4_000):
        buffers = CountedBuffers(
            Buffer(str(i), 8 << i % 3, i, count if i == count - 30 else i + 2) for i in range(count)
        )
        offsets = [64 * (i % 3) for i in range(count)]
        problem = cast(Problem, SimpleNamespace(buffers=buffers))
        pairs = sorted(_colliding_pairs(problem, offsets))
        assert pairs == [(count - 30, i) for i in range(count - 27, count, 3)]
        reads.append(buffers.reads)
    assert reads[2] - reads[1] <= 2.1 * (reads[1] - reads[0])


def test_a_hopeless_packing_does_not_list_millions() -> None:
    problem = Problem(tuple(Buffer(str(i), 8, 0, 4) for i in range(2_000)))
    findings = find_violations(problem, Packing((0,) * 2_000, 8, "test"))
    assert len(findings) == MAX_OVERLAPS
    assert len({str(finding) for finding in findings}) == MAX_OVERLAPS
