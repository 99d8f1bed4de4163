"""Modulo variable expansion of a loop (Lam 1988): body versions, in which no byte is moved to the next iteration.

In each body version a renamed parameter is bound to a version of a value from an earlier body version, or to the
initial value. A definition of a carried value goes to the first of its versions that no binding needs any more. The
bindings therefore return to an earlier state, and the body versions repeat: `first` body versions, the prologue, run
once, and the remaining `ring` body versions form the period [NNC: the unrolled loop; type II and type I multi-view
tensors]. Swaps, rotations, delay lines and several parameters updated by the same value need nothing more, and each
carried value has as many versions as it needs; more, if only a longer ring gives the loop a short period
(`analysis.value_versions`).

If the binding of an update depends on the exit of an inner loop or on the arm of a branch, each path leads to a
separate body version: the states are the states of a finite automaton.

A renamed parameter is an alias in each body version, the *entry binding*, defined on the transition into the body
version. An alias keeps its target live only in body versions that can reach the alias.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, product

from sublet.analysis.program_facts import ProgramFacts
from sublet.analysis.value_versions import (
    MustRenameToo,
    NotRenamable,
    PossibleVersions,
    ValueVersions,
    align_rings,
    carry_periods,
)
from sublet.ir.graph import Value, While
from sublet.plan import Context, RolledLoop, VersionTransition

MAX_BODY_VERSIONS = 256
"""Body versions of a loop of delay lines and rotations. With more, rings are aligned, or carried values copied."""

MAX_DECIDED_VERSIONS = 64
"""Body versions of a loop with bindings decided by a branch or an inner loop. With more, carried values are copied."""

MAX_TRANSITIONS = 16
"""Transitions out of a body version. A loop with more is not unrolled either."""

TOO_MANY_TRANSITIONS = f"a body version has more than {MAX_TRANSITIONS} transitions"
PLAN_TOO_LONG = "renaming would make the plan too long"

ExitEdges = tuple[str, Context, frozenset[int]]
"""The origin of an alias: a loop or branch, the context of body versions around, and the exit edges."""

EntryState = tuple[PossibleVersions, ...]
"""The binding of each renamed parameter at the entry of a body version."""

PathCondition = Mapping[str, frozenset[int]]
"""A path condition: for each loop or branch of a body, the exit edges any of which was taken."""

ConditionalBinding = tuple[PathCondition, PossibleVersions]
"""A possible binding of an update, with the path condition."""


class BodyVersions:
    """The body versions of a loop, built in sequence until the entry states repeat."""

    def __init__(
        self,
        node: While,
        now: ValueVersions,
        ways: dict[Value, ExitEdges],
        active: list[BodyVersions],
        scopes: ProgramFacts,
    ) -> None:
        self._node = node
        self._versions = now
        self._exit_edges = ways
        self._active_loops = active
        self._outer_context = now.context
        self._renamed_positions = [i for i, parameter in enumerate(node.parameters) if parameter in now.renamed_values]
        self._renamed_parameters = [node.parameters[i] for i in self._renamed_positions]
        self._entry_states: list[EntryState] = [
            tuple(self._initial_binding(node.inits[i]) for i in self._renamed_positions)
        ]
        self._version_numbers = {self._entry_states[0]: 0}
        self._transitions: list[list[VersionTransition]] = []
        self._entries: dict[int, dict[Value, None]] = {}
        self._carried_values = scopes.carried_values(node, self._renamed_positions, now.renamed_values)
        active.append(self)

    def begin_version(self) -> bool:
        """Start the next body version; return False if all are built."""
        number = len(self._transitions)
        if number == len(self._entry_states):
            self._leave_loop()
            return False
        if self._renamed_parameters:
            self._versions.context = (*self._outer_context, (self._node.name, number))
            self._versions.naming_rules |= dict.fromkeys(
                sorted(self._carried_values, key=lambda value: value.name), self._first_free_version
            )
            fixed = [value for value in self._node.parameters if value not in self._renamed_parameters]
            self._versions.naming_rules |= dict.fromkeys(fixed, self._copied_parameter_version)
        self._users: dict[Value, list[Value]] = {}  # by version with bytes, the parameters bound to the version
        for parameter, targets in zip(self._renamed_parameters, self._entry_states[number], strict=True):
            for root in dict.fromkeys(map(self._versions.root_of, targets)):
                self._users.setdefault(root, []).append(parameter)
        self.restore_entry(number)
        return True

    def end_version(self) -> list[int]:
        """Record the transitions out of the current body version, and return the body versions that may follow."""
        jumps: list[VersionTransition] = []
        for together, state in self._next_states():
            for ways in _single_paths(together):
                if len(jumps) == MAX_TRANSITIONS:
                    raise self._refuse(TOO_MANY_TRANSITIONS)
                jumps.append(VersionTransition(len(self._transitions), ways, self._version_number_of(state)))
        self._transitions.append(jumps)
        return sorted({jump.next for jump in jumps})

    def _next_states(self) -> list[tuple[PathCondition, EntryState]]:
        """Return the possible entry states of the next iteration, each with the path condition."""
        ends: list[tuple[PathCondition, EntryState]] = [({}, ())]
        for position in self._renamed_positions:
            handed = self._next_bindings(position)
            pairs = [(_intersect_conditions(ways, more), (*state, to)) for ways, state in ends for more, to in handed]
            ends = [(ways, state) for ways, state in pairs if ways is not None]
            if len(ends) > MAX_TRANSITIONS:
                raise self._refuse(TOO_MANY_TRANSITIONS)
        return ends

    def _refuse(self, why: str) -> NotRenamable:
        """Return the exception refusing to rename the parameters of the loop because of the cost."""
        stored = set(self._node.updates) - self._versions.renamed_values
        ring_sizes = {value: self._versions.version_count(value, self._outer_context) for value in stored}
        updates = dict(zip(self._node.parameters, self._node.updates, strict=True))
        carries = carry_periods(updates, self._renamed_parameters, ring_sizes)
        alignment = align_rings(carries, len(self._transitions)) if carries and self._transitions else None
        return NotRenamable(self._renamed_parameters, why, self._node.name, some=True, alignment=alignment)

    def plan_too_long(self) -> NotRenamable:
        """Return the exception for a loop with too many points in all body versions together."""
        return self._refuse(PLAN_TOO_LONG)

    @property
    def is_ring(self) -> bool:
        """True if no branch or inner loop decides a binding: every body version has a single successor."""
        updates = {self._node.updates[i] for i in self._renamed_positions}
        return updates.isdisjoint(self._versions.renamed_values.difference(self._node.parameters))

    @property
    def renamed_count(self) -> int:
        """The number of renamed parameters."""
        return len(self._renamed_parameters)

    def _version_number_of(self, state: EntryState) -> int:
        """Return the number of the body version for an entry state, adding a body version for a new state."""
        if state not in self._version_numbers:
            most = MAX_BODY_VERSIONS if self.is_ring else MAX_DECIDED_VERSIONS
            if len(self._entry_states) == most:
                raise self._refuse(f"renaming needs more than {most} body versions")
            self._version_numbers[state] = len(self._entry_states)
            self._entry_states.append(state)
        return self._version_numbers[state]

    def to_rolled_loop(self) -> RolledLoop | None:
        """Return the record of the loop for plans; None for a loop without renamed parameters.

        The record gives prologue and period if each body version has a single successor, else a list of transitions.
        """
        if not self._renamed_parameters:
            return None
        copies = len(self._entry_states)
        again = self._transitions[-1][0].next
        plain = RolledLoop(self._node.name, self._outer_context, again, copies - again)
        jumps = [jump for several in self._transitions for jump in several]
        if all(not jump.ways and plain.next_version(jump.copy, {}) == jump.next for jump in jumps):
            return plain
        return RolledLoop(self._node.name, self._outer_context, 0, copies, tuple(jumps))

    def entry_roots(self) -> Iterator[tuple[Value | None, ...]]:
        """Yield the entry bindings of each body version: versions owning bytes, or None for any of several."""
        for state in self._entry_states:
            yield tuple(self._versions.root_of(several[0]) if len(several) == 1 else None for several in state)

    def restore_entry(self, number: int) -> None:
        """Bind the renamed parameters to the entry state of a body version."""
        context = (*self._outer_context, (self._node.name, number))
        for parameter, targets in zip(self._renamed_parameters, self._entry_states[number], strict=True):
            if len(targets) == 1:
                head = self._versions.add_entry_binding(parameter, context, targets[0])
                self._exit_edges[head] = (self._node.name, self._outer_context, frozenset({number}))
                self._entries.setdefault(number, {})[head] = None
                targets = (head,)
            self._versions.bind(parameter, targets)

    def entry_definitions(self, copies: Iterable[int]) -> tuple[Value, ...]:
        """Return the entry bindings defined on transitions into `copies`, all of which must be built."""
        return tuple(head for number in copies for head in self._entries.get(number, ()))

    def _initial_binding(self, init: Value) -> PossibleVersions:
        """Return the binding of a parameter in the first iteration."""
        targets = self._versions.current_versions([init])
        return (self._versions.root_of(targets[0]),) if len(targets) == 1 else targets

    def bindings_at(self, position: int) -> list[PossibleVersions]:
        """Return the binding of the renamed parameter at `position`, for each body version."""
        index = self._renamed_positions.index(position)
        return [state[index] for state in self._entry_states]

    def prologue_pairs(self, rolled: RolledLoop) -> Iterator[tuple[Value, Value]]:
        """Yield the versions bound to a parameter in a prologue version and in a possible replacement."""
        for number in reversed(range(1 if rolled.jumps else rolled.first)):
            later = number + rolled.ring * -(-(rolled.first - number) // rolled.ring)
            for other in range(1, len(self._entry_states)) if rolled.jumps else [later]:
                for first, repeated in zip(self._entry_states[number], self._entry_states[other], strict=True):
                    if len(first) == len(repeated) == 1:
                        yield self._versions.root_of(first[0]), self._versions.root_of(repeated[0])

    def _leave_loop(self) -> None:
        """Leave the loop: restore the context around it, and drop the naming rules of its values."""
        self._active_loops.remove(self)
        self._versions.context = self._outer_context
        for value in (*self._carried_values, *self._node.parameters):
            self._versions.naming_rules.pop(value, None)

    def _copied_parameter_version(self, parameter: Value) -> Value:
        """Return the version of a copied parameter: the same in every body version."""
        return self._versions.record_write(
            self._versions.version_of(parameter, self._outer_context), self._outer_context
        )

    def _first_free_version(self, value: Value) -> Value:
        """Return the first version of a carried value free for a write here, for all loops carrying the value.

        A value with a lengthened ring takes the places of the ring in turn.
        """
        holders = [copies for copies in self._active_loops if value in copies._carried_values]
        places = self._versions.ring_places.get(value, 0)
        for i in chain([len(self._transitions) % places] if places else (), count()):
            instance = self._versions.version_of(value, holders[0]._outer_context, f"~{i}")
            if not any(holder._is_needed(instance, value) for holder in holders):
                return self._versions.record_write(instance, self._versions.context)
        raise AssertionError("unreachable")

    def _is_needed(self, instance: Value, value: Value) -> bool:
        """True if a definition of `value` in `instance` would destroy bytes still needed by a bound value."""
        users = [*self._users.get(instance, ()), *dict.fromkeys(self._versions.outputs_bound_to(instance))]
        self._versions.search_steps += len(users)
        return any(not self._versions.may_reuse(user, value) for user in users)

    def _next_bindings(self, position: int) -> list[ConditionalBinding]:
        """Return the bindings possible for the parameter at `position` in the next iteration, by path condition.

        Raises MustRenameToo if the update is a copied parameter of the loop.
        """
        now = self._versions
        targets = now.current_versions([self._node.updates[position]])
        for root in map(now.root_of, targets):
            if now.base_of(root) in self._node.parameters:
                raise MustRenameToo(now.base_of(root))
        by_path: dict[tuple[tuple[str, frozenset[int]], ...], list[Value]] = {}
        for target in targets:
            ways, instance = self._path_to(target)
            by_path.setdefault(tuple(ways.items()), []).append(instance)
        # A choice among several versions was made before the loop: the state keeps all, as the first state does.
        return [
            (dict(ways), (now.root_of(several[0]),) if len(several) == 1 else tuple(several))
            for ways, several in by_path.items()
        ]

    def _exit_edges_of(self, instance: Value) -> tuple[str, frozenset[int]] | None:
        """Return the loop or branch of this body version with an alias as result, and the exit edges, or None."""
        way = self._exit_edges.get(instance)
        return None if way is None or way[1] != self._versions.context else (way[0], way[2])

    def _path_to(self, instance: Value) -> tuple[PathCondition, Value]:
        """Return the path condition of an alias in the current body version, and the version bound on the path."""
        ways: dict[str, frozenset[int]] = {}
        while exits := self._exit_edges_of(instance):
            ways[exits[0]] = exits[1]
            instance = self._versions.aliases[instance]
        return ways, instance


def _intersect_conditions(one: PathCondition, other: PathCondition) -> PathCondition | None:
    """Return the conjunction of two path conditions; None if they contradict each other."""
    both = dict(one)
    for name, numbers in other.items():
        both[name] = both.get(name, numbers) & numbers
        if not both[name]:
            return None
    return both


def _single_paths(ways: PathCondition) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield every combination of single exit edges allowed by a path condition."""
    for combination in product(*(sorted(numbers) for numbers in ways.values())):
        yield tuple(zip(ways, combination, strict=True))
