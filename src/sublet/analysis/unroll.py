"""Unrolling a loop for planning, so that no byte is moved to carry a value into the next round.

In each copy of the body a pointer parameter stands for an instance made in an earlier copy, or for the
initial value. A carried value is written to the first of its instances that nobody stands for any more;
so the copies come to a state that was there before, and from then on they repeat: `first` copies run once, the
others in a ring [NNC: the unrolled loop; type II and type I multi-view tensors]. Swaps, rotations, delay lines
and several updates by one value need nothing else, and each carried value has as many instances as it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from sublet.analysis.instances import AlsoPointer, Candidates, Instances, Unrollable
from sublet.ir.graph import Value, While
from sublet.plan import Rolled

MAX_COPIES = 64
"""A loop that needs more copies of its body is not unrolled."""


class Copies:
    """The copies of one loop's body, made one after another until they repeat."""

    def __init__(self, node: While, now: Instances, rolled: tuple[bool, ...]) -> None:
        self._node = node
        self._now = now
        self._outer = now.context
        self._positions = [i for i, pointer in enumerate(rolled) if pointer]
        self._parameters = [node.parameters[i] for i in self._positions]
        self._state = tuple(now.stand_for([node.inits[i]]) for i in self._positions)
        self._states: list[tuple[Candidates, ...]] = []
        own = {value for value in node.body.values() if value not in node.parameters}
        self._carried = {node.updates[i] for i in self._positions} & own

    def begin(self) -> int | None:
        """Start the next copy; or, when it would be like an earlier one, say which."""
        if self._state in self._states:
            self._finish()
            return self._states.index(self._state)
        if len(self._states) == MAX_COPIES:
            self._finish()
            raise Unrollable(self._parameters)
        if self._parameters:
            self._now.context = (*self._outer, (self._node.name, len(self._states)))
        self._states.append(self._state)
        for parameter, candidates in zip(self._parameters, self._state, strict=True):
            self._now.let(parameter, candidates)
        if self._parameters:
            self._now.rules |= dict.fromkeys(self._carried, self._first_free)
            fixed = {value for value in self._node.parameters if value not in self._parameters}
            self._now.rules |= dict.fromkeys(fixed, self._fixed)
        return None

    def end(self) -> None:
        """The copy is laid out: what the parameters stand for in the next."""
        self._state = tuple(self._next(position) for position in self._positions)

    def rolled(self, again: int) -> Rolled:
        """The record of the loop, whose last copy is followed by copy `again`."""
        return Rolled(self._node.name, self._outer, again, len(self._states) - again)

    def recall(self, number: int) -> None:
        """Let the parameters be what they were in a copy."""
        for parameter, candidates in zip(self._parameters, self._states[number], strict=True):
            self._now.let(parameter, candidates)

    def stood_for(self, position: int) -> list[Candidates]:
        """What a pointer parameter stood for in each copy."""
        index = self._positions.index(position)
        return [state[index] for state in self._states]

    def counterparts(self, again: int) -> Iterator[tuple[Value, Value]]:
        """What each parameter stands for in a copy before `again`, and in the copy of the ring in step with it."""
        ring = len(self._states) - again
        for number in reversed(range(again)):
            later = number + ring * -(-(again - number) // ring)
            for first, repeated in zip(self._states[number], self._states[later], strict=True):
                if len(first) == len(repeated) == 1:
                    yield self._now.root(first[0]), self._now.root(repeated[0])

    def _finish(self) -> None:
        self._now.context = self._outer
        for value in (*self._carried, *self._node.parameters):
            self._now.rules.pop(value, None)

    def _fixed(self, parameter: Value) -> Value:
        """A parameter that owns bytes has the same ones in every copy."""
        return self._now.written(self._now.named(parameter, self._outer), self._outer)

    def _first_free(self, value: Value) -> Value:
        """The first instance of a carried value that may be written here."""
        for i in count():
            instance = self._now.named(value, self._outer, f"~{i}")
            if not self._busy(instance, value):
                return self._now.written(instance, self._now.context)
        raise AssertionError("unreachable")

    def _busy(self, instance: Value, value: Value) -> bool:
        """Whether somebody who stands for `instance` still needs it when `value` is written."""
        users = [
            parameter
            for parameter, candidates in zip(self._parameters, self._states[-1], strict=True)
            if any(self._now.root(candidate) == instance for candidate in candidates)
        ]
        users += self._now.pointing_at(instance)
        return any(not self._now.reusable(user, value) for user in users)

    def _next(self, position: int) -> Candidates:
        update, now = self._node.updates[position], self._now
        candidates = now.stand_for([update])
        roots = tuple(dict.fromkeys(now.root(candidate) for candidate in candidates))
        changing = [now.base(root) for root in roots if now.base(root) in self._node.parameters]
        if changing:
            raise AlsoPointer(changing[0])
        if not any(self._made_here(candidate) for candidate in candidates):
            return candidates
        if len(roots) > 1 or (self._made_here(roots[0]) and now.base(roots[0]) not in self._carried):
            self._finish()
            raise Unrollable([self._node.parameters[position]])
        return roots

    def _made_here(self, instance: Value) -> bool:
        return instance in self._now.made and self._now.context in self._now.made[instance].contexts
