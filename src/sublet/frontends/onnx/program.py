"""What is known while a model is being imported: names in use, constants, values in scope."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sublet.base.errors import Finding, ModelError
from sublet.base.tensor import TensorSpec
from sublet.frontends.onnx.assumed import Assumed
from sublet.frontends.onnx.types import Type, spec_of, type_of
from sublet.frontends.onnx.weights import Weight, literal_of
from sublet.ir.graph import Value

ATTEMPTS_PER_NODE = 100
FOLD_BYTES = 1 << 28
"""All folding together may read and write this many bytes: a bound on its time."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a name in the file: the value it became, its type, its content if constant."""

    value: Value
    type: Type
    weight: Weight | None = None

    @property
    def reason(self) -> str:
        """Why the value cannot be planned; "" when it can."""
        return "" if isinstance(self.value.spec, TensorSpec) else self.value.spec.reason


Scope = ChainMap[str, Known]
"""The values a graph can read, by their names in the file; a sub-graph's scope is a child."""


@dataclass
class Names:
    """Hands out names that are unique in the whole program, and can take back the latest."""

    _uses: dict[str, int] = field(default_factory=dict)
    _log: list[tuple[str, str, int]] = field(default_factory=list)

    def fresh(self, base: str) -> str:
        """`base` if it is free, else the first free of base.1, base.2, ..."""
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
        return len(self._log)

    def rewind(self, mark: int) -> None:
        """Take back every name handed out since `mark`."""
        while len(self._log) > mark:
            name, base, before = self._log.pop()
            del self._uses[name]
            if base != name:
                self._uses[base] = before


@dataclass
class Program:
    """The state of one import. `where` is what messages call the model.

    `budget` counts down with every node converted: a loop's body is converted again when a guess
    about its carried values fails, and nested loops multiply. `conditional` counts the branches and loops around
    what is being converted that may never run.
    """

    where: str
    folder: Path | None
    opsets: Mapping[str, int]
    dims: Mapping[str, int]
    budget: int
    values: Names = field(default_factory=Names)
    nodes: Names = field(default_factory=Names)
    weights: dict[str, Known] = field(default_factory=dict)
    assumed: Assumed = field(default_factory=Assumed)
    fold_bytes: int = FOLD_BYTES
    warnings: list[Finding] = field(default_factory=list)
    conditional: int = 0

    def warn(self, rule: str, where: str, what: str) -> None:
        """Note what its reader should know of the model."""
        self.warnings.append(Finding(rule, f"{self.where}: node {where}", what))

    @contextmanager
    def perhaps(self, uncertain: bool = True) -> Iterator[None]:
        """While nodes are converted that may never run."""
        self.conditional += uncertain
        try:
            yield
        finally:
            self.conditional -= uncertain

    @property
    def mark(self) -> tuple[int, ...]:
        """A point to come back to with `rewind`."""
        lists = len(self.warnings), len(self.assumed.declared)
        return self.values.mark, self.nodes.mark, len(self.weights), *lists

    def rewind(self, mark: tuple[int, ...]) -> None:
        """Forget the names and constants that came since `mark`; the budgets stay spent."""
        self.values.rewind(mark[0])
        self.nodes.rewind(mark[1])
        while len(self.weights) > mark[2]:
            self.weights.popitem()
        del self.warnings[mark[3] :]
        del self.assumed.declared[mark[4] :]

    def spend(self, nodes: int) -> None:
        """Count `nodes` converted nodes. Raises ModelError when the import has become unreasonable."""
        self.budget -= nodes
        if self.budget < 0:
            raise ModelError(f"{self.where}: its nested loops need too many attempts to find their shapes")

    def defined(self, name: str, type: Type, reason: str) -> Known:
        """A value under a name that is the program's already."""
        try:
            return Known(Value(name, spec_of(type, reason)), type)
        except ModelError as error:
            raise ModelError(f"{self.where}: value {name!r}: {error}") from None

    def fresh(self, base: str, type: Type, reason: str = "") -> Known:
        """A new value named after `base`."""
        return self.defined(self.values.fresh(base), type, reason)

    def constant(self, name: str, weight: Weight) -> Known:
        """A weight under a name that is the program's already."""
        type = type_of(weight.spec) if isinstance(weight.spec, TensorSpec) else weight.type
        self.weights[name] = Known(Value(name, weight.spec, literal_of(weight)), type, weight)
        return self.weights[name]
