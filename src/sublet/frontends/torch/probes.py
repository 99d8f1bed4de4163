"""Kernels of PyTorch's, each run once on small tensors of zeros to learn the types and strides of its results.

The table is for PyTorch 2.13.0. `python -m tests.frontends.pytorch.beside` runs the operators of PyTorch's own samples
beside tracing, with operands of one float type and of two, and tells each that differs and is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from sublet.base.extras import require
from sublet.frontends.torch.tensors import torch
from sublet.ops.aten import Strided

Reduce = Callable[[Sequence[Any]], Sequence[Any]]
"""(arguments, tensors on `meta`) -> the arguments of a smaller call whose results have the same types and the same
order of strides."""

LARGEST = 1 << 24
"""Elements of the arguments of a probe, and of the results where it is not made smaller: 64 MiB in f32. Beyond it the
traced tensors are taken."""


def _fewer(x: Any, axes: Sequence[int]) -> Any:
    """A tensor on `meta` with at most two elements along these axes, the other axes as long as before."""
    size = [min(n, 2) if axis in axes else n for axis, n in enumerate(x.shape)]
    lies = Strided(tuple(x.shape), tuple(x.stride()))
    stride = _ordered(size, lies.ordered) if lies.is_dense else x.stride()
    return torch().empty_strided(size, stride, dtype=x.dtype, device="meta")


def _ordered(size: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor whose axes lie in this order, the longest stride first."""
    axes = [axis for axis in range(len(size)) if axis not in order]
    stride, step = [1] * len(size), 1
    for axis in reversed([*axes, *order]):
        stride[axis] = step
        step *= max(size[axis], 1)
    return tuple(stride)


def _by_rows(*tensors: int, shape: int) -> Reduce:
    """Fewer rows of a normalisation over the last axes, whose shape is the argument at a position."""

    def reduce(args: Sequence[Any]) -> Sequence[Any]:
        found = list(args)
        for i in tensors:
            found[i] = _fewer(args[i], range(args[i].dim() - len(args[shape])))
        return found

    return reduce


def _by_channels(*tensors: int) -> Reduce:
    """As many channels, the second axis, and fewer elements along all other axes."""

    def reduce(args: Sequence[Any]) -> Sequence[Any]:
        found = list(args)
        for i in tensors:
            if found[i] is not None:
                found[i] = _fewer(args[i], [axis for axis in range(args[i].dim()) if axis != 1])
        return found

    return reduce


def _elementwise(args: Sequence[Any]) -> Sequence[Any]:
    """Fewer elements along all axes of all tensors; an axis that is broadcast stays so."""
    return [_fewer(each, range(each.dim())) if hasattr(each, "dim") else each for each in args]


def _by_sequences(*tensors: int) -> Reduce:
    """Fewer sequences, each of fewer elements; where a mask is given besides, the kernel refuses them."""

    def reduce(args: Sequence[Any]) -> Sequence[Any]:
        found = list(args)
        for i in tensors:
            found[i] = _fewer(args[i], (0, 1))
        return found

    return reduce


def _by_groups(args: Sequence[Any]) -> Sequence[Any]:
    """`native_group_norm(x, scale, bias, N, C, HxW, groups, epsilon)`."""
    found = list(_by_channels(0)(args))
    found[3], found[5] = found[0].shape[0], prod(found[0].shape[2:])
    return found


def _by_groups_backward(args: Sequence[Any]) -> Sequence[Any]:
    """`native_group_norm_backward(dy, x, mean, rstd, scale, N, C, HxW, groups, wanted)`."""
    found = list(_by_channels(0, 1)(args))
    found[2], found[3] = (_fewer(args[i], (0,)) for i in (2, 3))
    found[5], found[7] = found[1].shape[0], prod(found[1].shape[2:])
    return found


