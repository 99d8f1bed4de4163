"""The colours of buffers: Paul Tol's "light" scheme, distinguishable with any common colour blindness.

The HTML page has the same eight colours in `page/colours.js`.
"""

from __future__ import annotations

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
