"""Probes of PyTorch's CPU kernels: each kernel runs once on small zeros, to learn the types and strides of its results.

The table is for PyTorch 2.13.0. `python -m tests.integrations.torch.beside` runs the operators of PyTorch's own samples
beside the trace, with operands of one float type and of two, and lists each different operator missing in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from sublet.base.optional_imports import require
from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.traced_tensor import torch

ProbeReducer = Callable[[Sequence[Any]], Sequence[Any]]
"""(arguments on `meta`) -> the arguments of a smaller call, with results of the same types and order of strides."""

MAX_PROBE_ELEMENTS = 1 << 24
"""Maximum elements in the arguments of a probe, and in the results of a probe without reducer: 64 MiB in f32. Beyond
the maximum, the traced tensors are used.
"""


def _shrink_axes(x: Any, axes: Sequence[int]) -> Any:
    """Return a tensor on `meta` with at most two elements along `axes`.

    All further extents and the order of strides stay.
    """
    size = [min(n, 2) if axis in axes else n for axis, n in enumerate(x.shape)]
    layout = StridedLayout(tuple(x.shape), tuple(x.stride()))
    stride = _dense_strides(size, layout.axes_by_stride) if layout.is_dense else x.stride()
    return torch().empty_strided(size, stride, dtype=x.dtype, device="meta")


def _dense_strides(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor with the axes in `order`, the longest stride first."""
    axes = [axis for axis in range(len(size)) if axis not in order]
    stride, step = [1] * len(size), 1
    for axis in reversed([*axes, *order]):
        stride[axis] = step
        step *= max(size[axis], 1)
    return tuple(stride)


def _fewer_rows(*tensors: int, shape: int) -> ProbeReducer:
    """Return a reducer to fewer rows for a normalisation over the last axes.

    `shape` is the position of the normalised shape among the arguments.
    """

    def reduce(args: Sequence[Any]) -> Sequence[Any]:
        reduced = list(args)
        for i in tensors:
            reduced[i] = _shrink_axes(args[i], range(args[i].dim() - len(args[shape])))
        return reduced

    return reduce


def _keep_channels(*tensors: int) -> ProbeReducer:
    """Return a reducer keeping the channels, the second axis, and shrinking all other axes."""

    def reduce(args: Sequence[Any]) -> Sequence[Any]:
        reduced = list(args)
        for i in tensors:
            if reduced[i] is not None:
                reduced[i] = _shrink_axes(args[i], [axis for axis in range(args[i].dim()) if axis != 1])
        return reduced

    return reduce


def _shrink_all_axes(args: Sequence[Any]) -> Sequence[Any]:
    """Shrink all axes of all tensors; a broadcast axis stays broadcast."""
    return [_shrink_axes(each, range(each.dim())) if hasattr(each, "dim") else each for each in args]


def _fewer_sequences(*tensors: int) -> ProbeReducer:
    """Return a reducer to fewer and shorter sequences; the kernel refuses the reduced arguments beside a mask."""

    def reduce(args: Sequence[Any]) -> Sequence[Any]:
        reduced = list(args)
        for i in tensors:
            reduced[i] = _shrink_axes(args[i], (0, 1))
        return reduced

    return reduce


def _shrink_group_norm(args: Sequence[Any]) -> Sequence[Any]:
    """Shrink `native_group_norm(x, scale, bias, N, C, HxW, groups, epsilon)`."""
    reduced = list(_keep_channels(0)(args))
    reduced[3], reduced[5] = reduced[0].shape[0], prod(reduced[0].shape[2:])
    return reduced


def _shrink_group_norm_backward(args: Sequence[Any]) -> Sequence[Any]:
    """Shrink `native_group_norm_backward(dy, x, mean, rstd, scale, N, C, HxW, groups, wanted)`."""
    reduced = list(_keep_channels(0, 1)(args))
    reduced[2], reduced[3] = (_shrink_axes(args[i], (0,)) for i in (2, 3))
    reduced[5], reduced[7] = reduced[1].shape[0], prod(reduced[1].shape[2:])
    return reduced


