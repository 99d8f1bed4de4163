"""Modulo variable expansion of a loop (Lam 1988): body versions, in which no byte is moved to the next iteration.

In each body version a renamed parameter is bound to a version of a value from an earlier body version, or to the
initial value. A definition of a carried value goes to the first of its versions that no binding needs any more. The
bindings therefore return to an earlier state, and the body versions repeat: `first` body versions, the prologue, run
once, and the remaining `ring` body versions form the period [NNC: the unrolled loop; type II and type I multi-view
tensors]. Swaps, rotations, delay lines and several parameters updated by the same value need nothing more, and each
carried value has as many versions as it needs.

If the binding of an update depends on the exit of an inner loop or on the arm of a branch, each path leads to a
separate body version: the states are the states of a finite automaton.

A renamed parameter is an alias in each body version, the *entry binding*, defined on the transition into the body
version. An alias keeps its target live only in body versions that can reach the alias.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count, product

from sublet.analysis.instances import AlsoPointer, Instances, Targets, Unrollable
from sublet.analysis.scopes import Scopes
from sublet.ir.graph import Value, While
from sublet.plan import Context, Jump, Rolled

MAX_COPIES = 64
"""Body versions of a loop. A loop with more is not unrolled: its carried values are copied."""

MOST_JUMPS = 16
"""Transitions out of a body version. A loop with more is not unrolled either."""

TOO_MANY_COPIES = f"pointing would take more than {MAX_COPIES} copies of the body"
TOO_MANY_JUMPS = f"a round can end in more than {MOST_JUMPS} ways"
TOO_LONG = "pointing would make the plan too long"

Way = tuple[str, Context, frozenset[int]]
"""The origin of an alias: a loop or branch, the context of body versions around, and the exit edges."""

State = tuple[Targets, ...]
"""The binding of each renamed parameter at the entry of a body version."""

Ways = Mapping[str, frozenset[int]]
"""A path condition: for each loop or branch of a body, the exit edges any of which was taken."""

Handed = tuple[Ways, Targets]
"""A possible binding of an update, with the path condition."""


class Copies:
    """The body versions of a loop, built in sequence until the entry states repeat."""

    def __init__(
        self, node: While, now: Instances, ways: dict[Value, Way], active: list[Copies], scopes: Scopes
    ) -> None:
        self._node = node
        self._now = now
        self._ways = ways
        self._active = active
        self._outer = now.context
        self._positions = [i for i, parameter in enumerate(node.parameters) if parameter in now.pointers]
        self._parameters = [node.parameters[i] for i in self._positions]
        self._states: list[State] = [tuple(self._initial(node.inits[i]) for i in self._positions)]
        self._numbers = {self._states[0]: 0}
        self._jumps: list[list[Jump]] = []
        self._heads: dict[int, dict[Value, None]] = {}
        self._carried = scopes.carried(node, self._positions, now.pointers)
        active.append(self)

    def begin(self) -> bool:
        """Start the next body version; return False if all are built."""
        number = len(self._jumps)
        if number == len(self._states):
            self._finish()
            return False
        if self._parameters:
            self._now.context = (*self._outer, (self._node.name, number))
            self._now.rules |= dict.fromkeys(sorted(self._carried, key=lambda value: value.name), self._first_free)
            fixed = [value for value in self._node.parameters if value not in self._parameters]
            self._now.rules |= dict.fromkeys(fixed, self._fixed)
        self._state = self._states[number]
        self.recall(number)
        return True

    def end(self) -> list[int]:
        """Record the transitions out of the current body version, and return the body versions that may follow."""
        jumps: list[Jump] = []
        for together, state in self._ends():
            for ways in _single(together):
                if len(jumps) == MOST_JUMPS:
                    raise self._too_dear(TOO_MANY_JUMPS)
                jumps.append(Jump(len(self._jumps), ways, self._number(state)))
        self._jumps.append(jumps)
        return sorted({jump.next for jump in jumps})

    def _ends(self) -> list[tuple[Ways, State]]:
        """Return the possible entry states of the next iteration, each with the path condition."""
        ends: list[tuple[Ways, State]] = [({}, ())]
        for position in self._positions:
            handed = self._handed_on(position)
            pairs = [(_both(ways, more), (*state, to)) for ways, state in ends for more, to in handed]
            ends = [(ways, state) for ways, state in pairs if ways is not None]
            if len(ends) > MOST_JUMPS:
                raise self._too_dear(TOO_MANY_JUMPS)
        return ends

    def _too_dear(self, why: str) -> Unrollable:
        """Return the exception refusing to rename the parameters of the loop because of the cost."""
        return Unrollable(self._parameters, why, self._node.name, some=True)

    def too_long(self) -> Unrollable:
        """Return the exception for a loop with too many points in all body versions together."""
        return self._too_dear(TOO_LONG)

    @property
    def pointing(self) -> bool:
        """True if any parameter is renamed."""
        return bool(self._parameters)

    def _number(self, state: State) -> int:
        """Return the number of the body version for an entry state, adding a body version for a new state."""
        if state not in self._numbers:
            if len(self._states) == MAX_COPIES:
                raise self._too_dear(TOO_MANY_COPIES)
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]

    def rolled(self) -> Rolled | None:
        """Return the record of the loop for plans; None for a loop without renamed parameters.

        The record gives prologue and period if each body version has a single successor, else a list of transitions.
        """
        if not self._parameters:
            return None
        copies = len(self._states)
        again = self._jumps[-1][0].next
        plain = Rolled(self._node.name, self._outer, again, copies - again)
        jumps = [jump for several in self._jumps for jump in several]
        if all(not jump.ways and plain.after(jump.copy, {}) == jump.next for jump in jumps):
            return plain
        return Rolled(self._node.name, self._outer, 0, copies, tuple(jumps))

    def begun(self) -> Iterator[tuple[Value | None, ...]]:
        """Yield the entry bindings of each body version: versions owning bytes, or None for any of several."""
        for state in self._states:
            yield tuple(self._now.root(several[0]) if len(several) == 1 else None for several in state)

    def recall(self, number: int) -> None:
        """Bind the renamed parameters to the entry state of a body version."""
        context = (*self._outer, (self._node.name, number))
        for parameter, targets in zip(self._parameters, self._states[number], strict=True):
            if len(targets) == 1:
                head = self._now.head(parameter, context, targets[0])
                self._ways[head] = (self._node.name, self._outer, frozenset({number}))
                self._heads.setdefault(number, {})[head] = None
                targets = (head,)
            self._now.let(parameter, targets)

    def heads(self, copies: Iterable[int]) -> tuple[Value, ...]:
        """Return the entry bindings defined on transitions into `copies`, all of which must be built."""
        return tuple(head for number in copies for head in self._heads.get(number, ()))

    def _initial(self, init: Value) -> Targets:
        """Return the binding of a parameter in the first iteration."""
        targets = self._now.stand_for([init])
        return (self._now.root(targets[0]),) if len(targets) == 1 else targets

    def stood_for(self, position: int) -> list[Targets]:
        """Return the binding of the renamed parameter at `position`, for each body version."""
        index = self._positions.index(position)
        return [state[index] for state in self._states]

    def alike(self, rolled: Rolled) -> Iterator[tuple[Value, Value]]:
        """Yield the versions bound to a parameter in a prologue version and in a possible replacement."""
        for number in reversed(range(1 if rolled.jumps else rolled.first)):
            later = number + rolled.ring * -(-(rolled.first - number) // rolled.ring)
            for other in range(1, len(self._states)) if rolled.jumps else [later]:
                for first, repeated in zip(self._states[number], self._states[other], strict=True):
                    if len(first) == len(repeated) == 1:
                        yield self._now.root(first[0]), self._now.root(repeated[0])

    def _finish(self) -> None:
        """Leave the loop: restore the context around it, and drop the naming rules of its values."""
        self._active.remove(self)
        self._now.context = self._outer
        for value in (*self._carried, *self._node.parameters):
            self._now.rules.pop(value, None)

    def _fixed(self, parameter: Value) -> Value:
        """Return the version of a copied parameter: the same in every body version."""
        return self._now.written(self._now.named(parameter, self._outer), self._outer)

    def _first_free(self, value: Value) -> Value:
        """Return the first version of a carried value free for a write here, for all loops carrying the value."""
        holders = [copies for copies in self._active if value in copies._carried]
        for i in count():
            instance = self._now.named(value, holders[0]._outer, f"~{i}")
            if not any(holder._busy(instance, value) for holder in holders):
                return self._now.written(instance, self._now.context)
        raise AssertionError("unreachable")

    def _busy(self, instance: Value, value: Value) -> bool:
        """True if a definition of `value` in `instance` would destroy bytes still needed by a bound value."""
        users = [
            parameter
            for parameter, targets in zip(self._parameters, self._state, strict=True)
            if any(self._now.root(target) == instance for target in targets)
        ]
        users += dict.fromkeys(self._now.pointing_at(instance))
        self._now.steps += len(users)
        return any(not self._now.reusable(user, value) for user in users)

    def _handed_on(self, position: int) -> list[Handed]:
        """Return the bindings possible for the parameter at `position` in the next iteration, by path condition.

        Raises MustRenameToo if the update is a copied parameter of the loop.
        """
        now = self._now
        targets = now.stand_for([self._node.updates[position]])
        for root in map(now.root, targets):
            if now.base(root) in self._node.parameters:
                raise AlsoPointer(now.base(root))
        by_path: dict[tuple[tuple[str, frozenset[int]], ...], list[Value]] = {}
        for target in targets:
            ways, instance = self._ways_to(target)
            by_path.setdefault(tuple(ways.items()), []).append(instance)
        # A choice among several versions was made before the loop: the state keeps all, as the first state does.
        return [
            (dict(ways), (now.root(several[0]),) if len(several) == 1 else tuple(several))
            for ways, several in by_path.items()
        ]

    def _way(self, instance: Value) -> tuple[str, frozenset[int]] | None:
        """Return the loop or branch of this body version with an alias as result, and the exit edges, or None."""
        way = self._ways.get(instance)
        return None if way is None or way[1] != self._now.context else (way[0], way[2])

    def _ways_to(self, instance: Value) -> tuple[Ways, Value]:
        """Return the path condition of an alias in the current body version, and the version bound on the path."""
        ways: dict[str, frozenset[int]] = {}
        while exits := self._way(instance):
            ways[exits[0]] = exits[1]
            instance = self._now.aliases[instance]
        return ways, instance


def _both(one: Ways, other: Ways) -> Ways | None:
    """Return the conjunction of two path conditions; None if they contradict each other."""
    both = dict(one)
    for name, numbers in other.items():
        both[name] = both.get(name, numbers) & numbers
        if not both[name]:
            return None
    return both


def _single(ways: Ways) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield every combination of single exit edges allowed by a path condition."""
    for combination in product(*(sorted(numbers) for numbers in ways.values())):
        yield tuple(zip(ways, combination, strict=True))
