"""Shapes of the normalisations, and their NumPy definitions.

All normalisations are one algorithm on different shapes: statistics over some axes, then scale and bias along others.
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
    """The shapes of a normalisation.

    rows         the shape for statistics, taken over `axes`
    affine_view  the shape for scale and bias, constant along the axes `affine_axes`
    centred      0 if the mean is not subtracted
    """

    rows: tuple[int, ...]
    axes: tuple[int, ...]
    seen: tuple[int, ...]
    across: tuple[int, ...]
    centred: int = 1

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the statistics, broadcastable to `rows`."""
        return tuple(1 if axis in self.axes else extent for axis, extent in enumerate(self.rows))

    @property
    def affine(self) -> tuple[int, ...]:
        """The shape of scale and bias, broadcastable to `affine_view`."""
        return tuple(1 if axis in self.across else extent for axis, extent in enumerate(self.seen))

    @property
    def count(self) -> int:
        """The number of elements per statistic."""
        return prod(self.rows[axis] for axis in self.axes)


def batch_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Return the form of batch norm: statistics of each channel, over samples and places."""
    axis = axis_in(pick(attrs, "axis"), len(shape))
    rows = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    return Form(rows, (0, 2), rows, (0, 2))


def layer_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Return the form of layer norm: statistics over the last `axes` axes, for each index of the leading axes."""
    first = len(shape) - pick(attrs, "axes")
    rows = (prod(shape[:first]), prod(shape[first:]))
    return Form(rows, (1,), rows, (0,))


def rms_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Return the form of RMS norm: as `layer_form`, but without subtracting the mean."""
    form = layer_form(shape, attrs)
    return Form(form.rows, form.axes, form.seen, form.across, centred=0)


def group_form(shape: Sequence[int], attrs: Attrs) -> Form:
    """Return the form of group norm: statistics of each group of channels of each sample."""
    samples, channels, places = shape[0], shape[1], prod(shape[2:])
    groups = pick(attrs, "groups")
    rows = (samples * groups, channels // groups * places)
    return Form(rows, (1,), (samples, channels, places), (0, 2))


def moments(x: Any, form: Form) -> tuple[Any, Any]:
    """Return mean (0 if the form is not centred) and variance, of shape `form.statistics_shape`."""
    rows = x.reshape(form.rows)
    mean = _mean(rows, form) if form.centred else np.zeros(form.kept, x.dtype)
    return mean, _mean(np.square(rows - mean), form)


def _mean(rows: Any, form: Form) -> Any:
    """Return the mean, of shape `form.statistics_shape`; 0 for no elements."""
    return rows.sum(axis=form.axes, keepdims=True) / max(1, form.count)


def applied(x: Any, scale: Any, bias: Any, mean: Any, rstd: Any, form: Form) -> Any:
    """Return x normalised, scaled and shifted."""
    y = ((x.reshape(form.rows) - mean) * rstd).reshape(form.seen)
    y = y if scale is None else y * scale.reshape(form.affine)
    y = y if bias is None else y + bias.reshape(form.affine)
    return y.reshape(x.shape)


def gradients(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, form: Form) -> tuple[Any, ...]:
    """Return the gradients by x, scale and bias; only by x without a scale."""
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
    """Normalise with the statistics of the batch, for training.

    Returns y, new running mean and variance, batch mean, and 1 / deviation. The running variance uses the unbiased
    variance of the batch.
    """
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
    """Normalise with the running statistics."""
    form = batch_form(x.shape, {"axis": axis})
    rstd = 1 / np.sqrt(var + epsilon)
    return applied(x, scale, bias, mean.reshape(form.kept), rstd.reshape(form.kept), form)


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axes: int, epsilon: float) -> tuple[Any, ...]:
    """Normalise each index of the leading axes. Returns y, mean and 1 / deviation."""
    form, kept = layer_form(x.shape, {"axes": axes}), x.shape[: x.ndim - axes]
    mean, var = moments(x, form)
    rstd = 1 / np.sqrt(var + epsilon)
    return applied(x, scale, bias, mean, rstd, form), mean.reshape(kept), rstd.reshape(kept)


def group_norm(x: Any, scale: Any = None, bias: Any = None, *, groups: int, epsilon: float) -> tuple[Any, ...]:
    """Normalise each group of channels of each sample. Returns y, mean and 1 / deviation."""
    form, kept = group_form(x.shape, {"groups": groups}), (x.shape[0], groups)
    mean, var = moments(x, form)
    rstd = 1 / np.sqrt(var + epsilon)
    return applied(x, scale, bias, mean, rstd, form), mean.reshape(kept), rstd.reshape(kept)


def rms_norm(x: Any, scale: Any = None, *, axes: int, epsilon: float) -> tuple[Any, ...]:
    """Divide by the root mean square, without the mean (Zhang and Sennrich, 2019). Returns y and 1 / root."""
    form = rms_form(x.shape, {"axes": axes})
    mean, square = moments(x, form)
    rstd = 1 / np.sqrt(square + epsilon)
    return applied(x, scale, None, mean, rstd, form), rstd.reshape(x.shape[: x.ndim - axes])


def batch_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, axis: int) -> tuple[Any, ...]:
    """Return the gradients of `batch_norm` by x, scale and bias."""
    return gradients(dy, x, scale, mean, rstd, batch_form(x.shape, {"axis": axis}))


def layer_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, axes: int) -> tuple[Any, ...]:
    """Return the gradients of `layer_norm` by x, and by scale and bias if a scale is present."""
    return gradients(dy, x, scale, mean, rstd, layer_form(x.shape, {"axes": axes}))


def group_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, groups: int) -> tuple[Any, ...]:
    """Return the gradients of `group_norm` by x, and by scale and bias if a scale is present."""
    return gradients(dy, x, scale, mean, rstd, group_form(x.shape, {"groups": groups}))


def rms_gradient(dy: Any, x: Any, scale: Any, rstd: Any, axes: int) -> tuple[Any, ...]:
    """Return the gradients of `rms_norm` by x, and by scale if a scale is present."""
    return gradients(dy, x, scale, None, rstd, rms_form(x.shape, {"axes": axes}))[:2]
