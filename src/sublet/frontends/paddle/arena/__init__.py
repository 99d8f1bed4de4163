"""A program whose tensors lie in one: views of an arena at planned offsets, in the bodies of loops and branches too.

    placeable   which variables can lie there, and why others cannot
    sharing     which of them are the same bytes: outputs in the place of inputs, copies on what they copy
    views       the program, with the arena and its views in front of every block

`arena` ties these together.
"""

from __future__ import annotations

from sublet.frontends.paddle.arena.views import Arena, arena, lasting

__all__ = ["Arena", "arena", "lasting"]
