"""Reuse of live results: the same command on the same tensors returns the earlier results without computing.

Each tensor has a table of the results with the tensor as first operand, by weak references, so that the table keeps
nothing alive. Excluded are parameters, as their memory is overwritten; random commands; and commands cheaper to compute
than to look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from sublet.dynamic.tensor import EagerTensor
from sublet.ops import lookup
from sublet.ops.nn import random
from sublet.ops.nn.command import PREFIX

RANDOM_COMMANDS = frozenset(PREFIX + record.name for record in random.COMMANDS)

PURGE_FROM = 64
"""Results of one tensor from which dead results are removed, and again at each doubling of the number of results."""


def is_reusable(command: Any, operands: Sequence[Any]) -> bool:
    """True if results of a command on these operands are kept for reuse."""
    if command.direct is not None or not operands or not all(type(one) is EagerTensor for one in operands):
        return False
    op = command.node.op
    return op not in RANDOM_COMMANDS and bool(command.node.subgraphs or lookup(op).pure)


def find_live_results(command: Any, operands: Sequence[EagerTensor], recording: bool) -> tuple[EagerTensor, ...] | None:
    """Return the earlier results of a command on the operands, if all results are still alive; None otherwise."""
    first, *others = operands
    entry = first.results and first.results.get((command, recording, *map(id, others)))
    if not entry:
        return None
    given, results = entry
    tensors = tuple(one() for one in results)
    if any(one is None for one in tensors) or any(one() is not other for one, other in zip(given, others, strict=True)):
        return None
    return tensors


def remember_results(
    command: Any, operands: Sequence[EagerTensor], recording: bool, tensors: Sequence[EagerTensor]
) -> None:
    """Store weak references to the results of a command."""
    first, *others = operands
    results = first.results
    if results is None:
        results = first.results = {}
    results[(command, recording, *map(id, others))] = tuple(map(ref, others)), tuple(map(ref, tensors))
    count = len(results)
    if count >= PURGE_FROM and not count & (count - 1):
        dead = [key for key, (_, cached) in results.items() if any(one() is None for one in cached)]
        for key in dead:
            del results[key]
