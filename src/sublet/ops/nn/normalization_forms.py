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
from sublet.ops.nn.rules import normalize_axis
from sublet.ops.op import Attrs


@dataclass(frozen=True)
class NormForm:
    """The shapes of a normalisation.

    rows         the shape for statistics, taken over `axes`
    affine_view  the shape for scale and bias, constant along the axes `affine_axes`
    centred      0 if the mean is not subtracted
    """

    rows: tuple[int, ...]
    axes: tuple[int, ...]
    affine_view: tuple[int, ...]
    affine_axes: tuple[int, ...]
    centred: int = 1

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """The shape of the statistics, broadcastable to `rows`."""
        return tuple(1 if axis in self.axes else extent for axis, extent in enumerate(self.rows))

    @property
    def affine_shape(self) -> tuple[int, ...]:
        """The shape of scale and bias, broadcastable to `affine_view`."""
        return tuple(1 if axis in self.affine_axes else extent for axis, extent in enumerate(self.affine_view))

    @property
    def count(self) -> int:
        """The number of elements per statistic."""
        return prod(self.rows[axis] for axis in self.axes)


def batch_form(shape: Sequence[int], attrs: Attrs) -> NormForm:
    """Return the form of batch norm: statistics of each channel, over samples and places."""
    axis = normalize_axis(pick(attrs, "axis"), len(shape))
    rows = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    return NormForm(rows, (0, 2), rows, (0, 2))


def layer_form(shape: Sequence[int], attrs: Attrs) -> NormForm:
    """Return the form of layer norm: statistics over the last `axes` axes, for each index of the leading axes."""
    first = len(shape) - pick(attrs, "axes")
    rows = (prod(shape[:first]), prod(shape[first:]))
    return NormForm(rows, (1,), rows, (0,))


def rms_form(shape: Sequence[int], attrs: Attrs) -> NormForm:
    """Return the form of RMS norm: as `layer_form`, but without subtracting the mean."""
    form = layer_form(shape, attrs)
    return NormForm(form.rows, form.axes, form.affine_view, form.affine_axes, centred=0)


def group_form(shape: Sequence[int], attrs: Attrs) -> NormForm:
    """Return the form of group norm: statistics of each group of channels of each sample."""
    samples, channels, places = shape[0], shape[1], prod(shape[2:])
    groups = pick(attrs, "groups")
    rows = (samples * groups, channels // groups * places)
    return NormForm(rows, (1,), (samples, channels, places), (0, 2))


def moments(x: Any, form: NormForm) -> tuple[Any, Any]:
    """Return mean (0 if the form is not centred) and variance, of shape `form.statistics_shape`."""
    rows = x.reshape(form.rows)
    mean = _mean_over_axes(rows, form) if form.centred else np.zeros(form.statistics_shape, x.dtype)
    return mean, _mean_over_axes(np.square(rows - mean), form)


def _mean_over_axes(rows: Any, form: NormForm) -> Any:
    """Return the mean, of shape `form.statistics_shape`; 0 for no elements."""
    return rows.sum(axis=form.axes, keepdims=True) / max(1, form.count)


def normalize(x: Any, scale: Any, bias: Any, mean: Any, rstd: Any, form: NormForm) -> Any:
    """Return x normalised, scaled and shifted."""
    y = ((x.reshape(form.rows) - mean) * rstd).reshape(form.affine_view)
    y = y if scale is None else y * scale.reshape(form.affine_shape)
    y = y if bias is None else y + bias.reshape(form.affine_shape)
    return y.reshape(x.shape)


def norm_gradients(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, form: NormForm) -> tuple[Any, ...]:
    """Return the gradients by x, scale and bias; only by x without a scale."""
    rstd = rstd.reshape(form.statistics_shape)
    normal = (x.reshape(form.rows) - (mean.reshape(form.statistics_shape) if form.centred else 0)) * rstd
    seen = dy.reshape(form.affine_view)
    grad = (seen if scale is None else seen * scale.reshape(form.affine_shape)).reshape(form.rows)
    mean_grad = _mean_over_axes(grad, form) if form.centred else 0
    dx = rstd * (grad - mean_grad - normal * _mean_over_axes(grad * normal, form))
    if scale is None:
        return (dx.reshape(x.shape),)
    scaled = (seen * normal.reshape(form.affine_view)).sum(axis=form.affine_axes).reshape(scale.shape)
    return dx.reshape(x.shape), scaled, seen.sum(axis=form.affine_axes).reshape(scale.shape)


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
        normalize(x, scale, bias, at, rstd, form),
        (1 - momentum) * mean + momentum * at.reshape(mean.shape),
        (1 - momentum) * var + momentum * unbiased,
        at.reshape(mean.shape),
        rstd.reshape(mean.shape),
    )