TABLE: Mapping[str, Reduce | None] = {
    "aten.native_layer_norm.default": _by_rows(0, shape=1),
    "aten.native_layer_norm_backward.default": _by_rows(0, 1, 3, 4, shape=2),
    "aten.native_group_norm.default": _by_groups,
    "aten.native_group_norm_backward.default": _by_groups_backward,
    "aten.native_batch_norm.default": _by_channels(0),
    "aten.native_batch_norm_backward.default": _by_channels(0, 1),
    "aten._native_batch_norm_legit.no_stats": _by_channels(0),
    "aten._native_batch_norm_legit_functional.default": _by_channels(0),
    "aten._native_batch_norm_legit_no_training.default": _by_channels(0),
    "aten.div.Tensor_mode": _elementwise,
    "aten.floor_divide.default": _elementwise,
    "aten._native_multi_head_attention.default": _by_sequences(0, 1, 2),
    "aten._transformer_encoder_layer_fwd.default": _by_sequences(0),
    "aten.channel_shuffle.default": None,
    "aten.glu_backward.default": None,
    "aten.huber_loss.default": _elementwise,
    "aten.huber_loss_backward.default": _elementwise,
    "aten.log_sigmoid_forward.default": _elementwise,
    "aten.max_unpool2d.default": None,
    "aten.mish_backward.default": _elementwise,
    "aten.mse_loss_backward.default": _elementwise,
    "aten.native_dropout_backward.default": _elementwise,
    "aten.pow.Scalar": _elementwise,
    "aten.replication_pad2d_backward.default": None,
    "aten.rrelu_with_noise_backward.default": _elementwise,
    "aten.smooth_l1_loss_backward.default": _elementwise,
    "aten.soft_margin_loss.default": _elementwise,
    "aten.soft_margin_loss_backward.default": _elementwise,
    "aten.threshold_backward.default": _elementwise,
}
"""By the operator's name, how a probe of it is made smaller; None for an operator that is probed as it is."""


def probed(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], traced: Any) -> Any:
    """Return tensors on `meta` of the types and strides that an operator's CPU kernel gives.

    Args:
        args, kwargs: arguments of an operator of the table, tensors on `meta`.
        traced: the traced results, on `meta`: they are returned where a probe would take too much memory.

    Raises RuntimeError and what else the kernel raises.
    """
    pytree = require("torch.utils._pytree", extra="torch")
    reduce = TABLE[str(target)]
    small = args if reduce is None else reduce(args)
    leaves, spec = pytree.tree_flatten((tuple(small), dict(kwargs)))
    counted = leaves if reduce is not None else (*leaves, *pytree.tree_leaves(traced))
    if sum(each.untyped_storage().nbytes() // each.itemsize for each in counted if hasattr(each, "itemsize")) > LARGEST:
        return traced
    key = tuple(_laid(each) if hasattr(each, "itemsize") else each for each in leaves)
    found = _run(target, spec, key)
    several = isinstance(traced, list | tuple)
    told = traced if several else (traced,)
    results = [_as_told(dtype, lies, each) for (dtype, lies), each in zip(found, told, strict=True)]
    return results if several else results[0]


class _Laid(tuple[Any, Strided]):
    """The type and layout of a tensor."""


def _laid(tensor: Any) -> _Laid:
    return _Laid((tensor.dtype, Strided(tuple(tensor.shape), tuple(tensor.stride()))))


@lru_cache(maxsize=4096)
def _run(target: Any, spec: Any, leaves: tuple[Any, ...]) -> tuple[tuple[Any, Strided | None], ...]:
    """Run a kernel on zeros: types and layouts of its results."""
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")
    given = [
        t.empty_strided(each[1].size, each[1].stride, dtype=each[0]).zero_() if isinstance(each, _Laid) else each
        for each in leaves
    ]
    args, kwargs = pytree.tree_unflatten(given, spec)
    with t.no_grad(), t.autocast("cpu", enabled=False):
        found = target(*args, **kwargs)
    results = found if isinstance(found, list | tuple) else (found,)
    return tuple((None, None) if each is None else _laid(each) for each in results)


def _as_told(dtype: Any, lies: Strided | None, told: Any) -> Any:
    """A tensor of the traced extents whose axes lie in the order of the probe's."""
    if lies is None or told is None:
        return None
    size = tuple(told.shape)
    alike = len(size) == len(lies.size) and all(
        n == small or (n > 2 and small == 2) for n, small in zip(size, lies.size, strict=True)
    )
    size = size if alike else lies.size
    stride = _ordered(size, lies.ordered) if lies.is_dense else lies.stride
    return torch().empty_strided(size, stride, dtype=dtype, device="meta")
