"""Value versions: the binding of every program value at each moment of an unrolled program.

Without unrolled loops every value has a single version, the value itself. In body version 2 of a loop the value `%t`
has the version `%t@2`. A renamed value is bound to a version of another value, or to any of several versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.ir.graph import Value
from sublet.plan import Context

Reusable = Callable[[Value, Value], bool]
"""True if the second value may overwrite the first within an iteration of a loop."""

Targets = tuple[Value, ...]
"""The versions a value may be bound to at some point; several only for a renamed value."""


def never(first: Value, second: Value) -> bool:
    """Return False: no value may overwrite another."""
    return False


class Unrollable(Exception):
    """Raised when values cannot be renamed, and must be copied.

    `pointers` are the values; with `some`, copying a part of the values may be enough. `loop` names the loop with these
    parameters; "" for an output with too many possible bindings.
    """

    def __init__(self, pointers: Iterable[Value], why: str, loop: str = "", *, some: bool = False) -> None:
        self.pointers = tuple(pointers)
        self.why = why
        self.loop = loop
        self.some = some
        super().__init__(", ".join(map(str, self.pointers)))


class AlsoPointer(Exception):
    """Raised when a renamed value would be bound to a parameter with changing bytes, which must be renamed too."""

    def __init__(self, parameter: Value) -> None:
        self.parameter = parameter
        super().__init__(str(parameter))


class Refused(Exception):
    """Raised when control flow cannot be built with the renamed values: all reasons, and the number of points built."""

    def __init__(self, reasons: Iterable[AlsoPointer | Unrollable], points: int) -> None:
        self.reasons = tuple(reasons)
        self.points = points
        super().__init__("; ".join(map(str, self.reasons)))


@dataclass
class Instance:
    """The base value of a version, and the contexts defining the version."""

    base: Value
    contexts: list[Context] = field(default_factory=list)


class Instances:
    """All versions created so far, and the versions bound to every value at the current point."""

    def __init__(self, pointers: frozenset[Value], reusable: Reusable) -> None:
        self.pointers = pointers
        self.reusable = reusable
        self.context: Context = ()
        self.aliases: dict[Value, Value] = {}
        self.heads: dict[Value, Value] = {}  # entry bindings of parameters in body versions, aliases too
        self.rules: dict[Value, Callable[[Value], Value]] = {}  # how to choose the version that a carried value writes
        self.made: dict[Value, Instance] = {}
        self.steps = 0  # of the search for free versions
        self._named: dict[tuple[Value, str], Value] = {}
        self._now: dict[Value, Targets] = {}
        self._several: dict[Targets, Value] = {}
        self._roots: dict[Value, Value] = {}
        self._standing: dict[Value, list[Value]] = {}  # loop and branch outputs bound to a version

    def stand_for(self, values: Iterable[Value]) -> Targets:
        """Return the versions possibly bound to each of `values`, concatenated."""
        return tuple(target for value in values for target in self._now.get(value, (value,)))

    def operands(
        self, values: Sequence[Value | None]
    ) -> tuple[Targets, tuple[Value | None, ...], tuple[tuple[Value, Targets], ...]]:
        """Return the versions a node reads, the operand of every input, and the choices among versions.

        An input bound to any of several versions has a renamed value as operand; the choices are (operand, versions)
        pairs.
        """
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
        """Return the version bound to a value; for several versions, the first renamed value bound to them."""
        targets = self._now.get(value, (value,))
        return targets[0] if len(targets) == 1 else self._several[targets]

    def source(self, value: Value) -> Value:
        """Return the version read by a move; a value bound to any of several versions stays itself."""
        targets = self._now.get(value, (value,))
        return targets[0] if len(targets) == 1 else value

    def define(self, value: Value) -> Value:
        """Return the version written by a definition of `value` here, and bind `value` to the version."""
        rule = self.rules.get(value)
        instance = rule(value) if rule else self.written(self.named(value, self.context), self.context)
        self._now[value] = (instance,)
        return instance

    def named(self, base: Value, context: Context, mark: str = "") -> Value:
        """Return the version of `base` in a context; the value itself if no loop around is unrolled."""
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
        """Record a write of a version in a context, and return the version."""
        contexts = self.made[instance].contexts
        if context not in contexts:
            contexts.append(context)
        return instance

    def let(self, value: Value, targets: Targets) -> None:
        """Bind `value` to the versions `targets` from now on."""
        self._now[value] = targets
        if len(targets) > 1:
            self._several.setdefault(targets, value)

    def point_at(self, pointer: Value, sources: Targets) -> Targets:
        """Bind a renamed value to any of `sources`, and return the aliases, an alias for each source."""
        names = [self.named(pointer, self.context, f"?{i}") for i in range(len(sources))]
        aliases = tuple(self.written(name, self.context) for name in names)
        for alias, source in zip(aliases, sources, strict=True):
            self.aliases[alias] = source
            self._roots[alias] = self.root(source)
            self._standing.setdefault(self._roots[alias], []).append(alias)
        self.let(pointer, aliases)
        return aliases

    def head(self, parameter: Value, context: Context, source: Value) -> Value:
        """Return the entry binding of a parameter in a body version: an alias of `source` with its own live range."""
        instance = self.written(self.named(parameter, context), context)
        self.heads[instance] = source
        self._roots[instance] = self.root(source)
        return instance

    def beneath(self, values: Targets) -> Targets:
        """Replace the entry bindings among `values` by their sources."""
        return tuple(self.heads.get(value, value) for value in values)

    def root(self, instance: Value) -> Value:
        """Return the version owning the bytes of `instance`."""
        return self._roots.get(instance, instance)

    def base(self, instance: Value) -> Value:
        """Return the program value of a version."""
        return self.made[instance].base

    def pointing_at(self, instance: Value) -> Iterator[Value]:
        """Yield the loop and branch outputs bound to `instance` in the current or an enclosing context."""
        for alias in self._standing.get(instance, ()):
            made = self.made[alias]
            if any(self.context[: len(context)] == context for context in made.contexts):
                yield made.base

    def ordered(self, position: Mapping[Value, int]) -> dict[Value, Instance]:
        """Return all versions with their origins, sorted by the position of the base value in the program."""
        order = sorted(self.made, key=lambda instance: position[self.made[instance].base])
        return {instance: self.made[instance] for instance in order}
