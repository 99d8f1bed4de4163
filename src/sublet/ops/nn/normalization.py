"""Batch, layer, group and RMS normalisation.

`NormForm` describes the shapes of each. The gradients need only the input and the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn import normalization_forms
from sublet.ops.nn.command import REQUIRED_INTEGER, Command, Required, overwrite_unless_repeated, pick, spec_of
from sublet.ops.nn.normalization_forms import NormForm, batch_form, group_form, layer_form, rms_form
from sublet.ops.nn.rules import (
    FLOATS,
    normalize_axis,
    operand,
    require_equal,
    require_present,
    require_same_type,
    require_type,
    reshape_to,
    result,
    scale_by,
    sum_present,
)
from sublet.ops.op import Attrs, Emit, Gradient, GradientByExpansion, Grads, Specs
from sublet.ops.slice_maps import SliceMaps, Slices, same_axes, shape_of, slice_map

# Shapes.


def _require_shape(spec: TensorSpec | None, x: TensorSpec, shape: Sequence[int], role: str) -> None:
    """Raise SpecError unless the spec has the type of x and the shape `shape`."""
    require_equal(
        require_present(spec, role), TensorSpec(x.dtype, tuple(shape)), f"{role} for x {x}, and its expected spec,"
    )


def _check_channels(specs: Specs, attrs: Attrs, roles: Sequence[str], x_at: int = 0) -> TensorSpec:
    """Return the spec of x; check for one number per channel in every input named in `roles`."""
    x = require_type(specs[x_at], FLOATS, "x")
    channels = (x.shape[normalize_axis(pick(attrs, "axis"), len(x.shape))],)
    for role, spec in zip(roles, specs[x_at + 1 :], strict=True):
        _require_shape(spec, x, channels, role)
    return x


def _batch_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = _check_channels(specs, attrs, ("scale", "bias", "mean", "var"))
    if batch_form(x.shape, attrs).count < 2:
        raise SpecError(
            f"x {x} has one value a channel along axis {pick(attrs, 'axis')}: training needs two. Check `axis`."
        )
    channel = require_present(specs[1], "scale")
    return (x, channel, channel, channel, channel)


def _batch_inference_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_check_channels(specs, attrs, ("scale", "bias", "mean", "var")),)


def _batch_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x = _check_channels(specs, attrs, ("scale", "mean", "rstd"), 1)
    require_equal(require_type(specs[0], FLOATS, "dy"), x, "dy and x")
    channel = require_present(specs[2], "scale")
    return (x, channel, channel)


def _statistics_and_scale_shapes(x: TensorSpec, attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the statistics and of the scale, for a norm over rows or groups."""
    rank = len(x.shape)
    if "axes" in attrs:
        axes = pick(attrs, "axes")
        if not 1 <= axes <= rank:
            raise SpecError(f"axes = {axes} is out of range for x {x}: pass 1 to {rank}")
        return x.shape[: rank - axes], x.shape[rank - axes :]
    groups = pick(attrs, "groups")
    if rank < 2 or groups < 1 or x.shape[1] % groups:
        raise SpecError(f"x {x} must be [samples, channels, ...], with channels divisible by groups = {groups}")
    return (x.shape[0], groups), (x.shape[1],)


def _norm_infer(count: int) -> Any:
    """Return the inference rule of layer_norm and group_norm (two statistics) or rms_norm (one statistic)."""

    def infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        x = require_type(specs[0], FLOATS, "x")
        kept, affine = _statistics_and_scale_shapes(x, attrs)
        scale, bias = (*specs[1:], None, None)[:2]
        if scale is None and bias is not None:
            raise SpecError("a bias needs a scale: pass a scale of ones")
        for spec, role in ((scale, "scale"), (bias, "bias")):
            if spec is not None:
                _require_shape(spec, x, affine, role)
        return (x, *[TensorSpec(x.dtype, kept)] * count)

    return infer


