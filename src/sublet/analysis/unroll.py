"""Unrolling a loop for planning, so that no byte is moved to carry a value into the next round.

In each copy of the body a pointer parameter stands for an instance made in an earlier copy, or for the
initial value. A carried value is written to the first of its instances that nobody stands for any more. So the
copies come to a state that was there before, and repeat: `first` copies run once, the others in a ring [NNC: the
unrolled loop; type II and type I multi-view tensors]. Swaps, rotations, delay lines and several updates by one
value need nothing else, and each carried value has as many instances as it needs.

Where the target of an update depends on how an inner loop ended or which arm a branch took, each such way leads to
a copy of its own: the states are those of a finite automaton.

A parameter is an alias in each copy, its *head*, which is born where the copy is jumped to. So what it stands for is
alive on its behalf in those copies only that it is reached in, and not wherever the jump is left from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count, product

from sublet.analysis.instances import AlsoPointer, Instances, Targets, Unrollable
from sublet.analysis.scopes import Scopes
from sublet.ir.graph import Value, While
from sublet.plan import Context, Jump, Rolled

MAX_COPIES = 64
"""A loop that needs more copies of its body is not unrolled."""

MOST_JUMPS = 16
"""Nor is one with a copy that can end in more ways."""

TOO_MANY_COPIES = f"pointing would take more than {MAX_COPIES} copies of the body"
TOO_MANY_JUMPS = f"a round can end in more than {MOST_JUMPS} ways"
TOO_LONG = "pointing would make the plan too long"

Way = tuple[str, Context, frozenset[int]]
"""Of an alias: the loop or branch it comes out of, in which copies around, and by which of its ends."""

State = tuple[Targets, ...]
"""What each pointer parameter stands for."""


Ways = Mapping[str, frozenset[int]]
"""How loops and branches of a body were left: any of these ways each."""

Handed = tuple[Ways, Targets]
"""What an update may be, and when."""


class Copies:
    """The copies of one loop's body, made one after another until they repeat."""

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
        """Start the next copy, if there is one more."""
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
        """The copy is laid out. The copies that may follow."""
        jumps: list[Jump] = []
        for together, state in self._ends():
            for ways in _single(together):
                if len(jumps) == MOST_JUMPS:
                    raise self._too_dear(TOO_MANY_JUMPS)
                jumps.append(Jump(len(self._jumps), ways, self._number(state)))
        self._jumps.append(jumps)
        return sorted({jump.next for jump in jumps})

    def _ends(self) -> list[tuple[Ways, State]]:
        """What the parameters may be in the next round, all together, and when that can be."""
        ends: list[tuple[Ways, State]] = [({}, ())]
        for position in self._positions:
            handed = self._handed_on(position)
            pairs = [(_both(ways, more), (*state, to)) for ways, state in ends for more, to in handed]
            ends = [(ways, state) for ways, state in pairs if ways is not None]
            if len(ends) > MOST_JUMPS:
                raise self._too_dear(TOO_MANY_JUMPS)
        return ends

    def _too_dear(self, why: str) -> Unrollable:
        return Unrollable(self._parameters, why, self._node.name, some=True)

    def too_long(self) -> Unrollable:
        """Why the loop, with all its copies, is not laid out."""
        return self._too_dear(TOO_LONG)

    @property
    def pointing(self) -> bool:
        """Whether any parameter is a pointer."""
        return bool(self._parameters)

    def _number(self, state: State) -> int:
        """The copy of a state, a new one if need be."""
        if state not in self._numbers:
            if len(self._states) == MAX_COPIES:
                raise self._too_dear(TOO_MANY_COPIES)
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]

    def rolled(self) -> Rolled | None:
        """The record of the loop; None when it has no pointers."""
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
        """What the pointers are when each copy begins: an instance with bytes, or None for one of several."""
        for state in self._states:
            yield tuple(self._now.root(several[0]) if len(several) == 1 else None for several in state)

    def recall(self, number: int) -> None:
        """Let the parameters be what they are in a copy."""
        context = (*self._outer, (self._node.name, number))
        for parameter, targets in zip(self._parameters, self._states[number], strict=True):
            if len(targets) == 1:
                head = self._now.head(parameter, context, targets[0])
                self._ways[head] = (self._node.name, self._outer, frozenset({number}))
                self._heads.setdefault(number, {})[head] = None
                targets = (head,)
            self._now.let(parameter, targets)

    def heads(self, copies: Iterable[int]) -> tuple[Value, ...]:
        """What the parameters are in some copies, all of which are laid out."""
        return tuple(head for number in copies for head in self._heads.get(number, ()))

    def _initial(self, init: Value) -> Targets:
        targets = self._now.stand_for([init])
        return (self._now.root(targets[0]),) if len(targets) == 1 else targets

    def stood_for(self, position: int) -> list[Targets]:
        """What a pointer parameter stood for in each copy."""
        index = self._positions.index(position)
        return [state[index] for state in self._states]

    def alike(self, rolled: Rolled) -> Iterator[tuple[Value, Value]]:
        """What a parameter stands for in a copy that runs once, and in others that could be like it."""
        for number in reversed(range(1 if rolled.jumps else rolled.first)):
            later = number + rolled.ring * -(-(rolled.first - number) // rolled.ring)
            for other in range(1, len(self._states)) if rolled.jumps else [later]:
                for first, repeated in zip(self._states[number], self._states[other], strict=True):
                    if len(first) == len(repeated) == 1:
                        yield self._now.root(first[0]), self._now.root(repeated[0])

    def _finish(self) -> None:
        self._active.remove(self)
        self._now.context = self._outer
        for value in (*self._carried, *self._node.parameters):
            self._now.rules.pop(value, None)

    def _fixed(self, parameter: Value) -> Value:
        """A parameter that owns bytes has the same ones in every copy."""
        return self._now.written(self._now.named(parameter, self._outer), self._outer)

    def _first_free(self, value: Value) -> Value:
        """The first instance of a carried value that may be written here; all loops that carry it have a say."""
        holders = [copies for copies in self._active if value in copies._carried]
        for i in count():
            instance = self._now.named(value, holders[0]._outer, f"~{i}")
            if not any(holder._busy(instance, value) for holder in holders):
                return self._now.written(instance, self._now.context)
        raise AssertionError("unreachable")

    def _busy(self, instance: Value, value: Value) -> bool:
        """Whether somebody who stands for `instance` still needs it when `value` is written."""
        users = [
            parameter
            for parameter, targets in zip(self._parameters, self._state, strict=True)
            if any(self._now.root(target) == instance for target in targets)
        ]
        users += dict.fromkeys(self._now.pointing_at(instance))
        self._now.steps += len(users)
        return any(not self._now.reusable(user, value) for user in users)

    def _handed_on(self, position: int) -> list[Handed]:
        """What the parameter at a position may stand for in the next round."""
        now = self._now
        targets = now.stand_for([self._node.updates[position]])
        for root in map(now.root, targets):
            if now.base(root) in self._node.parameters:
                raise AlsoPointer(now.base(root))
        found: dict[tuple[tuple[str, frozenset[int]], ...], list[Value]] = {}
        for target in targets:
            ways, instance = self._ways_to(target)
            found.setdefault(tuple(ways.items()), []).append(instance)
        # Which of several it is was chosen before the loop: the state keeps them all, as the first one does.
        return [
            (dict(ways), (now.root(several[0]),) if len(several) == 1 else tuple(several))
            for ways, several in found.items()
        ]

    def _way(self, instance: Value) -> tuple[str, frozenset[int]] | None:
        """The loop or branch of this copy that an alias comes out of, and by which ends."""
        way = self._ways.get(instance)
        return None if way is None or way[1] != self._now.context else (way[0], way[2])

    def _ways_to(self, instance: Value) -> tuple[Ways, Value]:
        """How loops and branches of this copy must have been left for an alias, and what it is an alias of then."""
        ways: dict[str, frozenset[int]] = {}
        while found := self._way(instance):
            ways[found[0]] = found[1]
            instance = self._now.aliases[instance]
        return ways, instance


def _both(one: Ways, other: Ways) -> Ways | None:
    """How loops and branches were left when both hold; None when that cannot be."""
    both = dict(one)
    for name, numbers in other.items():
        both[name] = both.get(name, numbers) & numbers
        if not both[name]:
            return None
    return both


def _single(ways: Ways) -> Iterator[tuple[tuple[str, int], ...]]:
    """Each combination of single ways."""
    for combination in product(*(sorted(numbers) for numbers in ways.values())):
        yield tuple(zip(ways, combination, strict=True))
