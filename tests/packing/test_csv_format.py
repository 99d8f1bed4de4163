"""CSV files in and out, and what is wrong with bad ones."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.base.errors import ProblemError
from sublet.packing import (
    STRATEGIES,
    Buffer,
    Companion,
    Lifetimes,
    Packing,
    Problem,
    pack,
    read_csv,
    read_problem,
    write_csv,
)
from tests.packing.random_problems import buffers

HERE = Path(__file__).parent / "problems"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "problem.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reads_minimalloc(tmp_path: Path) -> None:
    problem, packing = read_csv(HERE / "A.1048576.csv")
    assert (len(problem.buffers), packing, problem.name) == (154, None, "A.1048576")
    assert problem.buffers[0] == Buffer("0", 656_384, 995_328, 1_000_448)


def test_all_columns_in_any_order(tmp_path: Path) -> None:
    header = "\ufeffoffset, gaps ,size,id,Upper,lower,alignment,hint\r\n"
    text = header + '64,9-12 5-7 7-8,8,"a, b",20,1,64,3\r\n\r\n0,,4,c,3,-2,,\r\n'
    problem, packing = read_csv(written(tmp_path, text))
    assert problem.buffers == (Buffer("a, b", 8, 1, 20, 64, ((5, 8), (9, 12))), Buffer("c", 4, -2, 3))
    assert packing == Packing((64, 0), 72, "file")


def test_offsets_of_some_rows_are_no_packing(tmp_path: Path) -> None:
    assert read_csv(written(tmp_path, "id,lower,upper,size,offset\na,0,1,8,0\nb,0,1,8,\n"))[1] is None
    assert read_csv(written(tmp_path, "id,lower,upper,size\n"))[0].buffers == ()


TIES = "id,lower,upper,size,pinned,companion,distance,may_overlap,accesses\n"
HEADER = "id,lower,upper,size,alignment,gaps,offset\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "problem.csv: the file is empty; a header id,lower,upper,size and rows are needed"),
        (" \n\n", "the file is empty"),
        ("id,lower,size\na,0,1\n", ":1: column upper is missing"),
        ("id,lower,upper,size,aligment\n", ":1: column 'aligment' is unknown; known are id, lower"),
        ("id,lower,upper,size,size\n", ":1: column size occurs twice"),
        (HEADER + "a,0,1,8\n", ":2: 4 cells under 7 columns"),
        (HEADER + "a,0,1,8,,,\na,1,2,8,,,\n", ":3: column id: 'a' occurs before, on line 2"),
        (HEADER + " ,0,1,8,,,\n", ":2: column id: is empty"),
        (HEADER + "a,zero,1,8,,,\n", ":2: column lower: 'zero' is not an integer"),
        (HEADER + "a,0,1.5,8,,,\n", ":2: column upper: '1.5' is not an integer"),
        (HEADER + "a,0,1,,,,\n", ":2: column size: '' is not an integer"),
        (HEADER + "a,0,1,1_0,,,\n", ":2: column size: '1_0' is not an integer"),
        (HEADER + f"a,0,1,{'9' * 5000},,,\n", ":2: column size: '9999.* is not an integer"),
        (HEADER + "a,3,3,8,,,\n", ":2: column upper: lower 3 must be less than upper 3"),
        (HEADER + "a,0,1,-8,,,\n", ":2: column size: -8 must be between 0 and 2\\^62"),
        (HEADER + f"a,0,1,{(1 << 62) + 1},,,\n", ":2: column size: 4611686018427387905 must be between 0 and 2\\^62"),
        (HEADER + "a,0,1,8,0,,\n", ":2: column alignment: 0 must be between 1 and 2\\^32"),
        (HEADER + "a,0,1,8,4294967297,,\n", ":2: column alignment: 4294967297 must be between 1 and 2\\^32"),
        (HEADER + f"a,0,{1 << 60},8,,,\n", ":2: column upper: times must lie within"),
        (HEADER + "a,0,9,8,,0-3,\n", ":2: column gaps: buffer a: gap 0-3 must lie inside"),
        (HEADER + "a,0,9,8,,5-3,\n", ":2: column gaps: buffer a: gap 5-3"),
        (HEADER + "a,0,9,8,,3..5,\n", ":2: column gaps: '3..5' is not a range such as 5-7"),
        (HEADER + "a,0,9,8,,,-4\n", ":2: column offset: -4 is negative"),
        (HEADER + '"a,0,1,8,,,\n', "not CSV"),
        (TIES + "a,0,1,8,-1,,,,\n", ":2: column pinned: buffer a: pinned -1 must be between 0"),
        (TIES + "a,0,1,8,x,,,,\n", ":2: column pinned: 'x' is not an integer"),
        (TIES + "a,0,1,8,,b,,,\n", ":2: column companion: 'b' is not the id of another buffer"),
        (TIES + "a,0,1,8,,a,,,\n", ":2: column companion: 'a' is not the id of another buffer"),
        (TIES + "a,0,1,8,,,4,,\n", ":2: column distance: needs a companion"),
        (TIES + "a,0,1,8,,,,a,\n", ":2: column may_overlap: 'a' is not the id of another buffer"),
        (TIES + "a,0,1,8,,,,c d,\n", ":2: column may_overlap: 'c' is not the id of another buffer"),
        (TIES + 'a,0,1,8,,,,"""c",\n', ":2: column may_overlap: not ids separated by spaces"),
        (TIES + "a,0,1,8,,,,,-2\n", ":2: column accesses: buffer a: accesses -2 must be between 0"),
        (HEADER.encode() + b"\xff\xfe,0,1,8,,,\n", "not a text file \\(byte 42 is not UTF-8\\)"),
        (HEADER + "a\0b,0,1,8,,,\n", "not a text file \\(it contains zero bytes\\)"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as error:
        read_csv(written(tmp_path, text))
    assert "problem.csv" in str(error.value)
    assert len(str(error.value)) < 300 + len(str(tmp_path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(ProblemError, match="cannot be read"):
            read_csv(path)
        with pytest.raises(ProblemError, match="cannot be read"):
            read_problem(path)


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), st.data()), max_size=4
    )
)
@settings(max_examples=40, deadline=None)
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, st.DataObject]]
) -> None:
    items = {}
    for index, (name, data) in enumerate(rows):
        made = data.draw(buffers(index, st.integers(0, 1 << 62), st.integers(1, 1 << 32)))
        pin = made.alignment * data.draw(st.integers(0, 99)) if data.draw(st.booleans()) else None
        accesses = data.draw(st.integers(0, 1 << 53))
        if name.strip():
            items[name] = Buffer(name, made.size, made.lower, made.upper, made.alignment, made.gaps, pin, accesses)
    packing = STRATEGIES["no_reuse"](Problem(tuple(replace(item, pinned=None) for item in items.values())))
    pairs = ((0, 1), (0, 2), (1, 2))[: max(0, 2 * len(items) - 3)]
    problem = Problem(tuple(items.values()), name="round", may_overlap=pairs)
    path = tmp_path_factory.mktemp("csv") / "round.csv"
    write_csv(problem, packing, path)
    again, offsets = read_csv(path)
    assert again == problem
    assert offsets is None if not items else offsets.offsets == packing.offsets
    write_csv(problem, None, path)
    assert read_csv(path) == (problem, None)


