"""Binding of the open dimensions of a model's inputs to extents.

A dimension is bound by the name in the file ("batch"), for every occurrence of the name, or by input and axis ("x:2"),
for one axis only. The second form has precedence. A caller with input arrays at hand passes shapes instead.
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
"""dim_param texts written by some exporters for an unnamed dimension."""


Shape = Sequence[int]
Shapes = Mapping[str, Shape]
"""Shapes of inputs by name. A shape binds an open dimension or rank, and never changes a fixed extent."""


def named_extents(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> dict[str, int]:
    """Return the extents of named dimensions derived from `shapes`, without names bound to several extents or to 0."""
    extents_by_name: dict[str, set[int]] = {}
    for value in inputs:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if dim.dim_param not in UNNAMED:
                extents_by_name.setdefault(dim.dim_param, set()).add(extent)
    return {
        name: extent for name, extents in extents_by_name.items() for extent in extents if len(extents) == 1 and extent
    }


def bind_inputs(
    inputs: Sequence[onnx.ValueInfoProto], dims: Mapping[str, int], shapes: Shapes, where: str
) -> dict[str, Type]:
    """Return the types of `inputs` with open dimensions bound by `shapes` and `dims`.

    Raises ModelError for dimensions left open (listing all, with the missing options), for a name in `dims` unknown to
    the model, for a shape of another rank, and for an extent outside 1 to 2^56.
    """
    for name, extent in dims.items():
        if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= MAX_BYTES:
            raise ModelError(f"--dim {name}={extent}: an extent is a whole number from 1 to 2^56")
    known: dict[str, None] = {}
    missing: dict[str, str] = {}
    types: dict[str, Type] = {}
    for value in inputs:
        types[value.name] = _bind_input(value, dims, shapes.get(value.name), known, missing, where)
    unknown = [name for name in dims if name not in known]
    if unknown:
        names = ", ".join(known) or "none; all are fixed"
        raise ModelError(f"{where}: no dimension has the name {', '.join(unknown)}; open dimensions: {names}")
    if missing:
        lines = "".join(f"\n  {what}: --dim {name}=1" for name, what in missing.items())
        raise ModelError(f"{where}: {len(missing)} dimension(s) are open; declare an extent for each:{lines}")
    return types


def _bind_input(
    value: onnx.ValueInfoProto,
    dims: Mapping[str, int],
    shape: Shape | None,
    known: dict[str, None],
    missing: dict[str, str],
    where: str,
) -> Type:
    """Return the type of one input; add open dimensions to `known` and dimensions without an extent to `missing`."""
    type = read_type(value.type)
    if not isinstance(type, TensorType):
        return type
    if type.dims is None:
        return TensorType(type.elem, None if shape is None else tuple(shape))
    if shape is not None and len(shape) != len(type.dims):
        raise ModelError(
            f"{where}: input {value.name} has {len(type.dims)} dimensions; the shape passed has {len(shape)}"
        )
    extents: list[int | None] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value > 0 or (dim.HasField("dim_value") and dim.dim_value == 0):
            extents.append(int(dim.dim_value))
            continue
        place = f"input {value.name} axis {axis}"
        name = _dimension_name(dim, f"{where}: {place}") or f"{value.name}:{axis}"
        known.update({name: None, f"{value.name}:{axis}": None})
        extent = dims.get(f"{value.name}:{axis}", dims.get(name)) if shape is None else shape[axis]
        if extent is None and name not in missing:
            missing[name] = place
        extents.append(extent)
    return TensorType(type.elem, tuple(extents))


def _dimension_name(dim: Any, place: str) -> str:
    """Return the name of an open dimension, "" without a name; some exporters write -1 for an open dimension.

    Raises ModelError for any other negative extent.
    """
    if dim.HasField("dim_value") and dim.dim_value != -1:
        raise ModelError(f"{place}: the file declares extent {dim.dim_value}")
    return "" if dim.dim_param in UNNAMED else str(dim.dim_param)
