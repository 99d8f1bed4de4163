"""MiniMalloc's CSV: one buffer a row, in any order of columns.

    id,lower,upper,size[,alignment][,gaps][,offset]
    conv1,0,3,4096,64,1-2,0

Lifetimes are half-open; `gaps` are ranges without need, written "5-7 9-12". The columns in brackets may
be missing; a `hint` column is ignored. Ids are text, compared as written.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sublet.errors import ProblemError
from sublet.files import read_text, write
from sublet.packing.problem import MAX_ALIGNMENT, MAX_SIZE, MAX_TIME, Buffer, Packing, Problem

REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "gaps", "offset")
IGNORED = ("hint",)
FROM_FILE = "file"  # the strategy of a packing that was read


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file, and how to complain about it."""

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


def read_csv(path: str | Path) -> tuple[Problem, Packing | None]:
    """The problem in a file, and the packing if every row has an offset.

    Raises ProblemError naming file, line and column. The packing is not checked.
    """
    path = Path(path)
    buffers, offsets, lines = [], [], dict[str, int]()
    for row in _rows(path, read_text(path, ProblemError)):
        buffer = _buffer(row)
        if buffer.id in lines:
            raise row.error("id", f"{buffer.id!r} was given before, on line {lines[buffer.id]}")
        lines[buffer.id] = row.line
        buffers.append(buffer)
        if row.has("offset"):
            offsets.append(row.integer("offset"))
            if offsets[-1] < 0:
                raise row.error("offset", f"{offsets[-1]} is negative")
    problem = Problem(tuple(buffers), name=path.stem)
    if not buffers or len(offsets) < len(buffers):
        return problem, None
    arena_bytes = max(offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True))
    return problem, Packing(tuple(offsets), arena_bytes, FROM_FILE)


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
            raise ProblemError(f"{path}:{line}: column {column} is given twice")
    for column in REQUIRED:
        if column not in columns:
            raise ProblemError(f"{path}:{line}: column {column} is missing; {', '.join(REQUIRED)} are needed")
    return columns


def _buffer(row: _Row) -> Buffer:
    if not row.has("id"):
        raise row.error("id", "is empty")
    lower, upper = row.integer("lower"), row.integer("upper")
    if lower >= upper:
        raise row.error("upper", f"lower {lower} must be less than upper {upper}")
    alignment = row.integer("alignment") if row.has("alignment") else 1
    size = row.integer("size")
    if not 0 <= size <= MAX_SIZE:
        raise row.error("size", f"{size} must be between 0 and 2^62")
    if not 1 <= alignment <= MAX_ALIGNMENT:
        raise row.error("alignment", f"{alignment} must be between 1 and 2^32")
    if lower < -MAX_TIME or upper > MAX_TIME:
        raise row.error("lower" if lower < -MAX_TIME else "upper", "times must lie within +-2^53")
    try:
        return Buffer(row.cells["id"], size, lower, upper, alignment, _gaps(row))
    except ProblemError as error:
        raise row.error("gaps", str(error)) from error


def _gaps(row: _Row) -> tuple[tuple[int, int], ...]:
    """Parse "5-7 9-12", sorted, with touching ranges joined."""
    gaps: list[tuple[int, int]] = []
    for text in row.cells.get("gaps", "").split():
        match = re.fullmatch(r"(-?[0-9]{1,30})-(-?[0-9]{1,30})", text)
        if match is None:
            raise row.error("gaps", f"{text[:40]!r} is not a range such as 5-7")
        gaps.append((int(match[1]), int(match[2])))
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(gaps):
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return tuple(joined)


def write_csv(problem: Problem, packing: Packing | None, path_or_file: str | Path | TextIO) -> None:
    """Write a problem, with offsets if there is a packing, to a file whole or not at all.

    A precedence does not fit into the columns: what is written are the lifetimes of its serial order,
    for which the packing is right as well. Raises ProblemError when the file cannot be written.
    """
    text = _to_text(problem, packing)
    if isinstance(path_or_file, str | Path):
        write(path_or_file, text, ProblemError)
    else:
        path_or_file.write(text)


def _to_text(problem: Problem, packing: Packing | None) -> str:
    columns = list(REQUIRED)
    if any(buffer.alignment > 1 for buffer in problem.buffers):
        columns.append("alignment")
    if any(buffer.gaps for buffer in problem.buffers):
        columns.append("gaps")
    if packing is not None:
        columns.append("offset")
    text = io.StringIO()
    # csv quotes a carriage return only when it is asked to quote every text
    if any("\r" in buffer.id for buffer in problem.buffers):
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    else:
        writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for position, buffer in enumerate(problem.buffers):
        cells = {
            "id": buffer.id,
            "lower": buffer.lower,
            "upper": buffer.upper,
            "size": buffer.size,
            "alignment": buffer.alignment,
            "gaps": " ".join(f"{begin}-{end}" for begin, end in buffer.gaps),
            "offset": packing.offsets[position] if packing is not None else "",
        }
        writer.writerow([cells[column] for column in columns])
    return text.getvalue()