PROBED_OPERATORS: Mapping[str, ProbeReducer | None] = {
    "aten.native_layer_norm.default": _fewer_rows(0, shape=1),
    "aten.native_layer_norm_backward.default": _fewer_rows(0, 1, 3, 4, shape=2),
    "aten.native_group_norm.default": _shrink_group_norm,
    "aten.native_group_norm_backward.default": _shrink_group_norm_backward,
    "aten.native_batch_norm.default": _keep_channels(0),
    "aten.native_batch_norm_backward.default": _keep_channels(0, 1),
    "aten._native_batch_norm_legit.no_stats": _keep_channels(0),
    "aten._native_batch_norm_legit_functional.default": _keep_channels(0),
    "aten._native_batch_norm_legit_no_training.default": _keep_channels(0),
    "aten.div.Tensor_mode": _shrink_all_axes,
    "aten.floor_divide.default": _shrink_all_axes,
    "aten._native_multi_head_attention.default": _fewer_sequences(0, 1, 2),
    "aten._transformer_encoder_layer_fwd.default": _fewer_sequences(0),
    "aten.channel_shuffle.default": None,
    "aten.glu_backward.default": None,
    "aten.huber_loss.default": _shrink_all_axes,
    "aten.huber_loss_backward.default": _shrink_all_axes,
    "aten.log_sigmoid_forward.default": _shrink_all_axes,
    "aten.max_unpool2d.default": None,
    "aten.mish_backward.default": _shrink_all_axes,
    "aten.mse_loss_backward.default": _shrink_all_axes,
    "aten.native_dropout_backward.default": _shrink_all_axes,
    "aten.normal.Tensor_Tensor": _shrink_all_axes,
    "aten.pow.Scalar": _shrink_all_axes,
    "aten.replication_pad2d_backward.default": None,
    "aten.rrelu_with_noise_backward.default": _shrink_all_axes,
    "aten.smooth_l1_loss_backward.default": _shrink_all_axes,
    "aten.soft_margin_loss.default": _shrink_all_axes,
    "aten.soft_margin_loss_backward.default": _shrink_all_axes,
    "aten.threshold_backward.default": _shrink_all_axes,
}
"""Reducers of probes by operator; None probes an operator in full size."""


def probe_results(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], traced: Any) -> Any:
    """Return tensors on `meta` with the types and strides of an operator's CPU kernel.

    Args:
        target: an operator of the table.
        args: arguments by position, tensors on `meta`.
        kwargs: arguments by name.
        traced: the traced results, on `meta`; returned unchanged if a probe would exceed `MAX_PROBE_ELEMENTS`.

    Raises:
        RuntimeError: or any other error of the kernel.
    """
    pytree = require("torch.utils._pytree", extra="torch")
    reduce = PROBED_OPERATORS[str(target)]
    small = args if reduce is None else reduce(args)
    leaves, spec = pytree.tree_flatten((tuple(small), dict(kwargs)))
    counted = leaves if reduce is not None else (*leaves, *pytree.tree_leaves(traced))
    if (
        sum(each.untyped_storage().nbytes() // each.itemsize for each in counted if hasattr(each, "itemsize"))
        > MAX_PROBE_ELEMENTS
    ):
        return traced
    key = tuple(_type_and_layout(each) if hasattr(each, "itemsize") else each for each in leaves)
    results_of_run = _run_kernel(target, spec, key)
    is_sequence = isinstance(traced, list | tuple)
    traced_results = traced if is_sequence else (traced,)
    results = [
        _with_traced_extents(dtype, lies, each)
        for (dtype, lies), each in zip(results_of_run, traced_results, strict=True)
    ]
    return results if is_sequence else results[0]


class _TypeAndLayout(tuple[Any, StridedLayout]):
    """The type and layout of a tensor."""


def _type_and_layout(tensor: Any) -> _TypeAndLayout:
    """Return the type and layout of a tensor."""
    return _TypeAndLayout((tensor.dtype, StridedLayout(tuple(tensor.shape), tuple(tensor.stride()))))


@lru_cache(maxsize=4096)
def _run_kernel(target: Any, spec: Any, leaves: tuple[Any, ...]) -> tuple[tuple[Any, StridedLayout | None], ...]:
    """Run a kernel on zeros, and return the types and layouts of the results."""
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")
    given = [
        t.empty_strided(each[1].size, each[1].stride, dtype=each[0]).zero_()
        if isinstance(each, _TypeAndLayout)
        else each
        for each in leaves
    ]
    args, kwargs = pytree.tree_unflatten(given, spec)
    draws = t.Tag.nondeterministic_seeded in target.tags  # a probe must not advance the caller's random generator
    with t.no_grad(), t.autocast("cpu", enabled=False), t.random.fork_rng(devices=[], enabled=draws):
        returned = target(*args, **kwargs)
    results = returned if isinstance(returned, list | tuple) else (returned,)
    return tuple((None, None) if each is None else _type_and_layout(each) for each in results)


def _with_traced_extents(dtype: Any, lies: StridedLayout | None, told: Any) -> Any:
    """Return a tensor with the traced extents and the axis order of the probe."""
    if lies is None or told is None:
        return None
    size = tuple(told.shape)
    alike = len(size) == len(lies.size) and all(
        n == small or (n > 2 and small == 2) for n, small in zip(size, lies.size, strict=True)
    )
    size = size if alike else lies.size
    stride = _dense_strides(size, lies.axes_by_stride) if lies.is_dense else lies.stride
    return torch().empty_strided(size, stride, dtype=dtype, device="meta")
