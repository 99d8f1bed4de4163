"""Transitions between body versions: complete, unambiguous, and with the same bindings at every entry of a version.

An executor binds each body version once. In one run of the loop a renamed parameter must therefore be bound to the
same bytes at every entry of a version, by any transition. Bindings selected before the loop may differ between runs.

Two transitions from one version to different versions must require different exits of some loop or branch. Exits
recorded in an earlier iteration then cannot turn one transition into the other. A loop or branch required by a
transition must have run in the iteration for certain, and every combination of exits must match some transition.

Rule: bad-jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from sublet.base.errors import Finding
from sublet.checker.layout import format_region
from sublet.checker.state import AbstractState
from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan import Context, RolledLoop, VersionTransition

MOST_TRANSITIONS = 256
"""Transitions out of one body version. The replay ignores further transitions, and reports the loop (bad-jumps)."""

FIX = "give each exit of a body version exactly one successor"


@dataclass(frozen=True, slots=True)
class Decision:
    """A loop or branch of a body: the number of exits, and the branch arms (by branch) that lead to the node."""

    exit_count: int
    required_arms: Mapping[str, int]


Decisions = Mapping[str, Decision]


def decisions_in(body: Graph, copies: Callable[[While], int]) -> dict[str, Decision]:
    """Return all loops and branches of a body as possible decisions; `copies` returns the versions of an inner loop."""
    by_name: dict[str, Decision] = {}
    todo: list[tuple[Graph, Mapping[str, int]]] = [(body, {})]
    for graph, within in todo:
        for node in graph.nodes:
            if isinstance(node, While):
                by_name[node.name] = Decision(copies(node), within)
            elif isinstance(node, CaseOf):
                by_name[node.name] = Decision(len(node.arms) + bool(node.fallbacks), within)
                todo += [(arm, {**within, node.name: i}) for i, arm in enumerate(node.arms)]
    return by_name


@dataclass
class TakenTransitions:
    """The transitions taken in a replay."""

    taken: dict[tuple[str, Context], dict[VersionTransition, None]] = field(default_factory=dict)
    _listed: dict[tuple[str, Context], dict[int, list[VersionTransition]]] = field(default_factory=dict)

    def successors(
        self, record: RolledLoop, copy: int, state: AbstractState, known: Decisions
    ) -> list[tuple[int, AbstractState]]:
        """Return the body versions that may follow `copy`, each with the state at the transition.

        The function records the transitions as taken.
        """
        taken = self.taken.setdefault((record.loop, record.within), {})
        listed = self.transitions_from(record, copy)
        if not listed:
            return [(copy + 1 if copy + 1 < record.copies else record.first, state)]
        following: list[tuple[int, AbstractState]] = []
        for jump in listed[:MOST_TRANSITIONS]:
            left = state.restricted_to(dict(jump.ways)) if _is_possible(jump, known) else None
            if left is not None:
                taken[jump] = None
                following.append((jump.next, left))
        return following

    def transitions_from(self, record: RolledLoop, copy: int) -> list[VersionTransition]:
        """Return the transitions out of a body version."""
        where = (record.loop, record.within)
        if where not in self._listed:
            self._listed[where] = _transitions_by_version(record)
        return self._listed[where].get(copy, [])

    def coverage_findings(self, record: RolledLoop, copy: int, known: Decisions) -> Iterator[Finding]:
        """Yield findings for ends without a transition, and for transitions that require exits possibly not taken."""
        listed = self.transitions_from(record, copy)
        if len(listed) > MOST_TRANSITIONS:
            yield _finding(record.loop, f"has more than {MOST_TRANSITIONS} transitions from body version @{copy}", FIX)
        elif listed:
            for jump in listed:
                for name, _ in jump.ways:
                    if _is_possible(jump, known) and not known[name].required_arms.items() <= dict(jump.ways).items():
                        what = (
                            f"has a transition from body version @{copy} on an exit of {name}, which may not have run"
                        )
                        yield _finding(record.loop, what, "add the branches around {name} to the transition")
            left = _uncovered_exits([jump for jump in listed if _is_possible(jump, known)], known)
            if left is not None:
                yield _finding(
                    record.loop, f"has no transition from body version @{copy} if {_describe_exits(left)}", FIX
                )

    def unused_transitions(self, rolled: Mapping[tuple[str, Context], RolledLoop]) -> Iterator[Finding]:
        """Yield findings for transitions never taken in executed loops: the replay proves no state after them."""
        for where, taken in self.taken.items():
            for jump in rolled[where].jumps:
                if jump not in taken:
                    exits = _describe_exits(dict(jump.ways))
                    what = f"never takes the transition from body version @{jump.copy} to @{jump.next} if {exits}"
                    yield _finding(where[0], what, "remove transitions that cannot be taken")


def ambiguous_transitions(record: RolledLoop) -> Iterator[Finding]:
    """Yield findings for pairs of transitions from one body version to different versions that may both match."""
    for copy, jumps in _transitions_by_version(record).items():
        for one, other in combinations(jumps[:MOST_TRANSITIONS], 2):
            wanted = dict(one.ways)
            apart = any(wanted.get(name, way) != way for name, way in other.ways)
            if one.next != other.next and not apart:
                what = f"has transitions from body version @{copy} to both @{one.next} and @{other.next} "
                yield _finding(record.loop, what + f"if {_describe_exits({**wanted, **dict(other.ways)})}", FIX)


def varying_entries(node: While, body: frozenset[str], heads: Mapping[int, AbstractState]) -> Iterator[Finding]:
    """Yield findings for body versions entered with a pointer parameter at different places in different iterations."""
    for copy, state in heads.items():
        for parameter in node.parameters:
            pointer = state.pointers.get(parameter.name)
            if pointer is not None and len(pointer.targets) > 1 and pointer.common_choice in body:
                here, there, *_ = pointer.targets
                what = f"enters body version @{copy} with {parameter} at {format_region(here)} in one iteration, "
                fix = "add a body version for each binding"
                yield _finding(node.name, what + f"and at {format_region(there)} in another", fix, parameter.name)


def _transitions_by_version(record: RolledLoop) -> dict[int, list[VersionTransition]]:
    """Return the transitions of a loop by source version."""
    transitions: dict[int, list[VersionTransition]] = {}
    for jump in record.jumps:
        transitions.setdefault(jump.copy, []).append(jump)
    return transitions


def _is_possible(jump: VersionTransition, known: Decisions) -> bool:
    """True if all exits required by the transition exist in the body."""
    return all(name in known and 0 <= way < known[name].exit_count for name, way in jump.ways)


def _uncovered_exits(jumps: Sequence[VersionTransition], known: Decisions) -> dict[str, int] | None:
    """Return a combination of exits without a matching transition; None if the transitions cover all combinations."""
    todo: list[tuple[Sequence[VersionTransition], dict[str, int]]] = [(jumps, {})]
    for count, (left, fixed) in enumerate(todo):
        if not left or count > MOST_TRANSITIONS * MOST_TRANSITIONS:
            return fixed
        asked = [[name for name, _ in jump.ways if name not in fixed] for jump in left]
        if not all(asked):
            continue
        common = set(asked[0]).intersection(*asked)
        name = next((name for name in asked[0] if name in common), asked[0][0])
        for way in range(known[name].exit_count):
            todo.append(([jump for jump in left if dict(jump.ways).get(name, way) == way], {**fixed, name: way}))
    return None


def _describe_exits(ways: Mapping[str, int]) -> str:
    """Return exits as text."""
    left = " and ".join(f"{name} takes exit {way}" for name, way in ways.items())
    return left or "no exit decides"


def _finding(loop: str, what: str, fix: str, *pointers: str) -> Finding:
    return Finding("bad-jumps", f"loop {loop}", what, fix, (loop, *pointers))