def _norm_gradient_infer(roles: tuple[str, ...], results: int) -> Any:
    def infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        require_same_type(specs, FLOATS)
        x, scale = require_present(specs[1], "x"), specs[2]
        require_equal(require_present(specs[0], "dy"), x, "dy and x")
        kept, affine = _statistics_and_scale_shapes(x, attrs)
        for role, spec in zip(roles, specs[3:], strict=True):
            _require_shape(spec, x, kept, role)
        if scale is None:
            return (x,)
        _require_shape(scale, x, affine, "scale")
        return (x, *[scale] * (results - 1))

    return infer


# Gradients.


def _subtract_mean(emit: Emit, x: Value, mean: Value | None, form: NormForm) -> Value:
    rows = reshape_to(emit, x, form.rows)
    return rows if mean is None else emit("nn.sub", rows, reshape_to(emit, mean, form.statistics_shape))


def _moment_gradients(
    emit: Emit, x: Value, mean: Value | None, form: NormForm, dmean: Value | None, dvar: Value | None
) -> list[Value]:
    """Return the gradients of x through the mean and the variance: dmean / n and 2 dvar (x - mean) / n."""
    terms = []
    if dmean is not None:
        share = reshape_to(emit, scale_by(emit, dmean, 1 / max(1, form.count)), form.statistics_shape)
        terms.append(emit("nn.broadcast_to", share, shape=form.rows))
    if dvar is not None:
        share = reshape_to(emit, scale_by(emit, dvar, 2 / max(1, form.count)), form.statistics_shape)
        terms.append(emit("nn.mul", _subtract_mean(emit, x, mean, form), share))
    return [reshape_to(emit, term, spec_of(x).shape) for term in terms]


def _variance_gradient(emit: Emit, drstd: Value | None, rstd: Value) -> Value | None:
    """Return the gradient of the variance: -drstd rstd^3 / 2."""
    if drstd is None:
        return None
    return scale_by(emit, emit("nn.mul", emit("nn.mul", drstd, rstd), emit("nn.square", rstd)), -0.5)


def _batch_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    dy, running_mean, running_var, dmean, drstd = grads
    x, scale, mean, rstd = operand(node, 0), operand(node, 1), result(node, 3), result(node, 4)
    form, momentum = batch_form(spec_of(x).shape, node.attrs), pick(node.attrs, "momentum")
    dx = dscale = dbias = None
    if dy is not None:
        dx, dscale, dbias = emit.all_outputs(
            "nn.batch_norm_gradient", dy, x, scale, mean, rstd, axis=node.attrs["axis"]
        )
    dvar = _variance_gradient(emit, drstd, rstd)
    if running_mean is not None:
        dmean = sum_present(emit, scale_by(emit, running_mean, momentum), dmean)
    if running_var is not None:
        dvar = sum_present(emit, scale_by(emit, running_var, momentum * form.count / (form.count - 1)), dvar)
    dx = sum_present(emit, dx, *_moment_gradients(emit, x, mean, form, dmean, dvar))
    kept = [None if grad is None else scale_by(emit, grad, 1 - momentum) for grad in (running_mean, running_var)]
    return [dx, dscale, dbias, *kept]


