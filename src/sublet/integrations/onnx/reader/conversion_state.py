"""State of one ONNX import: unique names, constants, assumed shapes, known values in scope, budgets and warnings."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.errors import Finding, ModelError, SubletError
from sublet.base.formatting import printable
from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.reader.model_file import TakenBranches, node_title
from sublet.integrations.onnx.reader.ranged_shapes import Content
from sublet.integrations.onnx.reader.types import (
    DTYPES,
    ELEMENT_NUMBERS,
    Dims,
    OtherType,
    TensorType,
    Type,
    spec_of,
    type_of,
)
from sublet.integrations.onnx.reader.weights import Weight, literal_of, weight_of_array
from sublet.ir.graph import Graph, Node, Value

_SHAPE = re.compile(r"([a-z0-9]*)\[([0-9, ]*)\]", re.ASCII)
MAX_SHOWN_VALUES = 20


@dataclass
class AssumedShapes:
    """Shapes assumed by the caller, and types declared only by the file, collected during one import.

    given_types       the caller's assumptions: text like "f32[1,8]" by value name
    closed_types      the assumptions needed to complete an open type, as text by value name
    matched_names     names in `given_types` found in the model
    declared          (name, type) of values typed only by the file's declaration
    shape_constants   names of values whose shape was folded into a constant
    """

    given_types: Mapping[str, str] = field(default_factory=dict)
    closed_types: dict[str, str] = field(default_factory=dict)
    matched_names: set[str] = field(default_factory=set)
    declared: list[tuple[str, str]] = field(default_factory=list)
    shape_constants: set[str] = field(default_factory=set)

    def record_declared(self, name: str, type: Type) -> None:
        """Record the type of a value typed only by the file's declaration."""
        self.declared.append((name, str(type)))

    def close_type(self, name: str, type: Type) -> Type:
        """Return the type of the value, completed by the caller's assumption.

        Without an assumption for `name` the type is returned unchanged. Raises ModelError if the assumption contradicts
        the inferred type, or if the value has no fixed size.
        """
        if name not in self.given_types:
            return type
        self.matched_names.add(name)
        dtype, shape = _parse_assumption(name, self.given_types[name])
        if isinstance(type, OtherType) or (type is not None and type.elem and type.elem not in DTYPES):
            raise _refusal(name, f"is {type}, which has no fixed size")
        known = type or TensorType(0)
        dtype = dtype or DTYPES.get(known.elem)
        if dtype is None:
            raise _refusal(name, f"has an unknown element type: write {name}=f32[...], for instance")
        if known.elem not in (0, ELEMENT_NUMBERS[dtype]) or not _may_have_shape(known.dims, shape):
            raise _refusal(name, f"is {known}, which contradicts {self.given_types[name]}")
        if known.dims is None or None in known.dims:
            self.closed_types[name] = str(_assumed_spec(name, dtype, shape))
        return TensorType(ELEMENT_NUMBERS[dtype], shape)

    def assumptions_used_for(self, values: tuple[Value, ...]) -> dict[str, str]:
        """Return the assumptions used for `values`, which must be all values of the graph.

        Raises ModelError for an assumption without a matching value.
        """
        for name in self.given_types:
            if name not in self.matched_names:
                unknown = [repr(printable(value.name)) for value in values if not value.plannable]
                defined = any(value.name == name for value in values)
                what = "is an output of a loop or branch, or a constant" if defined else "is not in this model"
                raise _refusal(
                    name, f"{what}; values of unknown shape are: {', '.join(unknown[:MAX_SHOWN_VALUES]) or 'none'}"
                )
        return {value.name: self.closed_types[value.name] for value in values if value.name in self.closed_types}

    def declared_types_of(self, values: tuple[Value, ...]) -> dict[str, str]:
        """Return the types of `values` known only from the file's declarations, by name.

        `values` must be all values of the graph.
        """
        declared = {name: type for name, type in self.declared if name not in self.closed_types}
        return {value.name: declared[value.name] for value in values if value.name in declared}

    def values_to_enforce(self, graph: Graph) -> frozenset[Value]:
        """Return the values a run must compute even without a reader, to check assumed shapes.

        Constants were folded from the shapes of these values, and the shapes follow from an assumed or declared shape.
        """
        following: set[Value] = set()
        _collect_dependents(graph.nodes, {*self.closed_types, *(name for name, _ in self.declared)}, following)
        return frozenset(value for value in following if value.name in self.shape_constants)