def test_writes_to_a_file_object_and_only_the_columns_in_use() -> None:
    out = io.StringIO()
    write_csv(Problem((Buffer("a", 8, 0, 4, gaps=((1, 2),)),)), None, out)
    assert out.getvalue() == "id,lower,upper,size,gaps\na,0,4,8,1-2\n"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path, "old")
    with pytest.raises(ProblemError, match="cannot be written"):
        write_csv(Problem((Buffer("\ud800", 8, 0, 4),)), None, path)
    with pytest.raises(ProblemError, match="cannot be written"):
        write_csv(Problem(()), None, tmp_path / "absent" / "out.csv")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("problem.csv", "old")]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    path = written(tmp_path, "old")
    (tmp_path / "link.csv").symlink_to(path)
    write_csv(Problem((Buffer("a", 8, 0, 4),)), None, tmp_path / "link.csv")
    assert path.read_text() == "id,lower,upper,size\na,0,4,8\n"


def test_the_kind_of_a_file_is_told_by_suffix_or_content(tmp_path: Path) -> None:
    source = HERE / "unit_while.15.json"
    (tmp_path / "a.txt").write_bytes(source.read_bytes())
    (tmp_path / "b.txt").write_bytes((HERE / "A.1048576.csv").read_bytes())
    assert len(read_problem(tmp_path / "a.txt").buffers) == 15
    assert len(read_problem(tmp_path / "b.txt").buffers) == 154


def test_ties_in_columns(tmp_path: Path) -> None:
    text = TIES + 'a,0,3,8,64,,,,\n"b c",0,3,4,,a,4,a,7\nd,1,2,4,,b c,-2,"""b c"" a",\ne,1,2,1,,,,,\n'
    problem, packing = read_csv(written(tmp_path, text))
    assert packing is None
    assert problem.buffers[0].pinned == 64
    assert [buffer.accesses for buffer in problem.buffers] == [1, 7, 1, 1]
    assert problem.companions == (Companion(0, 1, 4), Companion(1, 2, -2))
    assert problem.may_overlap == ((0, 1), (0, 2), (1, 2))
    offsets = pack(problem).packing.offsets
    assert offsets[:3] == (64, 68, 66)
    write_csv(problem, offsets, tmp_path / "out.csv", regions=["r"] * 4)
    again, packing = read_csv(tmp_path / "out.csv")
    assert packing is None, "offsets in regions are no packing of one arena"
    assert again.companions == (Companion(0, 1, 4), Companion(0, 2, 2))
    assert (again.buffers, again.may_overlap) == (problem.buffers, problem.may_overlap)


def test_lifetimes_are_read_and_written_in_three_ways(tmp_path: Path) -> None:
    path = written(tmp_path, "id,lower,upper,size\na,0,2,8\nb,1,3,8\nc,2,4,8\n")
    arenas = {}
    for lifetimes in Lifetimes:
        problem = read_problem(path, lifetimes)
        packing = pack(problem).packing
        arenas[str(lifetimes)] = packing.arena_bytes
        write_csv(problem, packing, tmp_path / "out.csv", lifetimes=lifetimes)
        assert [line.rpartition(",")[0] for line in (tmp_path / "out.csv").read_text().splitlines()] == (
            path.read_text().splitlines()
        )
        assert read_csv(tmp_path / "out.csv", lifetimes) == (
            replace(problem, name="out"),
            replace(packing, strategy="file"),
        )
    assert arenas == {"in-ex": 16, "ex-ex": 8, "in-in": 24}
    for lifetimes, life, wrong in (
        (Lifetimes.open, "0,1", "lower 0 must be at least 2 less than upper 1"),
        (Lifetimes.closed, "1,0", "lower 1 must be at most upper 0"),
    ):
        with pytest.raises(ProblemError, match=f":2: column upper: {wrong}"):
            read_csv(written(tmp_path, f"id,lower,upper,size\na,{life},8\n"), lifetimes)
    with pytest.raises(ProblemError, match="a partial order has no lifetimes"):
        read_problem(HERE / "unit_while.15.json", Lifetimes.closed)
