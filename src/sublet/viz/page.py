"""The memory map as one self-contained HTML page, without network or library.

The template, the style and the scripts are files in `viz/page/`. Names and numbers are compressed and base64-encoded in
a data block; no browser executes the block, and no name can break out of the block. The page's
Content-Security-Policy allows the single script (by hash) and forbids every request. A page of a trade-off curve holds
the curve and the map of every point. A page of a plan over ranges holds a map for each shape that its sliders select.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from itertools import product
from json import dumps
from pathlib import Path
from typing import Any

from sublet.base.boxes import Range
from sublet.base.files import write
from sublet.base.ranges import LiveCurve
from sublet.plan.ranges import RangedPlan
from sublet.plan.statistics import find_peak
from sublet.plan.verdict import Advised
from sublet.viz.frontier import Frontier
from sublet.viz.view_model import Picture, drawn_offsets, partly_used_buffers, picture_of_plan

MOST_POINTS = 32
"""Maximum number of points on a page. Each point is a map of its own in the file."""

MOST_PLACEMENTS = 20_000
"""Maximum number of placements in all maps of a page, unless two points have more: the file stays below 2 MB."""


@dataclass(frozen=True)
class RangePoints:
    """The extents that the sliders of a page offer, ascending, by name of the dimension.

    The maps follow in the order of `itertools.product` over descending extents: the first map has the largest sizes.
    """

    extents: dict[str, tuple[int, ...]]


def points_of(ranged: RangedPlan) -> tuple[RangePoints, list[Picture]]:
    """Return the extents of the sliders, and the picture of the plan at each combination, the largest first."""
    count = max(2, min(MOST_POINTS, MOST_PLACEMENTS // max(1, len(ranged.worst.placements))))
    each = max(2, int(count ** (1 / max(1, len(ranged.ranges))) + 1e-9))
    extents = {
        one.name: _stops(one, each) if each ** (i + 1) <= count or i == 0 else (one.high,)
        for i, one in enumerate(ranged.ranges)
    }
    pictures: list[Picture] = []
    for choice in product(*(reversed(stops) for stops in extents.values())):
        point = {one.name: extent // one.step for one, extent in zip(ranged.ranges, choice, strict=True)}
        _, plan = ranged.at(point)
        pictures.append(picture_of_plan(replace(plan, peak=find_peak(plan))))
    return RangePoints(extents), pictures


def _stops(one: Range, count: int) -> tuple[int, ...]:
    """Return `count` extents of a range, or fewer: both ends, and extents between in geometric progression."""
    low, high = max(1, one.low // one.step), one.high // one.step
    ratio = (high / low) ** (1 / (count - 1))
    between = {min(high, round(low * ratio**k)) for k in range(count)}
    return tuple(sorted(number * one.step for number in {one.low // one.step, high, *between}))[-count:]


# Columns of integers as little-endian typed arrays, of the narrowest sufficient type.

ColumnPlace = tuple[str, int, int]
"""Type, byte position among the columns, count."""

_WIDTHS = (
    ("u8", "B", 1 << 8),
    ("u16", "H", 1 << 16),
    ("u32", "I", 1 << 32),
    ("f64", "d", 1 << 53),
    ("u64", "Q", 1 << 64),
)
"""Name for the page, typecode of `array`, and the smallest number too large for the type.