def _collect_dependents(nodes: Sequence[Node], declared: Collection[str], found: set[Value]) -> None:
    """Add to `found` the values whose shapes may depend on the values named in `declared`."""
    for node in nodes:
        reads = any(value in found for value in node.uses)
        for graph in node.subgraphs:
            if reads:
                found.update(graph.inputs)
            _collect_dependents(graph.nodes, declared, found)
        gives = any(value in found for graph in node.subgraphs for value in graph.outputs)
        if reads or gives or any(value.name in declared for value in node.defs):
            found.update(node.defs)


def _parse_assumption(name: str, text: str) -> tuple[DType | None, tuple[int, ...]]:
    """Parse an assumption like `f32[1,8]`, `[1,8]`, `1,8` or `1x8` into a data type, None without one, and extents.

    Raises ModelError for text of another form.
    """
    plain = text.strip()
    match = _SHAPE.fullmatch(plain if "[" in plain else f"[{plain.replace('x', ',')}]")
    extents = [extent.strip() for extent in match[2].split(",")] if match and match[2].strip() else []
    if match is None or not all(re.fullmatch("[0-9]{1,18}", extent) for extent in extents):
        raise ModelError(f"--assume {printable(name)}={text[:80]}: write a shape, for instance f32[1,8] or [1,8]")
    try:
        return DType.parse(match[1]) if match[1] else None, tuple(map(int, extents))
    except SubletError as error:
        raise _refusal(name, f"cannot be {match[1]}: {error}") from None


def _may_have_shape(dims: Dims, shape: tuple[int, ...]) -> bool:
    """True if `shape` matches every known extent of `dims`."""
    return dims is None or (len(dims) == len(shape) and all(d in (None, n) for d, n in zip(dims, shape, strict=True)))


def _assumed_spec(name: str, dtype: DType, shape: tuple[int, ...]) -> TensorSpec:
    """Return the tensor spec of an assumed value. Raises ModelError for an impossible shape."""
    try:
        return TensorSpec(dtype, shape)
    except SubletError as error:
        raise _refusal(name, str(error)) from None


def _refusal(name: str, what: str) -> ModelError:
    """Return the error for an impossible assumption."""
    return ModelError(f"--assume {printable(name)}: the value {what}")


ATTEMPTS_PER_NODE = 100
MAX_FOLD_BYTES = 1 << 28
"""The bytes all folding together may read and write, to bound the time of an import."""


@dataclass(frozen=True, slots=True)
class KnownValue:
    """A value known during the import: the graph value, the type, and the content of a constant.

    `content` holds the elements of a shape computed from dimensions with ranges, see `ranged_shapes`.
    """

    value: Value
    type: Type
    weight: Weight | None = None
    content: Content | None = None

    @property
    def unplannable_reason(self) -> str:
        """The reason the value cannot be planned; "" for a plannable value."""
        return "" if isinstance(self.value.spec, TensorSpec) else self.value.spec.reason


Scope = ChainMap[str, KnownValue]
"""The values readable in a graph, by name in the file; a sub-graph's scope is a child."""


_new_generator = partial(NameGenerator, separator=".", first=1)


@dataclass
class ImportState:
    """The state of one import.

    where         the model's name in messages
    budget        decreases with every converted node: a loop body is converted again after a wrong guess about the
                  carried values, and nested loops multiply
    fold_bytes    the bytes constant folding may still read and write
    taken         the branches of Ifs with a constant condition that run once, if the model runs
    path          the first outputs of the inlined Ifs around the nodes under conversion
    conditional   the number of enclosing branches and loops without a certain run
    loop_limits   the maximum trip counts of loops with growing values, by loop; None: no value may grow
    undecided     the names in `dims` of extents that depend on data, until a node measures the extent
    """

    where: str
    folder: Path | None
    opsets: Mapping[str, int]
    dims: Mapping[str, int]
    budget: int
    values: NameGenerator = field(default_factory=_new_generator)
    nodes: NameGenerator = field(default_factory=_new_generator)
    weights: dict[str, KnownValue] = field(default_factory=dict)
    assumed: AssumedShapes = field(default_factory=AssumedShapes)
    fold_bytes: int = MAX_FOLD_BYTES
    warnings: list[Finding] = field(default_factory=list)
    taken: TakenBranches = field(default_factory=dict)
    path: tuple[str, ...] = ()
    conditional: int = 0
    loop_limits: Mapping[str, int] | None = None
    undecided: set[str] = field(default_factory=set)

    def warn(self, rule: str, where: str, what: str, fix: str = "") -> None:
        """Record a warning about a node of the model."""
        self.warnings.append(Finding(rule, f"{self.where}: node {where}", what, fix))

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

    def known_value(self, name: str, type: Type, reason: str, content: Content | None = None) -> KnownValue:
        """Return a value under a name already reserved in `values`. Raises ModelError for an impossible shape."""
        try:
            literal = None if content is None else tuple(content.ravel().tolist())
            return KnownValue(Value(name, spec_of(type, reason), literal), type, content=content)
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


