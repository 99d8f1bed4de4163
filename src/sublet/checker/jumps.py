"""How the copies of a loop's body follow each other: one after each end of a copy, and always the same pointers in it.

Who runs a plan binds each copy once. So in one run of the loop a pointer parameter must stand for the same bytes
whenever a copy begins, by whatever jumps it is reached. What was chosen before the loop may differ from run to run.

Jumps of one copy to different copies must name a loop or branch that they want left by different ways. Then no
way that an earlier round has left behind can turn one into the other.

Rule: bad-jumps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from sublet.checker.layout import span
from sublet.checker.state import State
from sublet.errors import Finding
from sublet.ir.graph import While
from sublet.plan import Context, Jump, Rolled

Head = tuple[int, object]
"""The beginning of a copy in a state: the copy, and the key of the state."""

FIX = "each end of a copy needs one copy that follows"


@dataclass
class Jumps:
    """The jumps that a replay has seen taken."""

    taken: dict[tuple[str, Context], dict[Jump, None]] = field(default_factory=dict)

    def after(self, record: Rolled | None, copy: int, ways: Mapping[str, int]) -> tuple[int, list[Finding]]:
        """The copy that follows a copy left by these ways, and what is wrong with that."""
        if record is None:
            return 0, []
        taken = self.taken.setdefault((record.loop, record.within), {})
        listed = [jump for jump in record.jumps if jump.copy == copy]
        found = [jump for jump in listed if all(ways.get(name) == way for name, way in jump.ways)]
        taken.update(dict.fromkeys(found))
        if listed and not found:
            what = f"has no jump from copy {copy} of its body when {_left(ways)}"
            return record.after(copy, ways), [_finding(record.loop, what, FIX)]
        return record.after(copy, ways), []

    def idle(self, rolled: Mapping[tuple[str, Context], Rolled]) -> Iterator[Finding]:
        """The jumps that no run takes, of loops that are run: nobody knows what holds after them."""
        for where, taken in self.taken.items():
            for jump in rolled[where].jumps:
                if jump not in taken:
                    what = f"is never left from copy {jump.copy} to copy {jump.next} when {_left(dict(jump.ways))}"
                    yield _finding(where[0], what, "leave out jumps that cannot be taken")


def ambiguous(record: Rolled) -> Iterator[Finding]:
    """The jumps of one copy to different copies that may both be meant."""
    by_copy: dict[int, list[Jump]] = {}
    for jump in record.jumps:
        by_copy.setdefault(jump.copy, []).append(jump)
    for copy, jumps in by_copy.items():
        for one, other in combinations(jumps, 2):
            wanted = dict(one.ways)
            apart = any(wanted.get(name, way) != way for name, way in other.ways)
            if one.next != other.next and not apart:
                what = f"may go from copy {copy} of its body to copy {one.next} and to copy {other.next} "
                yield _finding(record.loop, what + f"when {_left({**wanted, **dict(other.ways)})}", FIX)


def unsteady(
    node: While, entered: Sequence[Head], followed: Mapping[Head, Sequence[Head]], heads: Mapping[Head, State]
) -> Iterator[Finding]:
    """The copies that begin with a pointer parameter at one place in one round and at another in a later one."""
    for start in entered:
        first: dict[int, State] = {}
        seen, todo = {start}, [start]
        while todo:
            head = todo.pop()
            state = heads[head]
            yield from _moved(node, head[0], first.setdefault(head[0], state), state)
            fresh = [after for after in followed.get(head, ()) if after not in seen]
            seen.update(fresh)
            todo += fresh


def _moved(node: While, copy: int, one: State, other: State) -> Iterator[Finding]:
    for parameter in node.parameters:
        here, there = one.regions.get(parameter.name), other.regions.get(parameter.name)
        if here is not None and there is not None and here != there:
            what = f"begins copy {copy} of its body with {parameter} at {span(here)} in one round, "
            fix = "what is pointed at elsewhere needs a copy of its own"
            yield _finding(node.name, what + f"and at {span(there)} in another", fix)


def _left(ways: Mapping[str, int]) -> str:
    left = " and ".join(f"{name} is left by way {way}" for name, way in ways.items())
    return left or "nothing decides"


def _finding(loop: str, what: str, fix: str) -> Finding:
    return Finding("bad-jumps", f"loop {loop}", what, fix)
