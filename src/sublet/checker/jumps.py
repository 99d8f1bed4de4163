"""How the copies of a loop's body follow each other: one after each end of a copy, and always the same pointers in it.

Who runs a plan binds each copy once. So in one run of the loop a pointer parameter must stand for the same bytes
whenever a copy begins, by whatever jumps it is reached. What was chosen before the loop may differ from run to run.

Jumps of one copy to different copies must name a loop or branch that they want left by different ways. Then no
way that an earlier round has left behind can turn one into the other. A loop or branch that they name must have run
in the round for sure, and whatever its ways out, some jump must be for them.

Rule: bad-jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from sublet.base.errors import Finding
from sublet.checker.layout import span
from sublet.checker.state import State
from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan import Context, Jump, Rolled

MOST_JUMPS = 256
"""Jumps out of one copy that are looked at."""

FIX = "each end of a copy needs one copy that follows"


@dataclass(frozen=True, slots=True)
class Decision:
    """A loop or branch of a body: how many ways lead out of it, and by which ways others are left when it runs."""

    ways: int
    within: Mapping[str, int]


Decisions = Mapping[str, Decision]


def decisions(body: Graph, copies: Callable[[While], int]) -> dict[str, Decision]:
    """What may decide after a round; `copies` tells how many copies an inner loop's body has."""
    found: dict[str, Decision] = {}
    todo: list[tuple[Graph, Mapping[str, int]]] = [(body, {})]
    for graph, within in todo:
        for node in graph.nodes:
            if isinstance(node, While):
                found[node.name] = Decision(copies(node), within)
            elif isinstance(node, CaseOf):
                found[node.name] = Decision(len(node.arms) + bool(node.fallbacks), within)
                todo += [(arm, {**within, node.name: i}) for i, arm in enumerate(node.arms)]
    return found


@dataclass
class Jumps:
    """The jumps that a replay has seen taken."""

    taken: dict[tuple[str, Context], dict[Jump, None]] = field(default_factory=dict)
    _listed: dict[tuple[str, Context], dict[int, list[Jump]]] = field(default_factory=dict)

    def after(self, record: Rolled, copy: int, state: State, known: Decisions) -> list[tuple[int, State]]:
        """The copies that may follow a copy, each with what holds then."""
        taken = self.taken.setdefault((record.loop, record.within), {})
        listed = self.listed(record, copy)
        if not listed:
            return [(copy + 1 if copy + 1 < record.copies else record.first, state)]
        following: list[tuple[int, State]] = []
        for jump in listed[:MOST_JUMPS]:
            left = state.when(dict(jump.ways)) if _possible(jump, known) else None
            if left is not None:
                taken[jump] = None
                following.append((jump.next, left))
        return following

    def listed(self, record: Rolled, copy: int) -> list[Jump]:
        """The jumps out of one copy."""
        where = (record.loop, record.within)
        if where not in self._listed:
            self._listed[where] = _by_copy(record)
        return self._listed[where].get(copy, [])

    def missing(self, record: Rolled, copy: int, known: Decisions) -> Iterator[Finding]:
        """The ends of a copy that no jump is for, and jumps that ask for what may not have been decided."""
        listed = self.listed(record, copy)
        if len(listed) > MOST_JUMPS:
            yield _finding(record.loop, f"has more than {MOST_JUMPS} jumps from copy {copy} of its body", FIX)
        elif listed:
            for jump in listed:
                for name, _ in jump.ways:
                    if _possible(jump, known) and not known[name].within.items() <= dict(jump.ways).items():
                        what = f"goes from copy {copy} of its body by a way out of {name}, which may not have run"
                        yield _finding(record.loop, what, "name the branches around it too")
            left = _uncovered([jump for jump in listed if _possible(jump, known)], known)
            if left is not None:
                yield _finding(record.loop, f"has no jump from copy {copy} of its body when {_left(left)}", FIX)

    def idle(self, rolled: Mapping[tuple[str, Context], Rolled]) -> Iterator[Finding]:
        """The jumps that no run takes, of loops that are run: nobody knows what holds after them."""
        for where, taken in self.taken.items():
            for jump in rolled[where].jumps:
                if jump not in taken:
                    what = f"is never left from copy {jump.copy} to copy {jump.next} when {_left(dict(jump.ways))}"
                    yield _finding(where[0], what, "leave out jumps that cannot be taken")


def ambiguous(record: Rolled) -> Iterator[Finding]:
    """The jumps of one copy to different copies that may both be meant."""
    for copy, jumps in _by_copy(record).items():
        for one, other in combinations(jumps[:MOST_JUMPS], 2):
            wanted = dict(one.ways)
            apart = any(wanted.get(name, way) != way for name, way in other.ways)
            if one.next != other.next and not apart:
                what = f"may go from copy {copy} of its body to copy {one.next} and to copy {other.next} "
                yield _finding(record.loop, what + f"when {_left({**wanted, **dict(other.ways)})}", FIX)


def unsteady(node: While, body: frozenset[str], heads: Mapping[int, State]) -> Iterator[Finding]:
    """The copies that begin with a pointer parameter at one place in one round and at another in a later one."""
    for copy, state in heads.items():
        for parameter in node.parameters:
            pointer = state.pointers.get(parameter.name)
            if pointer is not None and len(pointer.targets) > 1 and pointer.choice in body:
                here, there, *_ = pointer.targets
                what = f"begins copy {copy} of its body with {parameter} at {span(here)} in one round, "
                fix = "what is pointed at elsewhere needs a copy of its own"
                yield _finding(node.name, what + f"and at {span(there)} in another", fix, parameter.name)


def _by_copy(record: Rolled) -> dict[int, list[Jump]]:
    found: dict[int, list[Jump]] = {}
    for jump in record.jumps:
        found.setdefault(jump.copy, []).append(jump)
    return found


def _possible(jump: Jump, known: Decisions) -> bool:
    """Whether all that the jump names are ways out of loops and branches of the body."""
    return all(name in known and 0 <= way < known[name].ways for name, way in jump.ways)


def _uncovered(jumps: Sequence[Jump], known: Decisions) -> dict[str, int] | None:
    """Ways out of loops and branches that none of the jumps is for; None if there are none."""
    todo: list[tuple[Sequence[Jump], dict[str, int]]] = [(jumps, {})]
    for count, (left, fixed) in enumerate(todo):
        if not left or count > MOST_JUMPS * MOST_JUMPS:
            return fixed
        asked = [[name for name, _ in jump.ways if name not in fixed] for jump in left]
        if not all(asked):
            continue
        common = set(asked[0]).intersection(*asked)
        name = next((name for name in asked[0] if name in common), asked[0][0])
        for way in range(known[name].ways):
            todo.append(([jump for jump in left if dict(jump.ways).get(name, way) == way], {**fixed, name: way}))
    return None


def _left(ways: Mapping[str, int]) -> str:
    left = " and ".join(f"{name} is left by way {way}" for name, way in ways.items())
    return left or "nothing decides"


def _finding(loop: str, what: str, fix: str, *pointers: str) -> Finding:
    return Finding("bad-jumps", f"loop {loop}", what, fix, (loop, *pointers))