def batch_inference(x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float, axis: int) -> Any:
    """Normalise with the running statistics."""
    form = batch_form(x.shape, {"axis": axis})
    rstd = 1 / np.sqrt(var + epsilon)
    return normalize(x, scale, bias, mean.reshape(form.statistics_shape), rstd.reshape(form.statistics_shape), form)


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axes: int, epsilon: float) -> tuple[Any, ...]:
    """Normalise each index of the leading axes. Returns y, mean and 1 / deviation."""
    form, kept = layer_form(x.shape, {"axes": axes}), x.shape[: x.ndim - axes]
    mean, var = moments(x, form)
    rstd = 1 / np.sqrt(var + epsilon)
    return normalize(x, scale, bias, mean, rstd, form), mean.reshape(kept), rstd.reshape(kept)


def group_norm(x: Any, scale: Any = None, bias: Any = None, *, groups: int, epsilon: float) -> tuple[Any, ...]:
    """Normalise each group of channels of each sample. Returns y, mean and 1 / deviation."""
    form, kept = group_form(x.shape, {"groups": groups}), (x.shape[0], groups)
    mean, var = moments(x, form)
    rstd = 1 / np.sqrt(var + epsilon)
    return normalize(x, scale, bias, mean, rstd, form), mean.reshape(kept), rstd.reshape(kept)


def rms_norm(x: Any, scale: Any = None, *, axes: int, epsilon: float) -> tuple[Any, ...]:
    """Divide by the root mean square, without the mean (Zhang and Sennrich, 2019). Returns y and 1 / root."""
    form = rms_form(x.shape, {"axes": axes})
    mean, square = moments(x, form)
    rstd = 1 / np.sqrt(square + epsilon)
    return normalize(x, scale, None, mean, rstd, form), rstd.reshape(x.shape[: x.ndim - axes])


def batch_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, axis: int) -> tuple[Any, ...]:
    """Return the gradients of `batch_norm` by x, scale and bias."""
    return norm_gradients(dy, x, scale, mean, rstd, batch_form(x.shape, {"axis": axis}))


def layer_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, axes: int) -> tuple[Any, ...]:
    """Return the gradients of `layer_norm` by x, and by scale and bias if a scale is present."""
    return norm_gradients(dy, x, scale, mean, rstd, layer_form(x.shape, {"axes": axes}))


def group_gradient(dy: Any, x: Any, scale: Any, mean: Any, rstd: Any, groups: int) -> tuple[Any, ...]:
    """Return the gradients of `group_norm` by x, and by scale and bias if a scale is present."""
    return norm_gradients(dy, x, scale, mean, rstd, group_form(x.shape, {"groups": groups}))


def rms_gradient(dy: Any, x: Any, scale: Any, rstd: Any, axes: int) -> tuple[Any, ...]:
    """Return the gradients of `rms_norm` by x, and by scale if a scale is present."""
    return norm_gradients(dy, x, scale, None, rstd, rms_form(x.shape, {"axes": axes}))[:2]