JavaScript computes with doubles, exact for integers up to 2^53; only larger numbers need 64-bit integers.
"""


class Columns:
    """Columns in sequence, each at a multiple of 8 bytes, as JavaScript's typed arrays require."""

    def __init__(self) -> None:
        self._packed = bytearray()

    def add(self, numbers: Iterable[int]) -> ColumnPlace:
        """Append numbers from 0 to 2^64 - 1, and return type, byte position and count."""
        values = list(numbers)
        largest = max(values, default=0)
        name, typecode = next((name, typecode) for name, typecode, limit in _WIDTHS if largest < limit)
        packed = array(typecode, values)
        if sys.byteorder == "big":
            packed.byteswap()
        position = len(self._packed)
        self._packed += packed.tobytes()
        self._packed += bytes(-len(self._packed) % 8)
        return name, position, len(values)

    def to_base64(self, model: dict[str, Any]) -> str:
        """Return the model as JSON with the columns, compressed, in base64.

        Before compression: the length of the JSON in 8 bytes, the JSON padded to a multiple of 8 bytes, the columns.
        """
        text = json.dumps(model, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        text += b" " * (-len(text) % 8)
        content = len(text).to_bytes(8, "little") + text + self._packed
        return b64encode(zlib.compress(content, level=6)).decode("ascii")


SHARING_KINDS = ("own", "view", "part", "inplace", "carry", "slice", "row", "joined")
"""The kinds of sharing, in the order of HOWS in `page/model.js`."""

SCRIPTS = (
    "arenas.js",
    "groups.js",
    "model.js",
    "colours.js",
    "raster.js",
    "frame.js",
    "reuse.js",
    "panel.js",
    "span.js",
    "advice.js",
    "loops.js",
    "state.js",
    "draw.js",
    "hands.js",
    "export.js",
    "frontier.js",
    "ranges.js",
    "main.js",
)
"""The scripts in the order of concatenation: constants must precede their first use."""

_EXACT_LIMIT = 1 << 53
"""The smallest absolute value not guaranteed to be exact as a double."""


def write_html(
    picture: Picture,
    path: str | Path,
    others: Sequence[Picture] = (),
    curve: Frontier | None = None,
    ranges: RangePoints | None = None,
) -> None:
    """Write the page. Raises SubletError if the file cannot be written."""
    write(Path(path), render_page(picture, others, curve, ranges).encode("utf-8"))


def render_page(
    picture: Picture,
    others: Sequence[Picture] = (),
    curve: Frontier | None = None,
    ranges: RangePoints | None = None,
) -> str:
    """Return the whole page as text; all parts from the plan are pure ASCII.

    With a `curve`, `picture` and `others` are the maps of the points of the curve: the page shows the first map, and a
    click on a point shows the map of the point. With `ranges`, these are the maps of shapes, which sliders select.
    """
    style = _read_asset("page.css")
    script = '"use strict";\n(async () => {\n' + "\n".join(_read_asset(name) for name in SCRIPTS) + "})();\n"
    parts = {
        "STYLE": style,
        "STYLE-HASH": _csp_hash(style),
        "SCRIPT": script,
        "SCRIPT-HASH": _csp_hash(script),
        "MODEL": _data_block("model", _picture_data(picture))
        + "".join(_data_block(f"model-{k}", _picture_data(other)) for k, other in enumerate(others, 1)),
        "FRONTIER": ""
        if curve is None
        else _data_block("curve", b64encode(dumps(_frontier_data(curve)).encode()).decode("ascii")),
        "RANGES": ""
        if ranges is None
        else _data_block("stops", b64encode(dumps(list(ranges.extents.items())).encode()).decode("ascii")),
    }
    pieces = _read_asset("page.html").split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _data_block(name: str, text: str) -> str:
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def _frontier_data(curve: Frontier) -> dict[str, Any]:
    """Return the curve as JSON data. The page draws bytes and prints rounded bytes only."""
    return {
        "spots": [[s.nbytes, s.seconds, s.extra, s.changes, s.in_pieces] for s in curve.points],
        "steps": [[s.begin, s.end, s.seconds, s.programs] for s in curve.bounds],
        "floors": curve.floors,
        "missed": curve.missed,
        "costs": curve.costs,
    }


def _read_asset(name: str) -> str:
    return (files("sublet.viz") / "page" / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode("utf-8")).digest()).decode("ascii")


def _picture_data(picture: Picture) -> str:
    columns = Columns()
    model = {
        "title": picture.title,
        "figures": _figures_data(picture),
        "origin": _exact_number(picture.begin),
        "duration": _exact_number(picture.end - picture.begin),
        "height": _exact_number(picture.top_address),
        "points": len(picture.points),
        "peak": {
            "point": _exact_number(picture.peak.point - picture.begin),
            "bytes": _exact_number(picture.peak.nbytes),
        },
        **_placement_columns(picture, columns),
        "rectangles": {
            "begin": columns.add(piece.begin - picture.begin for piece in picture.rectangles),
            "length": columns.add(piece.end - piece.begin for piece in picture.rectangles),
            "placement": columns.add(piece.placement for piece in picture.rectangles),
        },
        "blocks": _buffer_columns(picture, columns),
        "bands": [[b.label, b.begin, b.end, b.exit, b.depth, int(b.kept), int(b.repeats)] for b in picture.bands],
        "coverage": picture.coverage,
        "outside": [list(value) for value in picture.outside],
        "assumed": picture.assumed,
        "arenas": [
            [a.name, _exact_number(a.begin), _exact_number(a.nbytes), _exact_number(a.bound), a.capacity]
            for a in picture.arenas
        ],
        "budget": None if picture.budget is None else _exact_number(picture.budget),
        "label": picture.label,
        "others": [
            {
                "label": o.label,
                "arena": _exact_number(o.arena_bytes),
                "first": o.first_placement,
                **_curve_columns(picture, columns, o.curve),
            }
            for o in picture.others
        ],
        "pointers": [[place.value, place.spec, place.stands_for] for place in picture.pointers],
        "advice": None if picture.advice is None else _advice_data(picture.advice),
        "curve": _curve_columns(picture, columns, picture.curve),
    }
    return columns.to_base64(model)


