"""The memory map in a terminal: time from left to right, addresses upwards, one colour a buffer.

With colours, a character is two cells, one above the other, drawn with half blocks. Without colours (a file, a pipe,
NO_COLOR), a character is one cell, and buffers are letters. Below the map, a sparkline on the same axis shows the live
bytes; the column of the peak is marked above and below.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from sublet.base.formatting import human
from sublet.viz.summary import cut_middle
from sublet.viz.view_model import Picture, point_label

# The colours of buffers: Paul Tol's "light" scheme, distinguishable with any common colour blindness.
#
# The HTML page has the same eight colours in `page/colours.js`.

BUFFERS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#99ddff", "#ffaabb", "#bbcc33", "#c3a6d8")
CURVE = "#0b62c4"
OTHER_CURVE = "#b35900"
"""The colour of a second plan's curve."""

PEAK = "#c2185b"
BOUND = "#0b7a4b"
ARENA = "#5b6472"


def rgb(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue (0 to 255) of `"#rrggbb"`."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix_colours(colour: str, other: str, share: float) -> str:
    """Return `colour` mixed with a `share` (0 to 1) of `other`."""
    parts = (round(a + (b - a) * share) for a, b in zip(rgb(colour), rgb(other), strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def value_colour(block: int, how: str) -> str:
    """Return the colour of a value: paler for views, parts, slices and rows; deeper for in-place and carried values."""
    colour = BUFFERS[block % len(BUFFERS)]
    if how in ("view", "part", "slice", "row"):
        return mix_colours(colour, "#ffffff", 0.45)
    if how in ("inplace", "carry"):
        return mix_colours(colour, "#1e283c", 0.16)
    return colour


# A picture in coarse cells, for a terminal: the buffer filling each cell, and positions of names.

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


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "._-=+*#@"
_LETTER = "#12161d"
_PEAK = "#f0508c"
_CURVE = "#4a90d9"
"""Peak and curve are brighter than on paper: readable on black and on white terminals."""

_AXIS = 10
"""Characters left of the map: a label of nine characters, and the axis."""
_OTHER_LINES = 6
"""Lines around the map: peak, axis, point numbers, two of the sparkline, figures."""


@dataclass(frozen=True)
class MemoryMap:
    """A memory map for rich; the console determines colours and characters beyond ASCII."""

    picture: Picture
    width: int
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(8, min(self.width, options.max_width) - _AXIS)
        rows = max(3, self.height - _OTHER_LINES)
        coloured = console.color_system is not None and not console.no_color
        draw = _MapDrawing(self.picture, columns, rows, coloured and not options.ascii_only, options.ascii_only)
        for line in draw.lines():
            yield from line
            yield Segment.line()


def memory_map(picture: Picture, width: int = 80, height: int = 24) -> MemoryMap:
    """Return the picture for a terminal: at most `width` characters wide and about `height` lines high."""
    return MemoryMap(picture, width, height)


class _MapDrawing:
    """The lines of one map, as segments of styled text."""

    def __init__(self, picture: Picture, columns: int, rows: int, coloured: bool, ascii_only: bool) -> None:
        self.picture = picture
        self.columns = columns
        self.rows = rows
        self.coloured = coloured
        self.ascii_only = ascii_only
        span = picture.end - picture.begin
        middle = 2 * (picture.peak.point - picture.begin) + 1
        self.peak = min(columns - 1, max(0, middle * columns // (2 * span)))
        self.addresses = self._address_labels()

    def lines(self) -> list[list[Segment]]:
        """Return all lines: peak, map, axis, times, sparkline and figures."""
        picture = self.picture
        rows = self._coloured_rows() if self.coloured else self._lettered_rows()
        corner = "+" if self.ascii_only else "└"
        rule = ("-" if self.ascii_only else "─") * self.columns
        return [
            self._peak_line(),
            *([self._margin(row), *cells] for row, cells in enumerate(rows)),
            [self._dim_segment(" " * (_AXIS - 1) + corner + rule)],
            self._time_line(),
            *self._sparkline(),
            [self._dim_segment(" " * _AXIS + self._fit_width(_figures_line(picture)))],
        ]

    def _style(self, colour: str | None = None, background: str | None = None, dim: bool = False) -> Style | None:
        return Style(color=colour, bgcolor=background, dim=dim) if self.coloured else None

    def _dim_segment(self, text: str) -> Segment:
        return Segment(text, self._style(dim=True))

    def _shorten_middle(self, name: str) -> str:
        """Return a name shortened in the middle: plans differ at the beginning of names, regions at the end."""
        return self._fit_width(cut_middle(name, _AXIS - 1, "~" if self.ascii_only else "…"))

    def _fit_width(self, text: str) -> str:
        """Return the text, printable and cut to the width of the map."""
        clean = "".join(letter if letter.isprintable() else "?" for letter in text)
        if self.ascii_only:
            clean = clean.encode("ascii", "replace").decode("ascii")
        dots = "..." if self.ascii_only else "…"
        return clean if len(clean) <= self.columns else clean[: self.columns - len(dots)] + dots

    def _peak_line(self) -> list[Segment]:
        peak = self.picture.peak
        mark = "v" if self.ascii_only else "▼"
        text_at_peak = self._fit_width(
            f"peak{self.picture.plan_suffix} {human(peak.nbytes)} at {point_label(self.picture, peak.point)}"
        )
        left, right = self.peak - 1, self.columns - self.peak - 2
        text_at_peak = cut_middle(text_at_peak, max(left, right), "..." if self.ascii_only else "…")
        if len(text_at_peak) <= left:
            text = f"{text_at_peak} {mark}".rjust(self.peak + 1)
        else:
            text = " " * self.peak + f"{mark} {text_at_peak}"
        return [Segment(" " * _AXIS), Segment(text, self._style(_PEAK))]

    def _address_labels(self) -> dict[int, str]:
        """Return labels by row: the top, and round addresses with at least three rows between labels.

        For several arenas, the name at the bottom of each arena and the size at the top.
        """
        height = self.picture.top_address
        if len(self.picture.arenas) > 1:
            labels_at = [(a.begin + a.nbytes, human(a.nbytes)) for a in self.picture.arenas]
            labels_at += [(a.begin, self._shorten_middle(a.name)) for a in self.picture.arenas]
            return {max(0, self.rows - 1 - address * self.rows // height): text for address, text in labels_at}
        step = 1 << max(0, (height * 3 // self.rows).bit_length())
        labels = {self.rows - 1 - address * self.rows // height: human(address) for address in range(0, height, step)}
        return {0: human(height), **{row: text for row, text in labels.items() if row > 1}}

    def _margin(self, row: int) -> Segment:
        label = self.addresses.get(row, "")
        axis = "|" if self.ascii_only else "┤" if label else "│"
        return self._dim_segment(f"{label:>{_AXIS - 1}}{axis}")

    def _coloured_rows(self) -> list[list[Segment]]:
        cells = fill_grid(self.picture, self.columns, self.rows * 2)
        uniform = [
            [upper if upper == lower else FREE for upper, lower in zip(above, below, strict=True)]
            for above, below in zip(cells[::2], cells[1::2], strict=True)
        ]
        letters = name_letters(self.picture, uniform)
        return [
            [
                self._letter_segment(letters[row, column], column, uniform[row][column])
                if (row, column) in letters
                else self._half_blocks(column, cells[2 * row][column], cells[2 * row + 1][column])
                for column in range(self.columns)
            ]
            for row in range(self.rows)
        ]

    def _letter_segment(self, letter: str, column: int, block: int) -> Segment:
        return Segment(letter, self._style(_LETTER, self._cell_colour(column, block)))

    def _half_blocks(self, column: int, above: int, below: int) -> Segment:
        """Return two cells in one character. A free half shows the background of the terminal."""
        upper, lower = self._cell_colour(column, above), self._cell_colour(column, below)
        if upper is None and lower is None:
            return Segment("│" if column == self.peak else " ", self._style(_PEAK, dim=True))
        if upper is None:
            return Segment("▄", self._style(lower))
        if lower is None:
            return Segment("▀", self._style(upper))
        if upper == lower:
            return Segment("█", self._style(upper))
        return Segment("▀", self._style(upper, lower))

    def _cell_colour(self, column: int, block: int) -> str | None:
        if block == FREE:
            return None
        colour = BUFFERS[block % len(BUFFERS)]
        return mix_colours(colour, _PEAK, 0.45) if column == self.peak else colour

    def _lettered_rows(self) -> list[list[Segment]]:
        """Return the rows without colour: one letter a buffer, and the name between spaces where there is room."""
        rows = fill_grid(self.picture, self.columns, self.rows)
        names = name_letters(self.picture, rows, margin=" ")
        rule = "|" if self.ascii_only else "│"

        def symbol_at(row: int, column: int) -> str:
            block = rows[row][column]
            if block == FREE:
                return rule if column == self.peak else " "
            return names.get((row, column), LETTERS[block % len(LETTERS)])

        lines = ("".join(symbol_at(row, column) for column in range(self.columns)) for row in range(self.rows))
        return [[Segment(line.encode("ascii", "replace").decode() if self.ascii_only else line)] for line in lines]

    def _time_line(self) -> list[Segment]:
        first, last = str(self.picture.begin), str(self.picture.end)
        middle = str((self.picture.begin + self.picture.end) // 2)
        inner = max(0, self.columns - len(first) - len(last))
        return [self._dim_segment(" " * _AXIS + first + middle.center(inner)[:inner] + last)]

    def _sparkline(self) -> list[list[Segment]]:
        """Return the live bytes in two lines of eight steps each, with the column of the peak in a separate colour."""
        bars = _PLAIN_BARS if self.ascii_only else _BARS
        steps = 2 * len(bars)
        picture = self.picture
        top = max(picture.arena_bytes, picture.peak.nbytes, 1)
        highest = picture.curve.peak_by_column(picture.begin, picture.end, self.columns)
        levels = [-(-level * steps // top) for level in highest]
        labels = ("live", "bytes")
        lines = []
        for line, floor in enumerate((len(bars), 0)):
            text = "".join(" " if level <= floor else bars[min(level - floor, len(bars)) - 1] for level in levels)
            before, at, after = text[: self.peak], text[self.peak], text[self.peak + 1 :]
            curve, peak = self._style(_CURVE), self._style(_PEAK)
            lines.append(
                [
                    self._dim_segment(f"{labels[line]:>{_AXIS - 1}} "),
                    Segment(before, curve),
                    Segment(at, peak),
                    Segment(after, curve),
                ]
            )
        return lines


def _figures_line(picture: Picture) -> str:
    if picture.others:
        return f"{picture.arena_sizes}; live bytes{picture.plan_suffix}"
    return f"arena {human(picture.arena_bytes)}  {picture.bound_words}  {picture.proof_words}".rstrip()
