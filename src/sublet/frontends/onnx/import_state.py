"""State of one ONNX import: unique names, constants, known values in scope, budgets and warnings."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sublet.base.errors import Finding, ModelError
from sublet.base.tensor import TensorSpec
from sublet.frontends.onnx.assumed_shapes import AssumedShapes
from sublet.frontends.onnx.types import Type, spec_of, type_of
from sublet.frontends.onnx.weights import Weight, literal_of
from sublet.ir.graph import Value

ATTEMPTS_PER_NODE = 100
MAX_FOLD_BYTES = 1 << 28
"""The bytes all folding together may read and write, to bound the time of an import."""


@dataclass(frozen=True, slots=True)
class KnownValue:
    """A value known during the import: the graph value, the type, and the content of a constant."""

    value: Value
    type: Type
    weight: Weight | None = None

    @property
    def unplannable_reason(self) -> str:
        """The reason the value cannot be planned; "" for a plannable value."""
        return "" if isinstance(self.value.spec, TensorSpec) else self.value.spec.reason


Scope = ChainMap[str, KnownValue]
"""The values readable in a graph, by name in the file; a sub-graph's scope is a child."""


@dataclass
class UniqueNames:
    """Generator of names unique in the whole program, with undo."""

    _uses: dict[str, int] = field(default_factory=dict)
    _log: list[tuple[str, str, int]] = field(default_factory=list)

    def fresh(self, base: str) -> str:
        """Return `base` if unused, else the first unused name of base.1, base.2, ..."""
        if base not in self._uses:
            self._uses[base] = 1
            self._log.append((base, base, 0))
            return base
        before = self._uses[base]
        count = before
        while (name := f"{base}.{count}") in self._uses:
            count += 1
        self._uses[base] = count + 1
        self._uses[name] = 1
        self._log.append((name, base, before))
        return name

    @property
    def mark(self) -> int:
        """The position in the log of names, for `rewind`."""
        return len(self._log)

    def rewind(self, mark: int) -> None:
        """Release every name generated since `mark`."""
        while len(self._log) > mark:
            name, base, before = self._log.pop()
            del self._uses[name]
            if base != name:
                self._uses[base] = before


@dataclass
class ImportState:
    """The state of one import.

    where         the model's name in messages
    budget        decreases with every converted node: a loop body is converted again after a wrong guess about the
                  carried values, and nested loops multiply
    fold_bytes    the bytes constant folding may still read and write
    conditional   the number of enclosing branches and loops without a certain run
    """

    where: str
    folder: Path | None
    opsets: Mapping[str, int]
    dims: Mapping[str, int]
    budget: int
    values: UniqueNames = field(default_factory=UniqueNames)
    nodes: UniqueNames = field(default_factory=UniqueNames)
    weights: dict[str, KnownValue] = field(default_factory=dict)
    assumed: AssumedShapes = field(default_factory=AssumedShapes)
    fold_bytes: int = MAX_FOLD_BYTES
    warnings: list[Finding] = field(default_factory=list)
    conditional: int = 0

    def warn(self, rule: str, where: str, what: str) -> None:
        """Record a warning about a node of the model."""
        self.warnings.append(Finding(rule, f"{self.where}: node {where}", what))

    @contextmanager
    def in_conditional_code(self, uncertain: bool = True) -> Iterator[None]:
        """Mark, as a context manager, the nodes converted inside as nodes that may never run."""
        self.conditional += uncertain
        try:
            yield
        finally:
            self.conditional -= uncertain

    @property
    def mark(self) -> tuple[int, ...]:
        """A point to restore with `rewind`."""
        lists = len(self.warnings), len(self.assumed.declared)
        return self.values.mark, self.nodes.mark, len(self.weights), *lists

    def rewind(self, mark: tuple[int, ...]) -> None:
        """Discard the names, constants and warnings added since `mark`; the budgets stay spent."""
        self.values.rewind(mark[0])
        self.nodes.rewind(mark[1])
        while len(self.weights) > mark[2]:
            self.weights.popitem()
        del self.warnings[mark[3] :]
        del self.assumed.declared[mark[4] :]

    def spend_budget(self, nodes: int) -> None:
        """Count `nodes` converted nodes. Raises ModelError when the budget is exceeded."""
        self.budget -= nodes
        if self.budget < 0:
            raise ModelError(f"{self.where}: shape inference of the nested loops needs too many attempts")

    def known_value(self, name: str, type: Type, reason: str) -> KnownValue:
        """Return a value under a name already reserved in `values`. Raises ModelError for an impossible shape."""
        try:
            return KnownValue(Value(name, spec_of(type, reason)), type)
        except ModelError as error:
            raise ModelError(f"{self.where}: value {name!r}: {error}") from None

    def fresh(self, base: str, type: Type, reason: str = "") -> KnownValue:
        """Return a new value named after `base`."""
        return self.known_value(self.values.fresh(base), type, reason)

    def constant(self, name: str, weight: Weight) -> KnownValue:
        """Add a constant under a name already reserved in `values`, and return the constant."""
        type = type_of(weight.spec) if isinstance(weight.spec, TensorSpec) else weight.type
        self.weights[name] = KnownValue(Value(name, weight.spec, literal_of(weight)), type, weight)
        return self.weights[name]
