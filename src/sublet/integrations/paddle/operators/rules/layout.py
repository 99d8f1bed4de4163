"""Shape rules of operators that move, slice or concatenate tensors, or look up rows."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.base.errors import SpecError
from sublet.base.tensor import Dims, format_dims
from sublet.integrations.paddle.operators.rules.call import (
    Extent,
    PaddleCall,
    Result,
    Rule,
    axis_of,
    broadcast_shapes,
    common_extent,
    element_count,
    sum_of_extents,
)
from sublet.integrations.paddle.operators.rules.elementwise import target_shape


def _with_xshape(call: PaddleCall, out: Dims) -> Result:
    """Return the result with `XShape`: an empty tensor of shape (0, *shape of X), read by the gradient."""
    return {"Out": [out], "XShape": [(0, *call.dims())]}


def transpose(call: PaddleCall) -> Result:
    """Return the permuted extents. Raises SpecError for an invalid permutation."""
    x = call.dims()
    axes = [axis_of(axis, len(x)) for axis in call.integers("axis")]
    if sorted(axes) != list(range(len(x))):
        raise SpecError(f"cannot permute {format_dims(x)} by {axes}")
    return _with_xshape(call, tuple(x[axis] for axis in axes))


def reshape(call: PaddleCall) -> Result:
    """Return the new shape: 0 keeps an extent, -1 takes the remaining elements."""
    x = call.dims()
    target: list[Extent] = list(call.integers("shape"))
    if call.has_input("ShapeTensor"):
        target = list(call.first_elements("ShapeTensor") or ())
    elif call.has_input("Shape"):
        target = list(call.values("Shape") or [None] * (call.dims("Shape")[0] or 0))
    shape = [x[axis] if extent == 0 and axis < len(x) else extent for axis, extent in enumerate(target)]
    return _with_xshape(call, _fill_open_extent(x, shape))


def _fill_open_extent(x: Sequence[Extent], shape: list[Extent]) -> tuple[Extent, ...]:
    """Return the shape with a single open extent computed from the number of elements."""
    open_ = [axis for axis, extent in enumerate(shape) if extent is None or extent < 0]
    whole, rest = element_count(x), element_count([extent for extent in shape if extent is not None and extent >= 0])
    if len(open_) == 1 and whole is not None and rest:
        if whole % rest:
            raise SpecError(f"cannot reshape {format_dims(x)} to {format_dims(shape)}")
        shape[open_[0]] = whole // rest
    elif not open_:
        common_extent(
            whole,
            rest,
            f"cannot reshape {format_dims(x)} to {format_dims(shape)}, which has another number of elements",
        )
    return tuple(None if extent is None or extent < 0 else extent for extent in shape)


def flatten_range(call: PaddleCall) -> Result:
    """Return the extents with a range of axes flattened."""
    x = call.dims()
    if not x:
        return _with_xshape(call, (1,))
    start, stop = call.axis("start_axis", len(x), 1), call.axis("stop_axis", len(x), 1)
    return _with_xshape(call, (*x[:start], element_count(x[start : stop + 1]), *x[stop + 1 :]))


def flatten_at_axis(call: PaddleCall) -> Result:
    """Return the extents of a matrix, split at an axis."""
    x, axis = call.dims(), call.integer("axis", 1)
    return _with_xshape(call, (element_count(x[:axis]), element_count(x[axis:])))


def squeeze(call: PaddleCall) -> Result:
    """Return the extents without the given axes of extent 1; without all axes of extent 1 if none is given."""
    x = call.dims()
    axes = [axis_of(axis, len(x)) for axis in call.integers("axes")] or list(range(len(x)))
    return _with_xshape(call, tuple(extent for axis, extent in enumerate(x) if axis not in axes or extent != 1))


def unsqueeze(call: PaddleCall) -> Result:
    """Return the extents with new axes of extent 1."""
    out = list(call.dims())
    axes = call.values("AxesTensor") if call.has_input("AxesTensor") else call.integers("axes")
    if call.has_input("AxesTensorList"):
        axes = call.first_elements("AxesTensorList")
    for axis in axes or ():
        if axis is None:
            return {}
        out.insert(axis_of(axis, len(out) + 1), 1)
    return _with_xshape(call, tuple(out))


def concat(call: PaddleCall) -> Result:
    """Return the extents of a concatenation. Raises SpecError if the operands do not match."""
    every = [call.dims("X", position) for position in range(len(call.inputs.get("X", ())))]
    if not every:
        raise SpecError("has nothing to concatenate")
    axis_values = call.values("AxisTensor")
    if call.has_input("AxisTensor") and axis_values is None:
        return {}
    axis = axis_of((axis_values or call.integers("axis", (0,)))[0] or 0, len(every[0]))
    what = f"cannot concatenate {' and '.join(map(format_dims, every))}"
    if any(len(dims) != len(every[0]) for dims in every):
        raise SpecError(what)
    out = list(every[0])
    for dims in every[1:]:
        for other, extent in enumerate(dims):
            if other != axis:
                out[other] = common_extent(out[other], extent, f"{what} along axis {axis}")
    out[axis] = sum_of_extents([dims[axis] for dims in every])
    return {"Out": [tuple(out)]}


def split(call: PaddleCall) -> Result:
    """Return the extents of each piece."""
    x, count = call.dims(), call.outputs.get("Out", 0)
    if call.has_input("AxisTensor") or call.has_input("SectionsTensorList"):
        return {}
    axis, sections = call.axis("axis", len(x)), list(call.integers("sections"))
    if not sections:
        extent = x[axis]
        pieces: list[Extent] = [None if extent is None else extent // max(count, 1)] * count
    else:
        known = sum(section for section in sections if section >= 0)
        left = None if x[axis] is None else (x[axis] or 0) - known
        pieces = [left if section < 0 else section for section in sections]
    return {"Out": [(*x[:axis], piece, *x[axis + 1 :]) for piece in pieces]}


def slice_axes(call: PaddleCall) -> Result:
    """Return the extents of a slice, with or without a stride."""
    out = list(call.dims("Input"))
    axes = call.integers("axes")
    starts, ends = _slice_bounds(call, "starts", "StartsTensor"), _slice_bounds(call, "ends", "EndsTensor")
    steps = _slice_bounds(call, "strides", "StridesTensor") if call.type == "strided_slice" else [1] * len(axes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=False):
        axis = axis_of(axis, len(out))
        out[axis] = _slice_length(out[axis], start, end, step)
    dropped = {axis_of(axis, len(out)) for axis in call.integers("decrease_axis") if out}
    return {"Out": [tuple(extent for axis, extent in enumerate(out) if axis not in dropped)]}


def _slice_bounds(call: PaddleCall, name: str, tensor: str) -> Sequence[Extent]:
    """Return the bounds of a slice, from tensors or an attribute."""
    if call.has_input(f"{tensor}List"):
        return call.first_elements(f"{tensor}List") or ()
    if call.has_input(tensor):
        return call.values(tensor) or [None] * len(call.integers("axes"))
    return call.integers(name)


def _slice_length(extent: Extent, start: Extent, end: Extent, step: Extent) -> Extent:
    """Return the length of a slice, or None. A slice of a single element has a known length even in an open extent."""
    if start is None or end is None or not step:
        return None
    if extent is not None:
        return len(range(*slice(start, end, step).indices(extent)))
    if step == 1 and ((start == -1 and end > 1 << 30) or (end - start == 1 and start >= 0)):
        return 1
    return None


def stack(call: PaddleCall) -> Result:
    """Return the extents with a new axis for the operands."""
    x, count = call.dims(), len(call.inputs.get("X", ()))
    axis = axis_of(call.integer("axis"), len(x) + 1)
    return {"Y": [(*x[:axis], count, *x[axis:])]}


def unstack(call: PaddleCall) -> Result:
    """Return the extents of each piece, without the axis."""
    x = call.dims()
    axis = call.axis("axis", len(x))
    return {"Y": [(*x[:axis], *x[axis + 1 :])] * call.outputs.get("Y", 0)}


def unbind(call: PaddleCall) -> Result:
    """Return the extents of each piece, without the axis."""
    x = call.dims()
    axis = call.axis("axis", len(x))
    return {"Out": [(*x[:axis], *x[axis + 1 :])] * call.outputs.get("Out", 0)}


def expand(call: PaddleCall) -> Result:
    """Return the broadcast extents. Raises SpecError for a target of lower rank."""
    x = call.dims()
    target = target_shape(call, "shape", "Shape", "expand_shapes_tensor")
    lead = len(target) - len(x)
    if lead < 0:
        raise SpecError(f"cannot expand {format_dims(x)} to {format_dims(target)}")
    return {"Out": [broadcast_shapes(x, [x[i - lead] if e == -1 and i >= lead else e for i, e in enumerate(target)])]}


def tile(call: PaddleCall) -> Result:
    """Return the extents multiplied by the repetitions."""
    x = call.dims()
    times = target_shape(call, "repeat_times", "RepeatTimes", "repeat_times_tensor")
    rank = max(len(x), len(times))
    pairs = zip([*[1] * (rank - len(x)), *x], [*[1] * (rank - len(times)), *times], strict=True)
    return {"Out": [tuple(None if a is None or b is None else a * b for a, b in pairs)]}


def shape_of(call: PaddleCall) -> Result:
    """Return the extent of a shape tensor: the rank of the input."""
    return {"Out": [(len(call.dims("Input")),)]}


def gather(call: PaddleCall) -> Result:
    """Return the extents with an axis replaced by the number of indices."""
    x, index = call.dims(), call.dims("Index")
    axis = call.axis("axis", len(x))
    count = index if len(index) == 1 or not index else (element_count(index),)
    return {"Out": [(*x[:axis], *count, *x[axis + 1 :])]}


def index_select(call: PaddleCall) -> Result:
    """Return the extents with an axis replaced by the number of indices."""
    x, index = call.dims(), call.dims("Index")
    axis = call.axis("dim", len(x))
    return {"Out": [(*x[:axis], element_count(index), *x[axis + 1 :])]}


def gather_nd(call: PaddleCall) -> Result:
    """Return the extents for indices in the last axis of the index tensor."""
    x, index = call.dims(), call.dims("Index")
    if not index or index[-1] is None:
        return {}
    return {"Out": [(*index[:-1], *x[index[-1] :])]}


def lookup_table(call: PaddleCall) -> Result:
    """Return the extents of looked-up rows. The indices of the older operator end in an axis of 1."""
    ids = call.dims("Ids")
    rows = ids[:-1] if call.type == "lookup_table" else ids
    return {"Out": [(*rows, call.dims("W")[-1])]}


def one_hot(call: PaddleCall) -> Result:
    """Return the extents of one-hot vectors."""
    x = call.dims()
    return {"Out": [(*(x if call.type == "one_hot_v2" else x[:-1]), call.integer("depth", -1))]}


def top_k(call: PaddleCall) -> Result:
    """Return the extents of the largest elements and their indices."""
    x = call.dims()
    axis = call.axis("axis", len(x), -1)
    values = call.values("K")
    count = values[0] if values else None if call.has_input("K") else call.integer("k", 1)
    out = (*x[:axis], count, *x[axis + 1 :])
    return {"Out": [out], "Indices": [out]}


def arg_extremum(call: PaddleCall) -> Result:
    """Return the extents of an index of the maximum or minimum."""
    x = call.dims()
    if call.integer("flatten", 0):
        return {"Out": [(1,) * len(x) if call.integer("keepdims", 0) else ()]}
    axis = call.axis("axis", len(x), -1)
    kept = (1,) if call.integer("keepdims", 0) else ()
    return {"Out": [(*x[:axis], *kept, *x[axis + 1 :])]}


def argsort(call: PaddleCall) -> Result:
    """Return the extents of X, for the elements and the indices."""
    return {"Out": [call.dims()], "Indices": [call.dims()]}


RULES: dict[str, Rule] = {
    "transpose": transpose, "transpose2": transpose, "reshape": reshape, "reshape2": reshape,
    "flatten_contiguous_range": flatten_range, "flatten": flatten_at_axis, "flatten2": flatten_at_axis,
    "squeeze": squeeze, "squeeze2": squeeze, "unsqueeze": unsqueeze, "unsqueeze2": unsqueeze,
    "concat": concat, "split": split, "slice": slice_axes, "strided_slice": slice_axes,
    "stack": stack, "unstack": unstack, "unbind": unbind,
    "expand_v2": expand, "tile": tile, "shape": shape_of, "gather": gather, "index_select": index_select,
    "gather_nd": gather_nd, "lookup_table": lookup_table, "lookup_table_v2": lookup_table, "one_hot": one_hot,
    "one_hot_v2": one_hot, "top_k": top_k, "top_k_v2": top_k, "arg_max": arg_extremum, "arg_min": arg_extremum,
    "argsort": argsort, "tril_triu": lambda call: {"Out": [call.dims()]},
    "take_along_axis": lambda call: {"Result": [call.dims("Index")]},
    "index_sample": lambda call: {"Out": [call.dims("Index")]},
}  # fmt: skip