# State of an ONNX graph under conversion: the readable values and the nodes converted so far.

if TYPE_CHECKING:
    import onnx

BOOL_SCALAR = TensorType(9, ())
COUNT_SCALAR = TensorType(7, ())


@dataclass
class GraphConversion:
    """One ONNX graph under conversion.

    program   the state of the whole import
    scope     the readable values, by name in the file
    names     the unique name of each value defined by a node of the graph, by name in the file
    nodes     the nodes converted so far
    """

    program: ImportState
    scope: Scope
    names: Mapping[str, str]
    nodes: list[Node] = field(default_factory=list)

    def lookup(self, name: str) -> KnownValue | None:
        """Return the known value of a name; None for the empty name of an omitted input."""
        return self.scope[name] if name else None

    def define(self, name: str, type: Type, reason: str, content: Content | None = None) -> Value:
        """Define the node output called `name` in the file, and return the new value."""
        known = self.program.known_value(self.names[name], type, reason, content)
        self.scope[name] = known
        return known.value

    def emit(self, op: str, base: str, inputs: Sequence[KnownValue], type: Type) -> KnownValue:
        """Append a node absent from the file, named after `base`, and return the single output."""
        result = self.program.fresh(base, type)
        name = self.program.nodes.fresh(base)
        self.nodes.append(Node(name, op, tuple(known.value for known in inputs), (result.value,)))
        return result


GraphConverter = Callable[[ImportState, "onnx.GraphProto", Scope], GraphConversion]
"""A function converting a graph whose inputs are in the scope, and adding the values of the graph to the scope."""


def node_error(frame: GraphConversion, node: onnx.NodeProto, what: str) -> ModelError:
    """Return the error for a malformed node."""
    return ModelError(f"{frame.program.where}: node {node_title(node)} {what}")


def graph_attribute(frame: GraphConversion, node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    """Return the sub-graph in an attribute. Raises ModelError without the attribute."""
    for attribute in node.attribute:
        if attribute.name == name and attribute.HasField("g"):
            graph: onnx.GraphProto = attribute.g
            return graph
    raise node_error(frame, node, f"has no graph {name!r}")


def results_of(program: ImportState, graph: onnx.GraphProto, scope: Scope) -> tuple[KnownValue, ...]:
    """Return the known values of the graph's outputs. Raises ModelError for an undefined output."""
    for output in graph.output:
        if output.name not in scope:
            raise ModelError(f"{program.where}: the output {output.name!r} of graph {graph.name!r} is not defined")
    return tuple(scope[output.name] for output in graph.output)


def integer_constant(program: ImportState, base: str, *numbers: int, scalar: bool = False) -> KnownValue:
    """Return a new i64 constant: a vector of `numbers`, or a scalar of the first number."""
    array = np.array(numbers[0] if scalar else numbers, dtype=np.int64)
    return program.constant(program.values.fresh(base), weight_of_array(array, TensorSpec(DType.I64, array.shape)))


def true_constant(program: ImportState, base: str) -> KnownValue:
    """Return a new bool scalar constant with the value true."""
    return program.constant(program.values.fresh(base), weight_of_array(np.array(True), TensorSpec(DType.BOOL)))


def as_scalar(frame: GraphConversion, known: KnownValue, type: TensorType, base: str) -> KnownValue:
    """Return `known`, a single element of any shape, as a scalar of `type`.

    The result is `known` unchanged, a constant, or a Reshape. ONNX allows [] and [1] for conditions and trip counts.
    Raises ModelError for any further shape or element type.
    """
    if known.type == type:
        return known
    spec = known.value.spec
    if isinstance(spec, TensorSpec) and (spec.size != 1 or ELEMENT_NUMBERS[spec.dtype] != type.elem):
        raise ModelError(f"{frame.program.where}: {base!r} must be one element of {type}, not {spec}")
    if known.weight is not None and isinstance(spec, TensorSpec):
        scalar = weight_of_array(known.weight.array().reshape(()), TensorSpec(spec.dtype))
        return frame.program.constant(frame.program.values.fresh(base), scalar)
    return frame.emit("onnx.Reshape", base, (known, integer_constant(frame.program, f"{base}.shape")), type)
