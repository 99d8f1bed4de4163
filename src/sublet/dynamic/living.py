"""Results that are still there: the same command on the same tensors gives them again, and computes nothing.

Each tensor remembers what was computed of it first of all operands, by weak references, so that nothing lives longer.
Left out are parameters, whose memory is written to, random commands, and what starts sooner than it is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from sublet.dynamic.tensor import EagerTensor
from sublet.ops import lookup
from sublet.ops.nn import random
from sublet.ops.nn.command import PREFIX

RANDOM = frozenset(PREFIX + record.name for record in random.COMMANDS)

CLEARED = 64
"""Results of one tensor among which those that are gone are looked for, and again whenever they are twice as many."""


def remembers(found: Any, operands: Sequence[Any]) -> bool:
    """Whether results of a command on such operands are found again."""
    if found.direct is not None or not operands or not all(type(one) is EagerTensor for one in operands):
        return False
    op = found.node.op
    return op not in RANDOM and bool(found.node.subgraphs or lookup(op).pure)


def living(found: Any, operands: Sequence[EagerTensor], recording: bool) -> tuple[EagerTensor, ...] | None:
    """What the command gave for these operands, if somebody still holds all of it."""
    first, *others = operands
    known = first.results and first.results.get((found, recording, *map(id, others)))
    if not known:
        return None
    given, made = known
    tensors = tuple(one() for one in made)
    if any(one is None for one in tensors) or any(one() is not other for one, other in zip(given, others, strict=True)):
        return None
    return tensors


def note(found: Any, operands: Sequence[EagerTensor], recording: bool, made: Sequence[EagerTensor]) -> None:
    """Remember what the command gave."""
    first, *others = operands
    results = first.results
    if results is None:
        results = first.results = {}
    results[(found, recording, *map(id, others))] = tuple(map(ref, others)), tuple(map(ref, made))
    count = len(results)
    if count >= CLEARED and not count & (count - 1):
        gone = [key for key, (_, tensors) in results.items() if any(one() is None for one in tensors)]
        for key in gone:
            del results[key]
