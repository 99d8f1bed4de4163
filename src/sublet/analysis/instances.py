"""What a value of the program is at one moment of an unrolled layout.

In a program without unrolled loops every value is itself. In copy 2 of a loop's body the value `%t` is the
instance `%t@2`, and a pointer is whatever it stands for there: one instance, or one of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.ir.graph import Value
from sublet.plan import Context

Reusable = Callable[[Value, Value], bool]
"""Whether the second value may be written over the first in one round of a loop."""

Targets = tuple[Value, ...]
"""The instances a value may be at one moment; several only for a pointer."""


def never(first: Value, second: Value) -> bool:
    """No value may be written over another."""
    return False


class Unrollable(Exception):
    """These pointers cannot stand for what is assigned to them: it must be copied. All of them, or some of them.

    `loop` names the loop that they are parameters of; "" for what none may point at.
    """

    def __init__(self, pointers: Iterable[Value], why: str, loop: str = "", *, some: bool = False) -> None:
        self.pointers = tuple(pointers)
        self.why = why
        self.loop = loop
        self.some = some
        super().__init__(", ".join(map(str, self.pointers)))


class AlsoPointer(Exception):
    """A pointer would stand for the bytes of this parameter, which change: it must be a pointer too."""

    def __init__(self, parameter: Value) -> None:
        self.parameter = parameter
        super().__init__(str(parameter))


class Refused(Exception):
    """The program cannot be laid out with these pointers, for all these reasons, as so many points have shown."""

    def __init__(self, reasons: Iterable[AlsoPointer | Unrollable], points: int) -> None:
        self.reasons = tuple(reasons)
        self.points = points
        super().__init__("; ".join(map(str, self.reasons)))


@dataclass
class Instance:
    """An instance of `base`, written in these contexts."""

    base: Value
    contexts: list[Context] = field(default_factory=list)


class Instances:
    """The instances made so far, and which of them each value is now."""

    def __init__(self, pointers: frozenset[Value], reusable: Reusable) -> None:
        self.pointers = pointers
        self.reusable = reusable
        self.context: Context = ()
        self.aliases: dict[Value, Value] = {}
        self.heads: dict[Value, Value] = {}  # aliases as well: what a parameter is in a copy of its loop's body
        self.rules: dict[Value, Callable[[Value], Value]] = {}  # how carried values are named
        self.made: dict[Value, Instance] = {}
        self.steps = 0  # of the search for free instances
        self._named: dict[tuple[Value, str], Value] = {}
        self._now: dict[Value, Targets] = {}
        self._several: dict[Targets, Value] = {}
        self._roots: dict[Value, Value] = {}
        self._standing: dict[Value, list[Value]] = {}  # the outputs of loops and branches that stand for an instance

    def stand_for(self, values: Iterable[Value]) -> Targets:
        """The instances that the values may be now, one after another."""
        return tuple(target for value in values for target in self._now.get(value, (value,)))

    def operands(
        self, values: Sequence[Value | None]
    ) -> tuple[Targets, tuple[Value | None, ...], tuple[tuple[Value, Targets], ...]]:
        """What a node reads, `operand` of each value that is present, and what those may be that may be several."""
        read: list[Value] = []
        operands: list[Value | None] = []
        choices: list[tuple[Value, Targets]] = []
        for value in values:
            targets = None if value is None else self._now.get(value, (value,))
            if targets is None:
                operands.append(None)
                continue
            read += targets
            if len(targets) == 1:
                operands.append(targets[0])
            else:
                operands.append(self._several[targets])
                choices.append((self._several[targets], targets))
        return tuple(read), tuple(operands), tuple(choices)

    def operand(self, value: Value) -> Value:
        """The instance a value is; of several the pointer that was any of them first."""
        targets = self._now.get(value, (value,))
        return targets[0] if len(targets) == 1 else self._several[targets]

    def source(self, value: Value) -> Value:
        """The instance that a move takes; a pointer that may be one of several stays itself."""
        targets = self._now.get(value, (value,))
        return targets[0] if len(targets) == 1 else value

    def define(self, value: Value) -> Value:
        """The instance that a write to `value` makes here."""
        rule = self.rules.get(value)
        instance = rule(value) if rule else self.written(self.named(value, self.context), self.context)
        self._now[value] = (instance,)
        return instance

    def named(self, base: Value, context: Context, mark: str = "") -> Value:
        """The instance of `base` for a context; the value itself where nothing is unrolled."""
        if not context and not mark:
            self.made.setdefault(base, Instance(base))
            return base
        suffix = ".".join(str(copy) for _, copy in context) + mark
        instance = self._named.get((base, suffix))
        if instance is None:
            instance = self._named[base, suffix] = Value(f"{base.name}@{suffix}", base.spec, base.literal)
            self.made.setdefault(instance, Instance(base))
        return instance

    def written(self, instance: Value, context: Context) -> Value:
        """The instance, noted as written in a context."""
        contexts = self.made[instance].contexts
        if context not in contexts:
            contexts.append(context)
        return instance

    def let(self, value: Value, targets: Targets) -> None:
        """From here on `value` is one of these."""
        self._now[value] = targets
        if len(targets) > 1:
            self._several.setdefault(targets, value)

    def point_at(self, pointer: Value, sources: Targets) -> Targets:
        """Let a pointer stand for one of several sources: one alias a source."""
        names = [self.named(pointer, self.context, f"?{i}") for i in range(len(sources))]
        aliases = tuple(self.written(name, self.context) for name in names)
        for alias, source in zip(aliases, sources, strict=True):
            self.aliases[alias] = source
            self._roots[alias] = self.root(source)
            self._standing.setdefault(self._roots[alias], []).append(alias)
        self.let(pointer, aliases)
        return aliases

    def head(self, parameter: Value, context: Context, source: Value) -> Value:
        """What a pointer that stands for `source` is in a copy of the body: an alias with a life of its own."""
        instance = self.written(self.named(parameter, context), context)
        self.heads[instance] = source
        self._roots[instance] = self.root(source)
        return instance

    def beneath(self, values: Targets) -> Targets:
        """What the values are that are parameters in a copy of a body."""
        return tuple(self.heads.get(value, value) for value in values)

    def root(self, instance: Value) -> Value:
        """The instance whose bytes it is."""
        return self._roots.get(instance, instance)

    def base(self, instance: Value) -> Value:
        """The value of the program that it is an instance of."""
        return self.made[instance].base

    def pointing_at(self, instance: Value) -> Iterator[Value]:
        """The outputs of loops and branches that stand for an instance in this copy of a body, or those around it."""
        for alias in self._standing.get(instance, ()):
            made = self.made[alias]
            if any(self.context[: len(context)] == context for context in made.contexts):
                yield made.base

    def ordered(self, position: Mapping[Value, int]) -> dict[Value, Instance]:
        """All instances by the position of their values in the program."""
        order = sorted(self.made, key=lambda instance: position[self.made[instance].base])
        return {instance: self.made[instance] for instance in order}
