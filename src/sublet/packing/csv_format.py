"""Reader and writer of MiniMalloc's CSV: one buffer per row, columns in any order.

    id,lower,upper,size    required; text, then integers
    alignment, accesses    1 if missing
    gaps                   half-open ranges without need: "5-7 9-12"
    pinned                 the required offset
    companion, distance    the id of another buffer; this buffer lies `distance` bytes (default 0) above it
    may_overlap            ids of buffers without a conflict, separated by spaces, quoted as in CSV
    offset                 the packing
    region                 the memory region of the packing; a `hint` is ignored

Ids are compared as written. An empty cell counts as missing. Lifetimes are half-open by default;
idealloc reads the same columns in three ways, see `Lifetimes`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from sublet.base.errors import ProblemError
from sublet.base.files import read_text, write
from sublet.packing.normalize import groups_of
from sublet.packing.problem import MAX_ALIGNMENT, MAX_SIZE, MAX_TIME, Buffer, Companion, Packing, Problem

REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "gaps", "pinned", "companion", "distance", "may_overlap", "accesses", "offset")
IGNORED = ("hint", "region")
FROM_FILE = "file"  # strategy name of a packing read from a file
ONE_REGION = "arena"  # name of the memory without a region


class Lifetimes(StrEnum):
    """The ends of live ranges, lower and upper: a buffer is live there (in) or not (ex)."""

    half_open = "in-ex"
    open = "ex-ex"
    closed = "in-in"

    @property
    def begin_shift(self) -> int:
        """The shift from `lower` to the begin of the half-open live range."""
        return int(self is Lifetimes.open)

    @property
    def end_shift(self) -> int:
        """The shift from `upper` to the end of the half-open live range."""
        return int(self is Lifetimes.closed)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a file, with its line number for error messages."""

    path: Path
    line: int
    cells: dict[str, str]

    def error(self, column: str, what: str) -> ProblemError:
        return ProblemError(f"{self.path}:{self.line}: column {column}: {what}")

    def integer(self, column: str) -> int:
        text = self.cells[column].strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
            raise self.error(column, f"{text[:40]!r} is not an integer")
        return int(text)

    def has(self, column: str) -> bool:
        return bool(self.cells.get(column, "").strip())


def read_csv(path: str | Path, lifetimes: Lifetimes = Lifetimes.half_open) -> tuple[Problem, Packing | None]:
    """Return the problem in a file, and the packing if every row has an offset and none a region.

    Raises ProblemError naming file, line and column. The packing is not checked.
    """
    problem, places = read_placed(path, lifetimes)
    offsets = [place[1] for place in places if place is not None and place[0] == ONE_REGION]
    if not places or len(offsets) < len(places):
        return problem, None
    ends = (at + buffer.size for at, buffer in zip(offsets, problem.buffers, strict=True) if buffer.size)
    return problem, Packing(tuple(offsets), max(ends, default=0), FROM_FILE)


def read_placed(
    path: str | Path, lifetimes: Lifetimes = Lifetimes.half_open
) -> tuple[Problem, tuple[tuple[str, int] | None, ...]]:
    """Return the problem in a file, and (region, offset) of each row, None for a row without an offset.

    Raises ProblemError naming file, line and column. The offsets are not checked.
    """
    path = Path(path)
    rows, buffers, places, lines = [], [], list[tuple[str, int] | None](), dict[str, int]()
    for row in _rows(path, read_text(path, ProblemError)):
        buffer = _buffer(row, lifetimes)
        if buffer.id in lines:
            raise row.error("id", f"{buffer.id!r} occurs before, on line {lines[buffer.id]}")
        lines[buffer.id] = row.line
        rows.append(row)
        buffers.append(buffer)
        places.append(None)
        if row.has("offset"):
            offset = row.integer("offset")
            if offset < 0:
                raise row.error("offset", f"{offset} is negative")
            places[-1] = (row.cells["region"].strip() if row.has("region") else ONE_REGION, offset)
    positions = {buffer.id: position for position, buffer in enumerate(buffers)}
    companions = tuple(_companions(rows, positions))
    problem = Problem(tuple(buffers), None, companions, path.stem, _may_overlap(rows, positions))
    return problem, tuple(places)


