"""Assumed shapes: types given by the caller or declared by the file for values without shape inference.

The planner treats an assumed shape as the actual shape, and the model's recipe records every assumption. Only outputs
of single nodes and inputs of the model can be assumed; types of loop-carried values and of loop and branch results
follow from inference. A kernel refuses to compute any shape except the planned shape, so a wrong assumption ends a run
with an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.base.errors import ModelError, SubletError
from sublet.base.formatting import printable
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.reader.types import DTYPES, ELEMENT_NUMBERS, Dims, OtherType, TensorType, Type
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
