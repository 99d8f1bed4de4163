"""How the normalisations see a tensor, and what they are in NumPy.

All are one thing seen in different shapes: statistics over some axes, then a scale and a bias along others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from sublet.ops.nn.command import pick
from sublet.ops.nn.shapes import axis_in
from sublet.ops.op import Attrs


@dataclass(frozen=True)
class Form:
    """How a tensor is seen: as `rows` for its statistics, taken over `axes`; as `seen` for scale and bias.

    Scale and bias are the same along the axes `across`. `centred` is 0 where the mean is not subtracted.
    """

    rows: tuple[int, ...]
    axes: tuple[int, ...]
    seen: tuple[int, ...]
    across: tuple[int, ...]
    centred: int = 1

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the statistics beside `rows`."""
        return tuple(1 if axis in self.axes else extent for axis, extent in enumerate(self.rows))

    @property
    def affine(self) -> tuple[int, ...]:
        """The shape of scale and bias beside `seen`."""
        return tuple(1 if axis in self.across else extent for axis, extent in enumerate(self.seen))

    @property
    def count(self) -> int:
        """Elements that go into one statistic."""
        return prod(self.rows[axis] for axis in self.axes)


def batch_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Statistics of each channel, over the samples and places."""
    axis = axis_in(pick(attrs, "axis"), len(shape))
    rows = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    return Form(rows, (0, 2), rows, (0, 2))


def layer_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Statistics over the last `axes` axes, for each index of those before."""
    first = len(shape) - pick(attrs, "axes")
    rows = (prod(shape[:first]), prod(shape[first:]))
    return Form(rows, (1,), rows, (0,))


def rms_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """As `layer_form`, around zero instead of the mean."""
    form = layer_form(shape, attrs)
    return Form(form.rows, form.axes, form.seen, form.across, centred=0)


def group_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Statistics of each group of channels of each sample."""
    samples, channels, places = shape[0], shape[1], prod(shape[2:])
    groups = pick(attrs, "groups")
    rows = (samples * groups, channels // groups * places)
    return Form(rows, (1,), (samples, channels, places), (0, 2))


def moments(x: Any, form: Form) -> tuple[Any, Any]:
    """Mean (0 where the form is not centred) and variance, of the shape `form.kept`."""
    rows = x.reshape(form.rows)
    mean = _mean(rows, form) if form.centred else np.zeros(form.kept, x.dtype)
    return mean, _mean(np.square(rows - mean), form)


def _mean(rows: Any, form: Form) -> Any:
    """Of the shape `form.kept`; 0 of no elements."""
    return rows.sum(axis=form.axes, keepdims=True) / max(1, form.count)


def applied(x: Any, scale: Any, bias: Any, mean: Any, rstd: Any, form: Form) -> Any:
    """x normalised, scaled and moved."""
    y = ((x.reshape(form.rows) - mean) * rstd).reshape(form.seen)
    y = y if scale is None else y * scale.reshape(form.affine)
    y = y if bias is None else y + bias.reshape(form.affine)
    return y.reshape(x.shape)


def gradients(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, form: Form) -> tuple[Any, ...]:
    """The gradients by x, scale and bias; only the first where there is no scale."""
    rstd = rstd.reshape(form.kept)
    normal = (x.reshape(form.rows) - (mean.reshape(form.kept) if form.centred else 0)) * rstd
    seen = dy.reshape(form.seen)
    grad = (seen if scale is None else seen * scale.reshape(form.affine)).reshape(form.rows)
    mean_grad = _mean(grad, form) if form.centred else 0
    dx = rstd * (grad - mean_grad - normal * _mean(grad * normal, form))
    if scale is None:
        return (dx.reshape(x.shape),)
    scaled = (seen * normal.reshape(form.seen)).sum(axis=form.across).reshape(scale.shape)
    return dx.reshape(x.shape), scaled, seen.sum(axis=form.across).reshape(scale.shape)


def batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float, momentum: float, axis: int
) -> tuple[Any, ...]:
    """Training: by the statistics of the batch; the running ones move towards them, the variance unbiased."""
    form = batch_form(x.shape, {"axis": axis})
    at, spread = moments(x, form)
    rstd = 1 / np.sqrt(spread + epsilon)
    unbiased = spread.reshape(mean.shape) * (form.count / (form.count - 1))
    return (
        applied(x, scale, bias, at, rstd, form),
        (1 - momentum) * mean + momentum * at.reshape(mean.shape),
        (1 - momentum) * var + momentum * unbiased,
        at.reshape(mean.shape),
        rstd.reshape(mean.shape),
    )


def batch_inference(x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float, axis: int) -> Any:
    """By the running statistics."""
    form = batch_form(x.shape, {"axis": axis})
    rstd = 1 / np.sqrt(var + epsilon)
    return applied(x, scale, bias, mean.reshape(form.kept), rstd.reshape(form.kept), form)


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axes: int, epsilon: float) -> tuple[Any, ...]:
    """Of each index of the leading axes."""
    form, kept = layer_form(x.shape, {"axes": axes}), x.shape[: x.ndim - axes]
    mean, var = moments(x, form)
    rstd = 1 / np.sqrt(var + epsilon)
    return applied(x, scale, bias, mean, rstd, form), mean.reshape(kept), rstd.reshape(kept)


def group_norm(x: Any, scale: Any = None, bias: Any = None, *, groups: int, epsilon: float) -> tuple[Any, ...]:
    """Of each group of channels of each sample."""
    form, kept = group_form(x.shape, {"groups": groups}), (x.shape[0], groups)
    mean, var = moments(x, form)
    rstd = 1 / np.sqrt(var + epsilon)
    return applied(x, scale, bias, mean, rstd, form), mean.reshape(kept), rstd.reshape(kept)


def rms_norm(x: Any, scale: Any = None, *, axes: int, epsilon: float) -> tuple[Any, ...]:
    """By the root of the mean square, without subtracting the mean (Zhang and Sennrich, 2019)."""
    form = rms_form(x.shape, {"axes": axes})
    mean, square = moments(x, form)
    rstd = 1 / np.sqrt(square + epsilon)
    return applied(x, scale, None, mean, rstd, form), rstd.reshape(x.shape[: x.ndim - axes])


def batch_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, axis: int) -> tuple[Any, ...]:
    """The gradients of `batch_norm` by x, scale and bias."""
    return gradients(dy, x, scale, mean, rstd, batch_form(x.shape, {"axis": axis}))


def layer_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, axes: int) -> tuple[Any, ...]:
    """The gradients of `layer_norm` by x, and by scale and bias where there is a scale."""
    return gradients(dy, x, scale, mean, rstd, layer_form(x.shape, {"axes": axes}))


def group_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, groups: int) -> tuple[Any, ...]:
    """The gradients of `group_norm` by x, and by scale and bias where there is a scale."""
    return gradients(dy, x, scale, mean, rstd, group_form(x.shape, {"groups": groups}))


def rms_gradient(dy: Any, x: Any, scale: Any, rstd: Any, axes: int) -> tuple[Any, ...]:
    """The gradients of `rms_norm` by x, and by scale where there is one."""
    return gradients(dy, x, scale, None, rstd, rms_form(x.shape, {"axes": axes}))[:2]
