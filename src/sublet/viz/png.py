"""The memory map as PNG or SVG, by the suffix of the file; drawn by matplotlib (extra `png`)."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from sublet.base.errors import SubletError
from sublet.base.files import write
from sublet.base.formatting import human
from sublet.base.optional_imports import require
from sublet.plan import UNLIMITED
from sublet.viz.terminal import ARENA, BOUND, CURVE, OTHER_CURVE, PEAK, mix_colours, rgb, value_colour
from sublet.viz.view_model import Picture, Rectangle, partly_used_buffers, point_label

MAX_SVG_RECTANGLES = 5_000
"""Maximum rectangles of an SVG: a larger file takes minutes to open, and is refused."""

MAX_NOTE_CHARACTERS = 170
"""Maximum characters of a note below the title; a longer note is cut in front."""

_MAX_OUTLINED = 2_000
"""Maximum rectangles with visible outlines; with more, an outline has the colour of its rectangle."""
_CURVE_COLUMNS = 1_500
_BAND_ROWS = 3
_INK = "#1b1f27"
_QUIET = "#5b6472"
_FORMATS = {".png": "png", ".svg": "svg"}
_STYLE = {"font.family": "sans-serif", "font.size": 9.0, "svg.hashsalt": "sublet", "text.parse_math": False}
Corners = list[tuple[float, float]]


def write_png(picture: Picture, path: str | Path) -> None:
    """Write the picture; the suffix (.png or .svg) selects the format.

    Raises MissingExtraError without matplotlib, and SubletError for another suffix, for an SVG of more than
    `MAX_SVG_RECTANGLES` rectangles, or if the file cannot be written.
    """
    path = Path(path)
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise SubletError(f"{path}: a picture is a .png or .svg file, not {path.suffix or 'a file without a suffix'}")
    if kind == "svg" and len(picture.rectangles) > MAX_SVG_RECTANGLES:
        raise SubletError(
            f"{path}: {len(picture.rectangles)} rectangles are too many for an SVG (at most {MAX_SVG_RECTANGLES}); "
            f"write a .png or the HTML page instead"
        )
    matplotlib = require("matplotlib", extra="png")
    content = BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Letters missing from the font are drawn as boxes; a warning would not help the user.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = _build_figure(picture)
        # No date in the file: the same plan gives the same bytes.
        metadata = {"Date": None} if kind == "svg" else {"Software": "sublet"}
        figure.savefig(content, format=kind, dpi=160, metadata=metadata)
    write(path, content.getvalue())


def _build_figure(picture: Picture) -> Any:
    """Return a figure of the picture, without pyplot: no global state changes, and no figure stays open."""
    require("matplotlib.backends.backend_agg", extra="png")
    figure = require("matplotlib.figure", extra="png").Figure(figsize=(12, 7.2), layout="constrained")
    rows = min(_BAND_ROWS, max((band.depth + 1 for band in picture.bands), default=0))
    panels = figure.subplots(3 if rows else 2, 1, sharex=True, height_ratios=(4, 0.11 * rows, 1) if rows else (4, 1))
    above, below = panels[0], panels[-1]
    figure.suptitle(
        _printable_line(picture.heading or "packing"), x=0.008, ha="left", fontsize=13, fontweight="bold", color=_INK
    )
    above.set_title(_figures_text(picture), loc="left", fontsize=9, color=_QUIET)
    _draw_values(above, picture)
    _draw_curve(below, picture)
    if rows:
        _draw_bands(panels[1], picture, rows)
    for panel in (above, below):
        _draw_levels(panel, picture, addresses=panel is above)
        _draw_axes(panel, picture, own_addresses=panel is above)
    _draw_labels(above, picture)
    above.set_ylabel("address")
    below.set_ylabel("live bytes")
    below.set_xlabel("point of time")
    entries = [panel.get_legend_handles_labels() for panel in (above, below)]
    named = {label: handle for handles, labels in entries for handle, label in zip(handles, labels, strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _figures_text(picture: Picture) -> str:
    """Return the figures in one line, and notes on uncounted values and assumptions in separate lines."""
    single = (
        f"arena {human(picture.arena_bytes)}",
        picture.bound_words,
        *(() if picture.coverage or not picture.has_bound else (picture.proof_words,)),
        f"without reuse {human(picture.total_bytes)}",
        f"strategy {_printable_line(picture.strategy)}",
    )
    figures = (picture.arena_sizes,) if picture.others else single
    assumed = f"if {picture.assumed}" if picture.assumed else ""
    notes = (_shorten_name(_printable_line(note), MAX_NOTE_CHARACTERS) for note in (picture.coverage, assumed) if note)
    return "\n".join(("    ".join(figures), *notes))


def _draw_values(panel: Any, picture: Picture) -> None:
    collections = require("matplotlib.collections", extra="png")
    colour = {block.buffer: i for i, block in enumerate(picture.blocks)}
    reserved_corners = [
        _corners(begin, end, block.offset, block.nbytes)
        for _, block in partly_used_buffers(picture)
        for begin, end in block.live
    ]
    panel.add_collection(
        collections.PolyCollection(
            reserved_corners, facecolors="#eef0f3", edgecolors="#c9ced6", hatch="////", linewidths=0
        )
    )
    many = len(picture.rectangles) > _MAX_OUTLINED
    faces, edges = [], []
    for piece in picture.rectangles:
        place = picture.placements[piece.placement]
        face = value_colour(colour[place.buffer], place.how)
        faces.append(face)
        edges.append(face if many else mix_colours(face, "#10141c", 0.28))
    corners = [_corners(piece.begin, piece.end, piece.offset, piece.nbytes) for piece in picture.rectangles]
    panel.add_collection(
        collections.PolyCollection(corners, facecolors=faces, edgecolors=edges, linewidths=0.3 if many else 0.5)
    )


def _corners(begin: int, end: int, offset: int, nbytes: int) -> Corners:
    return [(begin, offset), (end, offset), (end, offset + nbytes), (begin, offset + nbytes)]


def _draw_labels(panel: Any, picture: Picture) -> None:
    """Draw the names in rectangles with enough room."""
    per_letter = (picture.end - picture.begin) / 170
    of_buffer: dict[int, list[Rectangle]] = {}
    for piece in reversed(picture.rectangles):
        place = picture.placements[piece.placement]
        later = of_buffer.setdefault(place.buffer, [])
        end = min([piece.end, *(other.begin for other in later if other.begin >= piece.begin)])
        later.append(piece)
        room = int((end - piece.begin) / per_letter) - 1
        if piece.nbytes < picture.top_address / 32 or room < 6:
            continue
        text = _shorten_name(_printable_line(place.value).removesuffix("_output_0"), room)
        middle = piece.offset + piece.nbytes / 2
        panel.text(piece.begin + per_letter / 2, middle, text, fontsize=6.5, color=_INK, va="center", clip_on=True)


def _draw_curve(panel: Any, picture: Picture) -> None:
    span = picture.end - picture.begin
    count = min(span, _CURVE_COLUMNS)
    edges = [picture.begin + span * i / count for i in range(count + 1)]
    levels = picture.curve.peak_by_column(picture.begin, picture.end, count)
    width = 1.2 if count < _CURVE_COLUMNS else 0.6
    panel.stairs(levels, edges, fill=True, color=mix_colours(CURVE, "#ffffff", 0.84))
    label = f"live bytes{_printable_line(picture.plan_suffix)}" if picture.others else None
    panel.stairs(levels, edges, color=CURVE, linewidth=width, label=label)
    for other in picture.others:
        levels = other.curve.peak_by_column(picture.begin, picture.end, count)
        panel.stairs(
            levels, edges, color=OTHER_CURVE, linewidth=width, label=f"live bytes of {_printable_line(other.label)}"
        )


def _draw_bands(panel: Any, picture: Picture, rows: int) -> None:
    """Draw the body versions of loops: repeated versions in blue, the prologue in grey."""
    per_letter = (picture.end - picture.begin) / 190
    panel.set_axis_off()
    panel.set_ylim(rows, 0)
    for band in picture.bands:
        if band.depth < rows:
            colour = mix_colours(CURVE if band.repeats else _QUIET, "#ffffff", 0.78)
            spans = [(band.begin, band.end - band.begin)]
            panel.broken_barh(spans, (band.depth + 0.06, 0.88), facecolors=colour, edgecolors="white")
            text = _shorten_name(_printable_line(band.label), max(0, int((band.end - band.begin) / per_letter) - 1))
            middle = (band.begin + band.end) / 2
            if len(text) > 4:
                panel.text(middle, band.depth + 0.52, text, fontsize=6.5, color=_INK, ha="center", va="center")


def _draw_levels(panel: Any, picture: Picture, *, addresses: bool) -> None:
    """Draw the arenas with their bounds (with `addresses`, each arena at its addresses), and the peak."""
    one = len(picture.arenas) < 2
    for arena in picture.arenas if addresses else ():
        room = f" of {human(arena.capacity)}" if arena.capacity != UNLIMITED else ""
        name = "arena" if one else _shorten_name(_printable_line(arena.name), 40)
        panel.axhline(
            arena.begin + arena.nbytes, color=ARENA, linewidth=1.3, label=f"{name} {human(arena.nbytes)}{room}"
        )
        if picture.has_bound:
            bound = f"lower bound {human(arena.bound)}{'' if one else f' in {name}'}"
            panel.axhline(arena.begin + arena.bound, color=BOUND, linewidth=1.3, dashes=(4, 2.5), label=bound)
        if not one:
            panel.axhline(arena.begin, color="#b9c0cb", linewidth=1)
            style = {"ha": "right", "va": "bottom", "fontsize": 8, "color": ARENA}
            panel.text(picture.end, arena.begin + arena.nbytes, f"{name} ", **style)
    if not addresses and one:
        panel.axhline(picture.arena_bytes, color=ARENA, linewidth=1.3)
        if picture.has_bound:
            panel.axhline(picture.lower_bound_bytes, color=BOUND, linewidth=1.3, dashes=(4, 2.5))
    peak = picture.peak
    where = _shorten_name(_printable_line(point_label(picture, peak.point)), 40)
    label = f"peak{_printable_line(picture.plan_suffix)} {human(peak.nbytes)} at {where}"
    if picture.end - picture.begin > 400:
        panel.axvline(peak.point + 0.5, color=PEAK, linewidth=1.3, alpha=0.8, label=label)
    else:
        colour = tuple(part / 255 for part in rgb(PEAK))
        panel.axvspan(peak.point, peak.point + 1, facecolor=(*colour, 0.1), edgecolor=(*colour, 0.9), label=label)


def _draw_axes(panel: Any, picture: Picture, *, own_addresses: bool) -> None:
    ticker = require("matplotlib.ticker", extra="png")
    panel.set_xlim(picture.begin, picture.end)
    sizes = (picture.arena_bytes, *(other.arena_bytes for other in picture.others))
    top = picture.top_address if own_addresses else max(1, picture.peak.nbytes, picture.lower_bound_bytes, *sizes)
    panel.set_ylim(0, top * 1.09)
    step = 1 << max(0, (top // (6 if own_addresses else 3)).bit_length())
    if own_addresses and len(picture.arenas) > 1:
        ticks = [(a.begin + at, human(at)) for a in picture.arenas for at in range(0, max(1, a.nbytes), step)]
        panel.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    else:
        panel.yaxis.set_major_locator(ticker.MultipleLocator(step))
        panel.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: human(int(value))))
    panel.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    panel.ticklabel_format(axis="x", style="plain", useOffset=False)
    panel.tick_params(colors=_QUIET, labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#b9c0cb")


def _shorten_name(name: str, room: int) -> str:
    """Return the end of a long name: more telling than the beginning."""
    return name if len(name) <= room else f"…{name[1 - room :]}"


def _printable_line(name: str) -> str:
    """Return a name for any font and file format: one line, with control characters and surrogates replaced."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