def _rows(path: Path, text: str) -> Iterator[_Row]:
    if "\0" in text:
        raise ProblemError(f"{path}: not a text file (it contains zero bytes)")
    if not text.strip():
        raise ProblemError(f"{path}: the file is empty; a header {','.join(REQUIRED)} and rows are needed")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = _columns(path, reader.line_num, cells)
            elif len(cells) != len(columns):
                raise ProblemError(f"{path}:{reader.line_num}: {len(cells)} cells under {len(columns)} columns")
            else:
                yield _Row(path, reader.line_num, dict(zip(columns, cells, strict=True)))
    except csv.Error as error:
        raise ProblemError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _columns(path: Path, line: int, header: list[str]) -> list[str]:
    columns = [cell.strip().lower() for cell in header]
    known = (*REQUIRED, *OPTIONAL, *IGNORED)
    for index, column in enumerate(columns):
        if column not in known:
            raise ProblemError(f"{path}:{line}: column {column[:40]!r} is unknown; known are {', '.join(known)}")
        if column in columns[:index]:
            raise ProblemError(f"{path}:{line}: column {column} occurs twice")
    for column in REQUIRED:
        if column not in columns:
            raise ProblemError(f"{path}:{line}: column {column} is missing; {', '.join(REQUIRED)} are needed")
    return columns


def _buffer(row: _Row, lifetimes: Lifetimes) -> Buffer:
    if not row.has("id"):
        raise row.error("id", "is empty")
    lower, upper = _live_range(row, lifetimes)
    alignment = row.integer("alignment") if row.has("alignment") else 1
    accesses = row.integer("accesses") if row.has("accesses") else 1
    pinned = row.integer("pinned") if row.has("pinned") else None
    size = row.integer("size")
    if not 0 <= size <= MAX_SIZE:
        raise row.error("size", f"{size} must be between 0 and 2^62")
    if not 1 <= alignment <= MAX_ALIGNMENT:
        raise row.error("alignment", f"{alignment} must be between 1 and 2^32")
    gaps = _gaps(row)
    try:
        return Buffer(row.cells["id"], size, lower, upper, alignment, gaps, pinned, accesses)
    except ProblemError as error:
        column = next((name for name in ("pinned", "accesses") if f": {name} " in str(error)), "gaps")
        raise row.error(column, str(error)) from error


def _live_range(row: _Row, lifetimes: Lifetimes) -> tuple[int, int]:
    """Return the half-open live range of a buffer."""
    lower, upper = row.integer("lower"), row.integer("upper")
    begin, end = lower + lifetimes.begin_shift, upper + lifetimes.end_shift
    if begin >= end:
        room = {Lifetimes.open: "at least 2 less than", Lifetimes.closed: "at most"}.get(lifetimes, "less than")
        raise row.error("upper", f"lower {lower} must be {room} upper {upper}")
    if begin < -MAX_TIME or end > MAX_TIME:
        raise row.error("lower" if begin < -MAX_TIME else "upper", "times must lie within +-2^53")
    return begin, end


def _gaps(row: _Row) -> tuple[tuple[int, int], ...]:
    """Return the gaps parsed from "5-7 9-12", sorted, with touching ranges merged."""
    gaps: list[tuple[int, int]] = []
    for text in row.cells.get("gaps", "").split():
        match = re.fullmatch(r"(-?[0-9]{1,30})-(-?[0-9]{1,30})", text)
        if match is None:
            raise row.error("gaps", f"{text[:40]!r} is not a range such as 5-7")
        gaps.append((int(match[1]), int(match[2])))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(gaps):
        if merged and merged[-1][1] == begin:
            begin = merged.pop()[0]
        merged.append((begin, end))
    return tuple(merged)


def _companions(rows: list[_Row], positions: dict[str, int]) -> Iterator[Companion]:
    for position, row in enumerate(rows):
        if row.has("companion"):
            other = positions.get(row.cells["companion"])
            if other is None or other == position:
                raise row.error("companion", f"{row.cells['companion'][:40]!r} is not the id of another buffer")
            yield Companion(other, position, row.integer("distance") if row.has("distance") else 0)
        elif row.has("distance"):
            raise row.error("distance", "needs a companion")


