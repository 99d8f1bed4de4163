"""Value versions: the binding of every program value at each moment of an unrolled program.

Without unrolled loops every value has a single version, the value itself. In body version 2 of a loop the value `%t`
has the version `%t@2`. A renamed value is bound to a version of another value, or to any of several versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.ir.graph import Value
from sublet.plan import Context

# Ring alignment: the choice of one period for all delay lines and rotations of a loop (Lam 1988, section 3.3).
#
# A rotation of n carries returns to its first binding after n iterations. A delay line writes its places in turn, a
# ring, and repeats after as many iterations as the ring has places. The body versions of a loop repeat after the least
# common multiple of all these periods, which may be far more versions than a plan can list. Additional places lengthen
# a ring, so that one short period fits: rings of 5, 6 and 7 places repeat after 210 iterations, three rings of 7 places
# after 7. A rotation cannot be lengthened; a rotation that fits no short period is copied.


@dataclass(frozen=True, slots=True)
class CarryPeriod:
    """The period of the binding of a renamed parameter, after at most `delay` iterations.

    `ring` is the value of the body that enters the delay line, None for a rotation or a constant.
    """

    parameter: Value
    period: int
    delay: int
    ring: Value | None = None


@dataclass(frozen=True)
class RingAlignment:
    """The number of places of each ring to lengthen, and the parameters to copy, because they fit no short period."""

    places: Mapping[Value, int] = field(default_factory=dict)
    copied: tuple[Value, ...] = ()


def carry_periods(
    updates: Mapping[Value, Value], renamed: Sequence[Value], ring_sizes: Mapping[Value, int]
) -> list[CarryPeriod] | None:
    """Return the period of every renamed parameter of a loop; None if a branch or an inner loop decides a binding.

    `updates` maps every parameter of the loop to its update. `ring_sizes` maps every value of the body with bytes, and
    every value of the enclosing graphs, to the number of places; a value missing there is itself renamed.
    """
    periods: list[CarryPeriod] = []
    for parameter in renamed:
        position = {parameter: 0}
        source = updates[parameter]
        while source in updates and source not in position:
            position[source] = len(position)
            source = updates[source]
        if source in position:
            periods.append(CarryPeriod(parameter, len(position) - position[source], position[source]))
        elif source in ring_sizes:
            size = ring_sizes[source]
            periods.append(CarryPeriod(parameter, size, len(position), source if size > 1 else None))
        else:
            return None
    return periods


def align_rings(carries: Sequence[CarryPeriod], most_versions: int) -> RingAlignment:
    """Return the alignment with the fewest copied bytes, then the fewest bytes of additional places.

    Prologue and period together have at most `most_versions` body versions.
    """
    candidates = (_alignment_to(carries, period, most_versions - period) for period in range(1, most_versions + 1))
    return min(candidates, key=_cost)


def _alignment_to(carries: Sequence[CarryPeriod], period: int, most_delay: int) -> RingAlignment:
    """Return the alignment of all carries to one period, with at most `most_delay` prologue versions."""
    places: dict[Value, int] = {}
    copied: list[Value] = []
    for carry in carries:
        fits = carry.period <= period if carry.ring else period % carry.period == 0
        if not fits or carry.delay > most_delay:
            copied.append(carry.parameter)
        elif carry.ring:
            places[carry.ring] = next(n for n in range(carry.period, period + 1) if period % n == 0)
    return RingAlignment(places, tuple(copied))


def _cost(alignment: RingAlignment) -> tuple[int, int]:
    """Return the bytes copied in each iteration, and the bytes of all places."""
    return (
        sum(value.nbytes for value in alignment.copied),
        sum(ring.nbytes * count for ring, count in alignment.places.items()),
    )


ReusePredicate = Callable[[Value, Value], bool]
"""True if the second value may overwrite the first within an iteration of a loop."""

PossibleVersions = tuple[Value, ...]
"""The versions a value may be bound to at some point; several only for a renamed value."""


def never_reuse(first: Value, second: Value) -> bool:
    """Return False: no value may overwrite another."""
    return False


class NotRenamable(Exception):
    """Raised when values cannot be renamed, and must be copied.

    `pointers` are the values; with `some`, copying a part of the values may be enough. `loop` names the loop with these
    parameters; "" for an output with too many possible bindings. `alignment` says how a shorter period fits the values.
    """

    def __init__(
        self,
        pointers: Iterable[Value],
        why: str,
        loop: str = "",
        *,
        some: bool = False,
        alignment: RingAlignment | None = None,
    ) -> None:
        self.pointers = tuple(pointers)
        self.why = why
        self.loop = loop
        self.some = some
        self.alignment = alignment
        super().__init__(", ".join(map(str, self.pointers)))


class MustRenameToo(Exception):
    """Raised when a renamed value would be bound to a parameter with changing bytes, which must be renamed too."""

    def __init__(self, parameter: Value) -> None:
        self.parameter = parameter
        super().__init__(str(parameter))


class RenamingRefused(Exception):
    """Raised when control flow cannot be built with the renamed values: all reasons, and the number of points built."""

    def __init__(self, reasons: Iterable[MustRenameToo | NotRenamable], points: int) -> None:
        self.reasons = tuple(reasons)
        self.points = points
        super().__init__("; ".join(map(str, self.reasons)))


@dataclass
class VersionOrigin:
    """The base value of a version, and the contexts defining the version."""

    base: Value
    contexts: list[Context] = field(default_factory=list)


class ValueVersions:
    """All versions created so far, and the versions bound to every value at the current point."""

    def __init__(
        self, pointers: frozenset[Value], reusable: ReusePredicate, ring_places: Mapping[Value, int] | None = None
    ) -> None:
        self.renamed_values = pointers
        self.ring_places = ring_places or {}  # the number of places of each lengthened ring, see `ring_alignment`
        self.may_reuse = reusable
        self.context: Context = ()
        self.aliases: dict[Value, Value] = {}
        self.entry_sources: dict[Value, Value] = {}  # entry bindings of parameters in body versions, aliases too
        self.naming_rules: dict[
            Value, Callable[[Value], Value]
        ] = {}  # how to choose the version that a carried value writes
        self.origins: dict[Value, VersionOrigin] = {}
        self.search_steps = 0  # of the search for free versions
        self._by_name: dict[tuple[Value, str], Value] = {}
        self._bindings: dict[Value, PossibleVersions] = {}
        self._representatives: dict[PossibleVersions, Value] = {}
        self._roots: dict[Value, Value] = {}
        self._aliases_of_root: dict[Value, list[Value]] = {}  # loop and branch outputs bound to a version

    def current_versions(self, values: Iterable[Value]) -> PossibleVersions:
        """Return the versions possibly bound to each of `values`, concatenated."""
        return tuple(target for value in values for target in self._bindings.get(value, (value,)))

    def operand_versions(
        self, values: Sequence[Value | None]
    ) -> tuple[PossibleVersions, tuple[Value | None, ...], tuple[tuple[Value, PossibleVersions], ...]]:
        """Return the versions a node reads, the operand of every input, and the choices among versions.

        An input bound to any of several versions has a renamed value as operand; the choices are (operand, versions)
        pairs.
        """
        read: list[Value] = []
        operands: list[Value | None] = []
        choices: list[tuple[Value, PossibleVersions]] = []
        for value in values:
            targets = None if value is None else self._bindings.get(value, (value,))
            if targets is None:
                operands.append(None)
                continue
            read += targets
            if len(targets) == 1:
                operands.append(targets[0])
            else:
                operands.append(self._representatives[targets])
                choices.append((self._representatives[targets], targets))
        return tuple(read), tuple(operands), tuple(choices)

    def operand_version(self, value: Value) -> Value:
        """Return the version bound to a value; for several versions, the first renamed value bound to them."""
        targets = self._bindings.get(value, (value,))
        return targets[0] if len(targets) == 1 else self._representatives[targets]

    def move_source(self, value: Value) -> Value:
        """Return the version read by a move; a value bound to any of several versions stays itself."""
        targets = self._bindings.get(value, (value,))
        return targets[0] if len(targets) == 1 else value

    def define_version(self, value: Value) -> Value:
        """Return the version written by a definition of `value` here, and bind `value` to the version."""
        rule = self.naming_rules.get(value)
        instance = rule(value) if rule else self.record_write(self.version_of(value, self.context), self.context)
        self._bindings[value] = (instance,)
        return instance

    def version_of(self, base: Value, context: Context, mark: str = "") -> Value:
        """Return the version of `base` in a context; the value itself if no loop around is unrolled."""
        if not context and not mark:
            self.origins.setdefault(base, VersionOrigin(base))
            return base
        suffix = ".".join(str(copy) for _, copy in context) + mark
        instance = self._by_name.get((base, suffix))
        if instance is None:
            instance = self._by_name[base, suffix] = Value(f"{base.name}@{suffix}", base.spec, base.literal)
            self.origins.setdefault(instance, VersionOrigin(base))
        return instance

    def version_count(self, base: Value, within: Context) -> int:
        """Return the number of versions of a value written in a context; 1 for a value written outside."""
        contexts = [origin.contexts for origin in self.origins.values() if origin.base is base]
        return max(1, sum(any(context[: len(within)] == within for context in several) for several in contexts))

    def record_write(self, instance: Value, context: Context) -> Value:
        """Record a write of a version in a context, and return the version."""
        contexts = self.origins[instance].contexts
        if context not in contexts:
            contexts.append(context)
        return instance

    def bind(self, value: Value, targets: PossibleVersions) -> None:
        """Bind `value` to the versions `targets` from now on."""
        self._bindings[value] = targets
        if len(targets) > 1:
            self._representatives.setdefault(targets, value)

    def bind_to_any(self, pointer: Value, sources: PossibleVersions) -> PossibleVersions:
        """Bind a renamed value to any of `sources`, and return the aliases, an alias for each source."""
        names = [self.version_of(pointer, self.context, f"?{i}") for i in range(len(sources))]
        aliases = tuple(self.record_write(name, self.context) for name in names)
        for alias, source in zip(aliases, sources, strict=True):
            self.aliases[alias] = source
            self._roots[alias] = self.root_of(source)
            self._aliases_of_root.setdefault(self._roots[alias], []).append(alias)
        self.bind(pointer, aliases)
        return aliases

    def add_entry_binding(self, parameter: Value, context: Context, source: Value) -> Value:
        """Return the entry binding of a parameter in a body version: an alias of `source` with its own live range."""
        instance = self.record_write(self.version_of(parameter, context), context)
        self.entry_sources[instance] = source
        self._roots[instance] = self.root_of(source)
        return instance

    def without_entry_bindings(self, values: PossibleVersions) -> PossibleVersions:
        """Replace the entry bindings among `values` by their sources."""
        return tuple(self.entry_sources.get(value, value) for value in values)

    def root_of(self, instance: Value) -> Value:
        """Return the version owning the bytes of `instance`."""
        return self._roots.get(instance, instance)

    def base_of(self, instance: Value) -> Value:
        """Return the program value of a version."""
        return self.origins[instance].base

    def outputs_bound_to(self, instance: Value) -> Iterator[Value]:
        """Yield the loop and branch outputs bound to `instance` in the current or an enclosing context."""
        for alias in self._aliases_of_root.get(instance, ()):
            made = self.origins[alias]
            if any(self.context[: len(context)] == context for context in made.contexts):
                yield made.base

    def in_definition_order(self, position: Mapping[Value, int]) -> dict[Value, VersionOrigin]:
        """Return all versions with their origins, sorted by the position of the base value in the program."""
        order = sorted(self.origins, key=lambda instance: position[self.origins[instance].base])
        return {instance: self.origins[instance] for instance in order}
