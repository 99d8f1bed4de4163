"""Binding the open dimensions of a model's inputs to numbers.

A dimension goes by the name the file gives it ("batch"), which binds it wherever the name occurs, or
by input and axis ("x:2"), which binds this one only and goes first. A caller who has the inputs at hand
gives their shapes instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.tensor import MAX_BYTES
from sublet.frontends.onnx.types import TensorType, Type, read_type

if TYPE_CHECKING:
    import onnx

UNNAMED = ("", "?")
"""dim_param texts that some exporters write for a dimension without a name."""


Shape = Sequence[int]
Shapes = Mapping[str, Shape]
"""Shapes of inputs by name: they close what the file leaves open, be it the rank, and change nothing it fixes."""


def named_extents(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> dict[str, int]:
    """What `shapes` say of the named dimensions; a name that stands for different extents is left out."""
    found: dict[str, set[int]] = {}
    for value in inputs:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if dim.dim_param not in UNNAMED:
                found.setdefault(dim.dim_param, set()).add(extent)
    return {name: extent for name, extents in found.items() for extent in extents if len(extents) == 1 and extent}


def bind_inputs(
    inputs: Sequence[onnx.ValueInfoProto], dims: Mapping[str, int], shapes: Shapes, where: str
) -> dict[str, Type]:
    """The types of `inputs` with their open dimensions bound by `shapes` and `dims`.

    Raises ModelError for dimensions that stay open (all of them, with what to add), for a name in
    `dims` that is none of the model's, for a shape of another rank, and for an extent that makes no sense.
    """
    for name, extent in dims.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= MAX_BYTES:
            raise ModelError(f"--dim {name}={extent}: an extent is a whole number from 1 to 2^56")
    known: dict[str, None] = {}
    missing: dict[str, str] = {}
    types: dict[str, Type] = {}
    for value in inputs:
        types[value.name] = _bind(value, dims, shapes.get(value.name), known, missing, where)
    unknown = [name for name in dims if name not in known]
    if unknown:
        names = ", ".join(known) or "none; all are fixed"
        raise ModelError(f"{where}: no dimension is called {', '.join(unknown)}; open dimensions: {names}")
    if missing:
        lines = "".join(f"\n  {what}: --dim {name}=1" for name, what in missing.items())
        raise ModelError(f"{where}: {len(missing)} dimension(s) are open; give each an extent:{lines}")
    return types


def _bind(
    value: onnx.ValueInfoProto,
    dims: Mapping[str, int],
    shape: Shape | None,
    known: dict[str, None],
    missing: dict[str, str],
    where: str,
) -> Type:
    """The type of one input; notes in `known` its open dimensions and in `missing` those without extent."""
    type = read_type(value.type)
    if not isinstance(type, TensorType):
        return type
    if type.dims is None:
        return TensorType(type.elem, None if shape is None else tuple(shape))
    if shape is not None and len(shape) != len(type.dims):
        raise ModelError(f"{where}: input {value.name} has {len(type.dims)} dimensions, not the {len(shape)} given")
    extents: list[int | None] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value > 0 or (dim.HasField("dim_value") and dim.dim_value == 0):
            extents.append(int(dim.dim_value))
            continue
        place = f"input {value.name} axis {axis}"
        name = _name(dim, f"{where}: {place}") or f"{value.name}:{axis}"
        known.update({name: None, f"{value.name}:{axis}": None})
        extent = dims.get(f"{value.name}:{axis}", dims.get(name)) if shape is None else shape[axis]
        if extent is None and name not in missing:
            missing[name] = place
        extents.append(extent)
    return TensorType(type.elem, tuple(extents))


def _name(dim: Any, place: str) -> str:
    """The name of an open dimension, "" when it has none; -1 is how some exporters write "open"."""
    if dim.HasField("dim_value") and dim.dim_value != -1:
        raise ModelError(f"{place}: the file says extent {dim.dim_value}")
    return "" if dim.dim_param in UNNAMED else str(dim.dim_param)