def _may_overlap(rows: list[_Row], positions: dict[str, int]) -> tuple[tuple[int, int], ...]:
    pairs = set()
    for position, row in enumerate(rows):
        for name in _ids_in_cell(row) if row.has("may_overlap") else ():
            other = positions.get(name)
            if other is None or other == position:
                raise row.error("may_overlap", f"{name[:40]!r} is not the id of another buffer")
            pairs.add((min(position, other), max(position, other)))
    return tuple(sorted(pairs))


def _ids_in_cell(row: _Row) -> list[str]:
    """Return the ids in one cell: a line of CSV with spaces in place of commas."""
    cell = io.StringIO(row.cells["may_overlap"].strip(" "), newline="")
    try:
        return [name for names in csv.reader(cell, delimiter=" ", strict=True) for name in names if name]
    except csv.Error as error:
        raise row.error("may_overlap", f"not ids separated by spaces: {error}") from error


def write_csv(
    problem: Problem,
    packing: Packing | Sequence[int] | None,
    path_or_file: str | Path | TextIO,
    *,
    lifetimes: Lifetimes = Lifetimes.half_open,
    regions: Sequence[str] | None = None,
) -> None:
    """Write a problem to a file, atomically; with offsets if `packing` (or a list of offsets) is given.

    `regions` names the memory region of the offset of each buffer. A precedence does not fit into the columns: the
    rows carry the lifetimes of its serial order, for which the packing is valid too. Raises ProblemError when the
    file cannot be written.
    """
    offsets = packing.offsets if isinstance(packing, Packing) else packing
    text = _to_text(problem, offsets, lifetimes, regions)
    if isinstance(path_or_file, str | Path):
        write(path_or_file, text, ProblemError)
    else:
        path_or_file.write(text)


def _to_text(
    problem: Problem, offsets: Sequence[int] | None, lifetimes: Lifetimes, regions: Sequence[str] | None
) -> str:
    rows = _cells(problem, offsets, lifetimes, regions)
    usual = {"alignment": 1, "accesses": 1}
    columns = [*REQUIRED]
    columns += [
        column
        for column in (*OPTIONAL, "region")
        if (column == "offset" and offsets is not None)
        or any(row.get(column, "") not in ("", usual.get(column)) for row in rows)
    ]
    text = io.StringIO()
    # csv quotes a carriage return only when quoting every text
    if any("\r" in buffer.id for buffer in problem.buffers):
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    else:
        writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(column, "") for column in columns] for row in rows)
    return text.getvalue()


def _cells(
    problem: Problem, offsets: Sequence[int] | None, lifetimes: Lifetimes, regions: Sequence[str] | None
) -> list[dict[str, str | int]]:
    """Return the cells of every row by column; missing cells are empty."""
    rows: list[dict[str, str | int]] = []
    for buffer in problem.buffers:
        row: dict[str, str | int] = {"id": buffer.id, "size": buffer.size}
        row |= {"lower": buffer.lower - lifetimes.begin_shift, "upper": buffer.upper - lifetimes.end_shift}
        row |= {"alignment": buffer.alignment, "accesses": buffer.accesses}
        row["gaps"] = " ".join(f"{begin}-{end}" for begin, end in buffer.gaps)
        if buffer.pinned is not None:
            row["pinned"] = buffer.pinned
        rows.append(row)
    for group in groups_of(problem):
        (leader, base), *others = group.members
        for member, distance in others:
            rows[member] |= {"companion": problem.buffers[leader].id, "distance": distance - base or ""}
    allowed: dict[int, list[str]] = {}
    for pair in sorted((max(pair), min(pair)) for pair in problem.may_overlap):
        allowed.setdefault(pair[0], []).append(problem.buffers[pair[1]].id)
    for position, names in allowed.items():
        cell = io.StringIO()
        csv.writer(cell, delimiter=" ", lineterminator="", quoting=csv.QUOTE_ALL).writerow(names)
        rows[position]["may_overlap"] = cell.getvalue()
    for position, row in enumerate(rows):
        row |= {} if offsets is None else {"offset": offsets[position]}
        row |= {} if regions is None else {"region": regions[position]}
    return rows
