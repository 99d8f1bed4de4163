"""The arena form of a program: tensors become views of a single arena at planned offsets, in loops and branches too.

    placeable   the variables allowed in the arena, and the reasons for the variables outside
    coalescing  shared places: outputs in the place of inputs, copies in the place of their sources
    views       the rewritten program, with the arena and the views at the beginning of each block

`to_arena_form` combines the three modules.
"""

from __future__ import annotations

from sublet.frontends.paddle.arena.views import ArenaForm, to_arena_form, with_lasting_arena

__all__ = ["ArenaForm", "to_arena_form", "with_lasting_arena"]
