"""A picture in coarse cells, for a terminal: which block fills each cell, and where a name fits."""

from __future__ import annotations

from rich.cells import cell_len

from sublet.viz.rectangles import Picture

FREE = -1
Grid = list[list[int]]
"""Rows from the highest address down; each cell the position of a block, or FREE."""


def grid(picture: Picture, columns: int, rows: int) -> Grid:
    """For each cell the block that fills most of it, if blocks fill a third of it or more.

    Of equal blocks the first in the order of time wins.
    """
    filled: list[dict[int, float]] = [{} for _ in range(columns * rows)]
    per_column = (picture.end - picture.begin) / columns
    per_row = picture.height / rows
    for position, block in enumerate(picture.blocks):
        for low, high, live in block.strips:
            tall = _shares((block.offset + low) / per_row, (block.offset + high) / per_row, rows)
            for begin, end in live:
                left, right = (begin - picture.begin) / per_column, (end - picture.begin) / per_column
                for row, covered in tall:
                    for column, wide in _shares(left, right, columns):
                        cell = filled[row * columns + column]
                        cell[position] = cell.get(position, 0.0) + covered * wide
    cells = [_majority(cell) for cell in filled]
    return [cells[row * columns : (row + 1) * columns] for row in reversed(range(rows))]


def _shares(low: float, high: float, count: int) -> list[tuple[int, float]]:
    """The unit cells that [low, high) touches, each with the part of it that is covered."""
    first, last = max(0, int(low)), min(count - 1, int(high))
    return [(cell, share) for cell in range(first, last + 1) if (share := min(high, cell + 1) - max(low, cell)) > 0]


def _majority(cell: dict[int, float]) -> int:
    if sum(cell.values()) < 1 / 3:
        return FREE
    return max(cell, key=lambda position: (cell[position], -position))


def name_letters(picture: Picture, rows: Grid, margin: str = "") -> dict[tuple[int, int], str]:
    """A letter for each (row, column) that is to show one: the names of the blocks with room for them.

    A name lies in the longest run of its block's cells, in the middle one of equally long runs, with
    `margin` on either side.
    """
    runs: dict[int, list[tuple[int, int, int]]] = {}
    for row, cells in enumerate(rows):
        for column, length in _runs(cells):
            runs.setdefault(cells[column], []).append((length, row, column))
    first_value: dict[int, str] = {}
    for place in picture.placements:
        first_value.setdefault(place.buffer, place.value)
    letters: dict[tuple[int, int], str] = {}
    for block, found in runs.items():
        longest = max(length for length, _, _ in found)
        equal = [run for run in found if run[0] == longest]
        length, row, column = equal[len(equal) // 2]
        text = _shortened(first_value[picture.blocks[block].buffer], length - 2 - 2 * len(margin))
        text = f"{margin}{text}{margin}" if text else ""
        start = column + (length - len(text)) // 2
        letters.update({(row, start + i): letter for i, letter in enumerate(text)})
    return letters


def _runs(cells: list[int]) -> list[tuple[int, int]]:
    """(first column, length) of the stretches of one block."""
    borders = [i for i in range(1, len(cells)) if cells[i] != cells[i - 1]]
    starts, ends = [0, *borders], [*borders, len(cells)]
    return [(start, end - start) for start, end in zip(starts, ends, strict=True) if cells[start] != FREE]


def _shortened(name: str, room: int) -> str:
    """The name without what exporters add; its end when it is too long; nothing in less than four letters."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name).removesuffix("_output_0")
    if cell_len(plain) != len(plain):
        return ""
    if len(plain) <= room:
        return plain
    return f"…{plain[1 - room :]}" if room >= 6 else ""