def _advice_data(advised: Advised) -> dict[str, Any]:
    """Return the helpful changes, and the changes tried without success or not planned."""
    numbers = ("arena_bytes", "saved_bytes", "outside_bytes")
    return {
        "helping": [
            [each.kind, each.what, each.how, *(_exact_number(getattr(each, name)) for name in numbers)]
            for each in advised.helpful
        ],
        "vain": [each.how if each.kind == "option" else each.what for each in advised.unhelpful],
        "failed": list(advised.failed),
        "stopped": advised.stopped,
    }


def _curve_columns(picture: Picture, columns: Columns, curve: LiveCurve) -> dict[str, Any]:
    return {
        "point": columns.add(point - picture.begin for point, _ in curve),
        "bytes": columns.add(level for _, level in curve),
    }


def _figures_data(picture: Picture) -> dict[str, Any]:
    return {
        "arena": _exact_number(picture.arena_bytes),
        "lowerBound": _exact_number(picture.lower_bound_bytes) if picture.has_bound else None,
        "boundSource": picture.lower_bound_source,
        "gap": picture.gap,
        "claimed": picture.claimed,
        "proof": "" if picture.coverage else picture.proof_words.removeprefix("gap "),
        "total": _exact_number(picture.total_bytes),
        "views": _exact_number(picture.view_bytes),
        "inplace": _exact_number(picture.inplace_bytes),
        "strategy": picture.strategy,
        "alignment": _exact_number(picture.alignment),
        "bound": [[kind, _exact_number(nbytes)] for kind, nbytes in picture.bound],
    }


def _exact_number(value: int) -> int | str:
    """Return the integer, or decimal text for an integer not exactly representable as a double."""
    return value if abs(value) < _EXACT_LIMIT else str(value)


def _placement_columns(picture: Picture, columns: Columns) -> dict[str, Any]:
    """Return the columns with one row a placement, and the words referenced by position.

    The words begin with the names of the points, followed by the names of the placements; both may repeat.
    """
    places = picture.placements
    rounds, groups = picture.rounds or ("",) * len(places), picture.groups
    missing = ("",) * len(places)
    ops, scopes, sources = groups.ops or missing, groups.scopes or missing, groups.sources or missing
    words = [*picture.points, *(place.value for place in places), ""]
    position = {text: i for i, text in enumerate(words)}
    placement_words = [text for place in places for text in (place.spec, place.producer, place.shares)]
    for text in (*placement_words, *rounds, *ops, *scopes, *sources, *groups.point_ops, *groups.point_scopes):
        if position.setdefault(text, len(words)) == len(words):
            words.append(text)
    colour = {block.buffer: i for i, block in enumerate(picture.blocks)}
    return {
        "words": words,
        "pointOps": columns.add(position[text] for text in groups.point_ops),
        "pointScopes": columns.add(position[text] for text in groups.point_scopes),
        "placements": {
            "spec": columns.add(position[place.spec] for place in places),
            "producer": columns.add(position[place.producer] for place in places),
            "shares": columns.add(position[place.shares] for place in places),
            "op": columns.add(position[text] for text in ops),
            "scope": columns.add(position[text] for text in scopes),
            "source": columns.add(position[text] for text in sources),
            "rounds": columns.add(position[when] for when in rounds),
            "how": columns.add(SHARING_KINDS.index(place.how) if place.how in SHARING_KINDS else 0 for place in places),
            "block": columns.add(colour.get(place.buffer, len(colour)) for place in places),
            "offset": columns.add(drawn_offsets(places)),
            "nbytes": columns.add(place.region.nbytes for place in places),
        },
    }


def _buffer_columns(picture: Picture, columns: Columns) -> dict[str, Any]:
    """Return the buffers, and the live ranges of buffers with smaller values, drawn beneath the values."""
    pieces = [(i, begin, end) for i, block in partly_used_buffers(picture) for begin, end in block.live]
    return {
        "offset": columns.add(block.offset for block in picture.blocks),
        "nbytes": columns.add(block.nbytes for block in picture.blocks),
        "pieceBlock": columns.add(i for i, _, _ in pieces),
        "pieceBegin": columns.add(begin - picture.begin for _, begin, _ in pieces),
        "pieceLength": columns.add(end - begin for _, begin, end in pieces),
    }
