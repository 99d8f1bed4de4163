"""Out variants for ATen operators without an `out=` overload, as calls writing to the planned place.

Operators moving or filling elements copy or fill in place; gradients adding rows accumulate in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sublet.runtime.backends.torch.kernel import Tensor, torch
from sublet.runtime.kernel import Call

OutVariant = Callable[..., "Sequence[Call] | None"]
"""(result, *arguments of the operator) -> calls writing the result; None for unsupported arguments."""


def _fill_with(value: Any) -> OutVariant:
    """Return an out variant filling the result with `value`."""
    return lambda out, *args, **kwargs: [partial(out.fill_, value)]


def _fill_with_argument(position: int) -> OutVariant:
    """Return an out variant filling the result with the argument at `position`."""
    return lambda out, *args, **kwargs: [partial(out.fill_, args[position])]


def _copy(out: Tensor, like: Tensor, source: Tensor, non_blocking: bool = False) -> Sequence[Call]:
    return [partial(out.copy_, source)]


def _embedding(out: Tensor, weight: Tensor, indices: Tensor, *rest: Any) -> Sequence[Call] | None:
    if weight.dim() != 2 or not (indices.is_contiguous() and out.is_contiguous()):
        return None
    return [partial(torch().index_select, weight, 0, indices.view(-1), out=out.view(-1, weight.shape[1]))]


def _embedding_gradient(
    out: Tensor, dy: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool
) -> Sequence[Call] | None:
    """Add each row of `dy` to the row of the table at the index; the row of the padding index stays zero."""
    if by_frequency or not indices.is_contiguous() or not dy.is_contiguous():
        return None
    calls = [partial(out.zero_), partial(out.index_add_, 0, indices.view(-1), dy.view(-1, out.shape[1]))]
    return [*calls, partial(out[padding].zero_)] if padding >= 0 else calls


def _gradient_of_view(view: Callable[..., Tensor]) -> OutVariant:
    """Return an out variant for the gradient of a view: zero outside the view, `dy` inside."""

    def write(out: Tensor, dy: Tensor, sizes: Any, *args: Any) -> Sequence[Call]:
        return [partial(out.zero_), partial(view(out, *args).copy_, dy)]

    return write


def _scatter_into_view(view: Callable[..., Tensor]) -> OutVariant:
    """Return an out variant replacing the elements of a view in a copy of the base tensor."""

    def write(out: Tensor, base: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> Sequence[Call]:
        calls = [partial(view(out, *args, **kwargs).copy_, source)]
        return calls if out.data_ptr() == base.data_ptr() else [partial(out.copy_, base), *calls]

    return write


def _slice(x: Tensor, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    return torch().ops.aten.slice.Tensor(x, axis, start, end, step)


def _select(x: Tensor, axis: int, index: int) -> Tensor:
    return x.select(axis, index)


def _as_strided_view(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    return x.as_strided(size, stride, x.storage_offset() + (offset or 0))


def _pad(out: Tensor, x: Tensor, pads: Sequence[int], value: Any = 0) -> Sequence[Call]:
    """Fill the result and copy the input to the inner region; negative pads crop the input."""
    inner, source = out, x
    for number in range(len(pads) // 2):
        axis, before, after = x.dim() - 1 - number, pads[2 * number], pads[2 * number + 1]
        inner = inner.narrow(axis, max(before, 0), inner.shape[axis] - max(before, 0) - max(after, 0))
        source = source.narrow(axis, max(-before, 0), source.shape[axis] - max(-before, 0) - max(-after, 0))
    return [partial(out.fill_, value), partial(inner.copy_, source)]


def _roll(out: Tensor, x: Tensor, shifts: Sequence[int], axes: Sequence[int] = ()) -> Sequence[Call] | None:
    """Copy the two parts of every axis in exchanged order.

    None for a repeated axis, or if the numbers of axes and shifts differ.
    """
    shifts, axes = ([each] if isinstance(each, int) else list(each) for each in (shifts, axes))
    if len(axes) != len(shifts) or len({axis % x.dim() for axis in axes}) != len(axes):
        return None
    pairs = [(out, x)]
    for shift, axis in zip(shifts, axes, strict=True):
        extent = x.shape[axis]
        back = shift % extent if extent else 0
        pairs = [
            (to.narrow(axis, begin, count), source.narrow(axis, (begin - back) % extent if extent else 0, count))
            for to, source in pairs
            for begin, count in ((0, back), (back, extent - back))
            if count
        ]
    return [partial(to.copy_, source) for to, source in pairs]


def _mean_gradient(out: Tensor, dy: Tensor, x: Tensor) -> Sequence[Call] | None:
    """Spread the gradient of a mean over whole images evenly; None if the mean is over smaller windows."""
    if any(extent != 1 for extent in dy.shape[-2:]):
        return None
    return [partial(torch().div, dy.expand(out.shape), out.shape[-1] * out.shape[-2], out=out)]


def _repeat(out: Tensor, x: Tensor, repeats: Sequence[int]) -> Sequence[Call]:
    """Copy through a view of the output with a separate axis per repetition."""
    shape = (1,) * (len(repeats) - x.dim()) + tuple(x.shape)
    both = [extent for pair in zip(repeats, shape, strict=True) for extent in pair]
    inner = x.view([extent for each in shape for extent in (1, each)]) if x.is_contiguous() else None
    if inner is None or not out.is_contiguous():
        return [partial(_repeat_into, out, x, repeats)]
    return [partial(out.view(both).copy_, inner.expand(both))]


def _repeat_into(out: Tensor, x: Tensor, repeats: Sequence[int]) -> None:
    out.copy_(x.repeat(repeats))


OUT_VARIANTS: Mapping[str, OutVariant] = {
    "empty.memory_format": lambda out, *args, **kwargs: [],
    "empty_like.default": lambda out, *args, **kwargs: [],
    "empty_strided.default": lambda out, *args, **kwargs: [],
    "new_empty.default": lambda out, *args, **kwargs: [],
    "new_empty_strided.default": lambda out, *args, **kwargs: [],
    "new_zeros.default": _fill_with(0),
    "zeros_like.default": _fill_with(0),
    "new_ones.default": _fill_with(1),
    "ones_like.default": _fill_with(1),
    "full.default": _fill_with_argument(1),
    "full_like.default": _fill_with_argument(1),
    "new_full.default": _fill_with_argument(2),
    "scalar_tensor.default": _fill_with_argument(0),
    "copy.default": _copy,
    "embedding.default": _embedding,
    "embedding_dense_backward.default": _embedding_gradient,
    "slice_backward.default": _gradient_of_view(_slice),
    "select_backward.default": _gradient_of_view(_select),
    "slice_scatter.default": _scatter_into_view(_slice),
    "select_scatter.default": _scatter_into_view(_select),
    "as_strided_scatter.default": _scatter_into_view(_as_strided_view),
    "constant_pad_nd.default": _pad,
    "roll.default": _roll,
    "_adaptive_avg_pool2d_backward.default": _mean_gradient,
    "repeat.default": _repeat,
}
"""The out variant of each operator. No operator here draws random numbers, and each has a single result."""
