"""Shapes that nobody computes: told by the caller, or declared by the file. Planned as if they were so, and recorded.

Only what one node computes, or an input of the model, can be told: the carried values and results of loops and
branches follow from these. A kernel refuses to make another shape than was planned, so a wrong assumption ends a run
with an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sublet.base.errors import ModelError, SubletError
from sublet.base.printable import printable
from sublet.base.tensor import DType, TensorSpec
from sublet.frontends.onnx.types import DTYPES, ELEMENTS, Dims, OtherType, TensorType, Type
from sublet.ir.graph import Graph, Node, Value

_SHAPE = re.compile(r"([a-z0-9]*)\[([0-9, ]*)\]", re.ASCII)
SHOWN = 20


@dataclass
class Assumed:
    """What was told, as text by name of the value.

    used      the types that it closed
    declared  (name, type) of what the file declares and no rule computes
    measured  values whose shape, as far as it is known, has become a constant
    """

    told: Mapping[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    declared: list[tuple[str, str]] = field(default_factory=list)
    measured: set[str] = field(default_factory=set)

    def believe(self, name: str, type: Type) -> None:
        """Note that nothing but the file tells the type of a value."""
        self.declared.append((name, str(type)))

    def closed(self, name: str, type: Type) -> Type:
        """The type of a value, closed by what was told of it. Raises ModelError where the two contradict each other."""
        if name not in self.told:
            return type
        self.met.add(name)
        dtype, shape = _read(name, self.told[name])
        if isinstance(type, OtherType) or (type is not None and type.elem and type.elem not in DTYPES):
            raise _refused(name, f"is {type}, which has no fixed size")
        known = type or TensorType(0)
        dtype = dtype or DTYPES.get(known.elem)
        if dtype is None:
            raise _refused(name, f"has elements of a type that is not known: write {name}=f32[...] or the like")
        if known.elem not in (0, ELEMENTS[dtype]) or not _agree(known.dims, shape):
            raise _refused(name, f"is {known}, so it cannot be {self.told[name]}")
        if known.dims is None or None in known.dims:
            self.used[name] = str(_spec(name, dtype, shape))
        return TensorType(ELEMENTS[dtype], shape)

    def of(self, values: tuple[Value, ...]) -> dict[str, str]:
        """The assumptions that hold of these values, which are all. Raises ModelError for one that met no value."""
        for name in self.told:
            if name not in self.met:
                unknown = [repr(printable(value.name)) for value in values if not value.plannable]
                made = any(value.name == name for value in values)
                what = "is made by a loop or branch, or is a constant" if made else "is not in this model"
                raise _refused(name, f"{what}; values of unknown shape are: {', '.join(unknown[:SHOWN]) or 'none'}")
        return {value.name: self.used[value.name] for value in values if value.name in self.used}

    def believed(self, values: tuple[Value, ...]) -> dict[str, str]:
        """Of these values, which are all, those of a type that only the file tells."""
        declared = {name: type for name, type in self.declared if name not in self.used}
        return {value.name: declared[value.name] for value in values if value.name in declared}

    def enforcing(self, graph: Graph) -> frozenset[Value]:
        """Values that a run must compute though nobody reads them any more: constants were made of their shapes, which
        follow from a shape that nobody computed."""
        following: set[Value] = set()
        _follow(graph.nodes, {*self.used, *(name for name, _ in self.declared)}, following)
        return frozenset(value for value in following if value.name in self.measured)


def _follow(nodes: Sequence[Node], told: Collection[str], found: set[Value]) -> None:
    """Add to `found` the values whose shapes may follow from those of the values called `told`."""
    for node in nodes:
        reads = any(value in found for value in node.uses)
        for graph in node.subgraphs:
            if reads:
                found.update(graph.inputs)
            _follow(graph.nodes, told, found)
        gives = any(value in found for graph in node.subgraphs for value in graph.outputs)
        if reads or gives or any(value.name in told for value in node.defs):
            found.update(node.defs)


def _read(name: str, text: str) -> tuple[DType | None, tuple[int, ...]]:
    """`f32[1,8]`, `[1,8]`, `1,8` or `1x8`: a data type if there is one, and extents."""
    plain = text.strip()
    match = _SHAPE.fullmatch(plain if "[" in plain else f"[{plain.replace('x', ',')}]")
    extents = [extent.strip() for extent in match[2].split(",")] if match and match[2].strip() else []
    if match is None or not all(re.fullmatch("[0-9]{1,18}", extent) for extent in extents):
        raise ModelError(f"--assume {printable(name)}={text[:80]}: write a shape, for instance f32[1,8] or [1,8]")
    try:
        return DType.parse(match[1]) if match[1] else None, tuple(map(int, extents))
    except SubletError as error:
        raise _refused(name, f"cannot be {match[1]}: {error}") from None


def _agree(dims: Dims, shape: tuple[int, ...]) -> bool:
    """Whether a shape is one of those that leave open what `dims` do."""
    return dims is None or (len(dims) == len(shape) and all(d in (None, n) for d, n in zip(dims, shape, strict=True)))


def _spec(name: str, dtype: DType, shape: tuple[int, ...]) -> TensorSpec:
    try:
        return TensorSpec(dtype, shape)
    except SubletError as error:
        raise _refused(name, str(error)) from None


def _refused(name: str, what: str) -> ModelError:
    return ModelError(f"--assume {printable(name)}: the value {what}")
