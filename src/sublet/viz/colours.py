"""The colours of buffers: Paul Tol's "light" scheme, told apart with any common colour blindness.

The HTML page has the same eight in `page/colours.js`.
"""

from __future__ import annotations

BUFFERS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#99ddff", "#ffaabb", "#bbcc33", "#c3a6d8")
CURVE = "#0b62c4"
OTHER = "#b35900"
"""The curve of a second plan."""

PEAK = "#c2185b"
BOUND = "#0b7a4b"
ARENA = "#5b6472"


def rgb(colour: str) -> tuple[int, int, int]:
    """The parts of `"#rrggbb"`."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mixed(colour: str, other: str, share: float) -> str:
    """`colour` with `share` (0 to 1) of `other` in it."""
    parts = (round(a + (b - a) * share) for a, b in zip(rgb(colour), rgb(other), strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def value_colour(block: int, how: str) -> str:
    """Views and parts, slices and rows, are paler than the buffer, in-place and carried values deeper."""
    colour = BUFFERS[block % len(BUFFERS)]
    if how in ("view", "part", "slice", "row"):
        return mixed(colour, "#ffffff", 0.45)
    if how in ("inplace", "carry"):
        return mixed(colour, "#1e283c", 0.16)
    return colour