def _norm_rule(name: str, form_of: Any) -> Gradient:
    """Return the gradient rule of a norm over rows or groups, with outputs y, mean (if present) and rstd."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        x, scale = operand(node, 0), (*node.inputs, None)[1]
        form = form_of(spec_of(x).shape, node.attrs)
        *means, rstd = (result(node, i) for i in range(1, len(node.outputs)))
        attrs = {key: value for key, value in node.attrs.items() if key != "epsilon"}
        gradients: tuple[Value | None, ...] = ()
        if grads[0] is not None:
            gradients = emit.all_outputs(name, grads[0], x, scale, *means, rstd, **attrs)
        dx, dscale, dbias = (*gradients, None, None, None)[:3]
        mean, dmean = (means[0], grads[1]) if means else (None, None)
        others = _moment_gradients(emit, x, mean, form, dmean, _variance_gradient(emit, grads[-1], rstd))
        return [sum_present(emit, dx, *others), dscale, dbias][: len(node.inputs)]

    return gradient


def _gradient_parts(form_of: Any) -> GradientByExpansion:
    """Return the formula of `forms.norm_gradients` as an expansion into commands."""

    def expand(emit: Emit, node: Node) -> Sequence[Value]:
        dy, x, scale = operand(node, 0), operand(node, 1), node.inputs[2]
        form: NormForm = form_of(spec_of(x).shape, node.attrs)
        rstd = reshape_to(emit, operand(node, len(node.inputs) - 1), form.statistics_shape)
        normal = emit("nn.mul", _subtract_mean(emit, x, operand(node, 3) if form.centred else None, form), rstd)
        seen = reshape_to(emit, dy, form.affine_view)
        grad = seen if scale is None else emit("nn.mul", seen, reshape_to(emit, scale, form.affine_shape))
        grad = reshape_to(emit, grad, form.rows)
        mean = partial(emit, "nn.mean", axes=form.axes, keepdims=1)
        inner = emit("nn.mul", normal, mean(emit("nn.mul", grad, normal)))
        dx = emit("nn.sub", grad, inner)
        if form.centred:
            dx = emit("nn.sub", dx, mean(grad))
        gradients = [reshape_to(emit, emit("nn.mul", dx, rstd), spec_of(x).shape)]
        if scale is not None:
            for part in (emit("nn.mul", seen, reshape_to(emit, normal, form.affine_view)), seen):
                gradients.append(reshape_to(emit, emit("nn.sum", part, axes=form.affine_axes), spec_of(scale).shape))
        return gradients[: len(node.outputs)]

    return GradientByExpansion(expand)


def _inference_parts(emit: Emit, node: Node) -> Sequence[Value]:
    """Return y = x a + (bias - mean a), a = scale / sqrt(var + epsilon)."""
    x, scale, bias, mean, var = (operand(node, i) for i in range(5))
    form = batch_form(spec_of(x).shape, node.attrs)
    deviation = emit("nn.sqrt", emit("nn.add", var, emit.constant(pick(node.attrs, "epsilon"), var)))
    factor = emit("nn.div", scale, deviation)
    shift = emit("nn.sub", bias, emit("nn.mul", mean, factor))
    moved = emit("nn.mul", reshape_to(emit, x, form.rows), reshape_to(emit, factor, form.statistics_shape))
    return [reshape_to(emit, emit("nn.add", moved, reshape_to(emit, shift, form.statistics_shape)), spec_of(x).shape)]


def _row_commands(
    name: str, text: str, compute: Any, gradient: Any, form_of: Any, scales: int, over: dict[str, Attr | Required]
) -> tuple[Command, ...]:
    """Return the command of a norm over rows or groups, and the gradient command.

    `scales` is the number of scale and bias inputs, and equally the number of statistics.
    """
    stats = ("mean", "rstd")[-scales:]
    gradient_name = f"{name}_gradient"
    return (
        Command(
            name,
            text,
            _norm_infer(scales),
            compute,
            _norm_rule(f"nn.{gradient_name}", form_of),
            {**over, "epsilon": 1e-5},
            inputs=(1, 1 + scales),
            outputs=(1 + scales, 1 + scales),
            inplace=overwrite_unless_repeated((0, 0)),
            slices=_slices_by_row(1, 2),
        ),
        Command(
            gradient_name,
            f"The gradients of nn.{name} by x, scale and bias: (dy, x, scale?, statistics) -> ...",
            _norm_gradient_infer(stats, 1 + scales),
            gradient,
            _gradient_parts(form_of),
            over,
            inputs=(3 + scales, 3 + scales),
            outputs=(1, 1 + scales),
            inplace=overwrite_unless_repeated((0, 0), (0, 1)),
            slices=_slices_by_row(2, sums=(1, 2)),
        ),
    )


def channel_slices(node: Node) -> SliceMaps:
    """Return the slice maps of a normalisation by given statistics: along each axis, of channels with their numbers."""
    rank, others = len(shape_of(node.inputs[0])), range(1, len(node.inputs))
    channels = pick({"axis": 1, **node.attrs}, "axis") % max(rank, 1)
    maps = same_axes(node, [axis for axis in range(rank) if axis != channels], whole=others)
    return maps + slice_map(node, [channels, *(0 for _ in others)], [channels])


def _slices_by_row(*whole: int, sums: tuple[int, ...] = ()) -> Slices:
    """Return the fact of a norm over rows: along the axes before the last `axes`; along samples for groups."""

    def slices(node: Node) -> SliceMaps:
        before = len(shape_of(node.outputs[0])) - pick(node.attrs, "axes") if "axes" in node.attrs else 1
        return same_axes(node, range(before), whole, sums)

    return slices


def _batch_slices(node: Node) -> SliceMaps:
    """Return the map along samples; the statistics are those of the samples of the slice."""
    channels = pick(node.attrs, "axis") % len(shape_of(node.inputs[0]))
    return same_axes(node, (0,), (1, 2, 3, 4), (1, 2, 3, 4), exact=False) if channels else ()


def _strided_images(position: int) -> Callable[[Node], frozenset[int]]:
    """Return the fact: kernels take strides in the images at `position`, [N, C, *spatial] of several elements a map."""

    def strided(node: Node) -> frozenset[int]:
        shape = shape_of(node.inputs[position])
        outer, _, inner = batch_form(shape, node.attrs).rows
        return frozenset({position} if inner > 1 and outer == shape[0] else ())

    return strided


COMMANDS: tuple[Command, ...] = (
    Command(
        "batch_norm",
        "Training: x normalised by mean and variance of the batch, for each channel along `axis`, then scaled and "
        "shifted (Ioffe and Szegedy 2015) -> (y, running mean, running variance, mean, 1 / deviation). `momentum` is "
        "the weight of the batch in the running statistics.",
        _batch_infer,
        normalization_forms.batch_norm,
        _batch_rule,
        {"epsilon": 1e-5, "momentum": 0.1, "axis": 1},
        inputs=(5, 5),
        outputs=(5, 5),
        inplace=overwrite_unless_repeated((0, 0), (1, 3), (2, 4)),
        slices=_batch_slices,
        strided=_strided_images(0),
    ),
    Command(
        "batch_norm_gradient",
        "The gradients of nn.batch_norm: (dy, x, scale, mean, rstd) -> (dx, dscale, dbias).",
        _batch_gradient_infer,
        normalization_forms.batch_gradient,
        _gradient_parts(batch_form),
        {"axis": 1},
        inputs=(5, 5),
        outputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 0), (0, 1)),
        strided=_strided_images(1),
    ),
    Command(
        "batch_norm_inference",
        "x normalised by the running mean and variance of each channel along `axis`, then scaled and shifted.",
        _batch_inference_infer,
        normalization_forms.batch_inference,
        GradientByExpansion(_inference_parts),
        {"epsilon": 1e-5, "axis": 1},
        inputs=(5, 5),
        inplace=overwrite_unless_repeated((0, 0)),
        slices=channel_slices,
    ),
    *_row_commands(
        "layer_norm",
        "x normalised over its last `axes` axes, then scaled and shifted by tensors of their shape (Ba et al. 2016) "
        "-> (y, mean, 1 / deviation).",
        normalization_forms.layer_norm,
        normalization_forms.layer_gradient,
        layer_form,
        2,
        {"axes": 1},
    ),
    *_row_commands(
        "group_norm",
        "x [N, C, ...] normalised over each group of channels, then scaled and shifted by [C] (Wu and He 2018) "
        "-> (y, mean [N, groups], 1 / deviation).",
        normalization_forms.group_norm,
        normalization_forms.group_gradient,
        group_form,
        2,
        {"groups": REQUIRED_INTEGER},
    ),
    *_row_commands(
        "rms_norm",
        "x over the root mean square of its last `axes` axes, scaled (Zhang and Sennrich 2019) -> (y, 1 / root).",
        normalization_forms.rms_norm,
        normalization_forms.rms_gradient,
        rms_form,
        1,
        {"axes": 1},
    ),
)
