"""Shapes that the caller tells of values whose shape nobody knows: planned as if they were known, and recorded.

Only what one node computes, or an input of the model, can be told: the carried values and results of loops and
branches follow from these. A kernel refuses to make another shape than was planned, so a wrong assumption ends a run
with an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.errors import ModelError, SubletError
from sublet.frontends.onnx.types import DTYPES, ELEMENTS, Dims, OtherType, TensorType, Type
from sublet.ir.graph import Value
from sublet.printable import printable
from sublet.tensor import DType, TensorSpec

_SHAPE = re.compile(r"([a-z0-9]*)\[([0-9, ]*)\]", re.ASCII)
SHOWN = 20


@dataclass
class Assumed:
    """What was told, as text by name of the value; `used` are the types that it closed."""

    told: Mapping[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)

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
