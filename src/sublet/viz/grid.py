"""A picture in coarse cells, for a terminal: the buffer filling each cell, and positions of names."""

from __future__ import annotations

from rich.cells import cell_len

from sublet.viz.view_model import Picture

FREE = -1
Grid = list[list[int]]
"""Rows from the highest address down; a cell holds the position of a buffer in the picture, or FREE."""


def fill_grid(picture: Picture, columns: int, rows: int) -> Grid:
    """Return the buffer covering most of each cell; a cell covered for less than a third is free.

    Among buffers of equal coverage, the first in time wins.
    """
    filled: list[dict[int, float]] = [{} for _ in range(columns * rows)]
    per_column = (picture.end - picture.begin) / columns
    per_row = picture.top_address / rows
    for position, block in enumerate(picture.blocks):
        for low, high, live in block.segments:
            tall = _cell_shares((block.offset + low) / per_row, (block.offset + high) / per_row, rows)
            for begin, end in live:
                left, right = (begin - picture.begin) / per_column, (end - picture.begin) / per_column
                for row, covered in tall:
                    for column, wide in _cell_shares(left, right, columns):
                        cell = filled[row * columns + column]
                        cell[position] = cell.get(position, 0.0) + covered * wide
    cells = [_majority_block(cell) for cell in filled]
    return [cells[row * columns : (row + 1) * columns] for row in reversed(range(rows))]


def _cell_shares(low: float, high: float, count: int) -> list[tuple[int, float]]:
    """Return the unit cells overlapping [low, high), each with the covered share."""
    first, last = max(0, int(low)), min(count - 1, int(high))
    return [(cell, share) for cell in range(first, last + 1) if (share := min(high, cell + 1) - max(low, cell)) > 0]


def _majority_block(cell: dict[int, float]) -> int:
    """Return the block covering most of a cell, or FREE."""
    if sum(cell.values()) < 1 / 3:
        return FREE
    return max(cell, key=lambda position: (cell[position], -position))


def name_letters(picture: Picture, rows: Grid, margin: str = "") -> dict[tuple[int, int], str]:
    """Return a letter for each (row, column) of a label: the names of buffers with enough room.

    A name is placed in the longest run of the buffer's cells (the middle run, if several are equally long), with
    `margin` on both sides.
    """
    runs: dict[int, list[tuple[int, int, int]]] = {}
    for row, cells in enumerate(rows):
        for column, length in _block_runs(cells):
            runs.setdefault(cells[column], []).append((length, row, column))
    first_value: dict[int, str] = {}
    for place in picture.placements:
        first_value.setdefault(place.buffer, place.value)
    letters: dict[tuple[int, int], str] = {}
    for block, block_runs in runs.items():
        longest = max(length for length, _, _ in block_runs)
        longest_runs = [run for run in block_runs if run[0] == longest]
        length, row, column = longest_runs[len(longest_runs) // 2]
        text = _shorten_name(first_value[picture.blocks[block].buffer], length - 2 - 2 * len(margin))
        text = f"{margin}{text}{margin}" if text else ""
        start = column + (length - len(text)) // 2
        letters.update({(row, start + i): letter for i, letter in enumerate(text)})
    return letters


def _block_runs(cells: list[int]) -> list[tuple[int, int]]:
    """Return (first column, length) of each run of cells of one buffer."""
    borders = [i for i in range(1, len(cells)) if cells[i] != cells[i - 1]]
    starts, ends = [0, *borders], [*borders, len(cells)]
    return [(start, end - start) for start, end in zip(starts, ends, strict=True) if cells[start] != FREE]


def _shorten_name(name: str, room: int) -> str:
    """Return the name without the exporter's suffix; a long name is cut in front, or "" in fewer than six columns."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name).removesuffix("_output_0")
    if cell_len(plain) != len(plain):
        return ""
    if len(plain) <= room:
        return plain
    return f"…{plain[1 - room :]}" if room >= 6 else ""
