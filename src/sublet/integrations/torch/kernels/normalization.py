"""Batch, layer, group and RMS normalisation.

Batch norm uses ATen's kernels where ATen writes to the planned place; RMS norm is a few calls in place. ATen returns
layer and group norms, and the gradients, only in newly allocated memory, so the kernels request a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Operands,
    Tensor,
    TorchKernel,
    computed_in_f32,
    has_f32_or_f64,
    scratch_tensor,
    takes_all_strides,
    torch,
)
from sublet.integrations.torch.kernels.out_variants import (
    ChunkedCall,
    chunk_group_norm,
    chunk_group_norm_gradient,
    results_at,
)
from sublet.ir.graph import Attr, Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.normalization_forms import NormForm, batch_form, group_form, layer_form, rms_form
from sublet.ops.nn.rules import operand
from sublet.runtime.kernel import Call

CHUNK_BYTES = 1 << 20
"""Bytes of input per call of ATen: small allocations that stay in the cache, yet enough work to keep ATen busy."""

FormRule = Callable[[tuple[int, ...], Mapping[str, Attr]], NormForm]
"""(shape, attributes) -> the form of a normalization."""


def _form(form_of: FormRule, node: Node, position: int) -> NormForm:
    return form_of(spec_of(operand(node, position)).shape, node.attrs)


def _channels_second(x: Tensor, form: NormForm) -> Tensor:
    """Return the tensor in the layout of ATen's batch norm.

    The layout is [outer, channels, inner], or channels last in memory if the inner extent is 1.
    """
    outer, channels, inner = form.rows
    return x.view(form.rows) if inner > 1 else x.view(1, outer, 1, channels).permute(0, 3, 1, 2)


def _channel_affine(x: Tensor, factor: Tensor, shift: Tensor, fixed: Tensor, out: Tensor, form: NormForm) -> Call:
    """Return the call out = x factor + shift per channel, in one pass.

    `fixed` holds mean 0 and variance 1: ATen's batch norm computes the affine map.
    """
    t = torch()
    if form.rows[2] == 1:
        return partial(t.addcmul, shift, x.view(form.rows[:2]), factor, out=out.view(form.rows[:2]))
    return _normalize_by_statistics(x.view(form.rows), factor, shift, fixed[0], fixed[1], 0.0, out.view(form.rows))


def _normalize_by_statistics(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float, out: Tensor
) -> Call:
    """Return the call of ATen's batch norm with given statistics."""
    function, none = torch().ops.aten.native_batch_norm.out, x.new_empty(0)
    given = (x, scale, bias, mean, var, False, 0.0, epsilon)
    return partial(function, *given, out=out, save_mean=none, save_invstd=none)


def _variance(x: Tensor, scratch: Tensor, out: Tensor, axes: Sequence[int]) -> list[Call]:
    """Return calls for the root of the sum of squares over axes, last axis first, in the order of memory."""
    t = torch()
    norm = t.linalg.vector_norm
    *outer, last = axes
    first = scratch if outer else out
    calls: list[Call] = [partial(norm, x, 2, (last,), True, out=first)]
    return [*calls, partial(norm, first, 2, outer, True, out=out)] if outer else calls


# Batch norm. Scratch memory per channel: mean 0, variance 1, two factors, and a norm for each row.


def _batch_scratch(node: Node) -> int:
    x = spec_of(operand(node, 0))
    outer, channels, inner = batch_form(x.shape, node.attrs).rows
    return 0 if inner == 1 else (4 + outer) * channels * x.dtype.bits // 8


def _batch_norm(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    form = _form(batch_form, node, 0)
    moved = [
        partial(new.copy_, old)
        for old, new in ((inputs[3], outputs[1]), (inputs[4], outputs[2]))
        if old.data_ptr() != new.data_ptr()
    ]
    make = _batch_norm_last if form.rows[2] == 1 else _batch_norm_second
    return [*moved, *make(node, form, inputs, outputs, scratch)]


def _batch_norm_last(node: Node, form: NormForm, inputs: Operands, outputs: Operands, scratch: Tensor) -> list[Call]:
    """Return the call of ATen's kernel for channels-last tensors."""
    x, scale, bias, *_ = inputs
    y, mean, var, saved_mean, saved_rstd = outputs
    return [
        partial(
            torch().ops.aten.native_batch_norm.out,
            _channels_second(x, form),
            scale,
            bias,
            mean,
            var,
            True,
            node.attrs["momentum"],
            node.attrs["epsilon"],
            out=_channels_second(y, form),
            save_mean=saved_mean,
            save_invstd=saved_rstd,
        )
    ]


def _batch_norm_second(node: Node, form: NormForm, inputs: Operands, outputs: Operands, scratch: Tensor) -> list[Call]:
    """Compute the mean, x - mean, the norm, and scale and shift in one pass: 0.7 of the time of ATen's kernel."""
    t = torch()
    x, scale, bias, *_ = inputs
    y, mean, var, saved_mean, rstd = outputs
    outer, channels, _ = form.rows
    numbers = scratch_tensor(scratch, x.dtype, (4 + outer, channels))
    fixed, factor, unbiased, norms = numbers[:2], numbers[2], numbers[3], numbers[4:].view(outer, channels, 1)
    x3, y3, n = x.view(form.rows), y.view(form.rows), form.count
    momentum, epsilon = pick(node.attrs, "momentum"), pick(node.attrs, "epsilon")
    return [
        partial(t.mean, x3, form.axes, True, out=saved_mean.view(form.statistics_shape)),
        partial(t.sub, x3, saved_mean.view(form.statistics_shape), out=y3),
        *_variance(y3, norms, rstd.view(form.statistics_shape), form.axes),
        partial(rstd.square_),
        partial(t.mul, rstd, 1 / (n - 1), out=unbiased),
        partial(mean.lerp_, saved_mean, momentum),
        partial(var.lerp_, unbiased, momentum),
        *_rstd(rstd, n, epsilon),
        partial(t.mul, rstd, scale, out=factor),
        partial(fixed[0].fill_, 0),
        partial(fixed[1].fill_, 1),
        _channel_affine(y, factor, bias, fixed, y, form),
    ]


def _rstd(squares: Tensor, count: int, epsilon: float) -> list[Call]:
    """Return calls for 1 / sqrt(sum of squares / count + epsilon), in place of the sums."""
    return [partial(squares.mul_, 1 / max(1, count)), partial(squares.add_, epsilon), partial(squares.rsqrt_)]


def _batch_inference(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    form, epsilon = _form(batch_form, node, 0), pick(node.attrs, "epsilon")
    x, scale, bias, mean, var = inputs
    places = _channels_second(x, form), _channels_second(outputs[0], form)
    return _normalize_by_statistics(places[0], scale, bias, mean, var, epsilon, places[1])


def _batch_gradient_scratch(node: Node) -> int:
    return 5 * spec_of(operand(node, 2)).nbytes


def _batch_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Sum with ATen; then compute dx = dy k + x b + c in two passes, starting with the input overwritten by dx.

    If dx overwrites both inputs, dy and x are the same bytes, and one pass computes dx = x (k + b) + c.

    k = scale rstd, b = -k rstd dscale / n, c = -k dbias / n - b mean.
    """
    t = torch()
    dy, x, scale, mean, rstd = inputs
    dx, dscale, dbias = outputs
    form = _form(batch_form, node, 1)
    numbers = scratch_tensor(scratch, x.dtype, (5, *scale.shape))
    fixed, k, b, c = numbers[:2], numbers[2], numbers[3], numbers[4]
    # ATen takes twice as long for an x with strides, but not for its samples.
    samples = [tensor.view(form.rows).split(1) for tensor in (dy, x)] if not x.is_contiguous() else []
    views = list(zip(*samples, strict=True)) or [(_channels_second(dy, form), _channels_second(x, form))]
    first, second = ((x, b), (dy, k)) if dx.data_ptr() == x.data_ptr() else ((dy, k), (x, b))
    rest, n = form.rows[: 3 if form.rows[2] > 1 else 2], form.count
    kept = form.statistics_shape[: len(rest)]
    last = partial(t.addcmul, dx.view(rest), second[0].view(rest), second[1].view(kept), out=dx.view(rest))
    over_both = dx.data_ptr() == x.data_ptr() == dy.data_ptr()
    return [
        *(partial(_add_affine_gradients, pair, mean, rstd, (dscale, dbias), i > 0) for i, pair in enumerate(views)),
        partial(t.mul, scale, rstd, out=k),
        partial(t.mul, k, rstd, out=b),
        partial(b.mul_, dscale),
        partial(b.mul_, -1 / n),
        partial(t.mul, k, dbias, out=c),
        partial(c.mul_, -1 / n),
        partial(c.addcmul_, b, mean, value=-1),
        partial(fixed[0].fill_, 0),
        partial(fixed[1].fill_, 1),
        *([partial(b.add_, k)] if over_both else []),
        _channel_affine(*first, c, fixed, dx, form),
        *([] if over_both else [last]),
    ]


def _add_affine_gradients(samples: Operands, mean: Tensor, rstd: Tensor, places: Operands, is_further: bool) -> None:
    """Compute the gradients by scale and bias for (dy, x); those of further samples are added."""
    backward = torch().ops.aten.native_batch_norm_backward
    _, *gradients = backward(*samples, None, None, None, mean, rstd, True, 0.0, [False, True, True])
    for place, gradient in zip(places, gradients, strict=True):
        (place.add_ if is_further else place.copy_)(gradient)


# Norms over rows and groups.


def _rows_per_chunk(count: int, nbytes: int) -> int:
    """Return the number of rows or samples in `CHUNK_BYTES`, of `count` rows or samples with `nbytes` bytes in all."""
    return min(count, max(1, CHUNK_BYTES * count // nbytes))


def _row_slices(count: int, nbytes: int) -> list[slice]:
    """Return slices of `count` rows or samples of at most about `CHUNK_BYTES` each."""
    step = _rows_per_chunk(count, nbytes)
    return [slice(start, start + step) for start in range(0, count, step)]


def _layer_norm(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    form, epsilon = _form(layer_form, node, 0), pick(node.attrs, "epsilon")
    x, scale, bias = (*inputs, None, None)[:3]
    shape = form.rows[1:]
    affine = [None if each is None else each.view(shape) for each in (scale, bias)]
    function, rows = torch().ops.aten.native_layer_norm, x.view(form.rows)
    places = [outputs[0].view(form.rows), *(each.view(form.statistics_shape) for each in outputs[1:])]
    return ChunkedCall(
        [
            (partial(function, rows[piece], shape, *affine, epsilon), [each[piece] for each in places])
            for piece in _row_slices(form.rows[0], x.nbytes)
        ]
    )


def _group_norm(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    form = _form(group_form, node, 0)
    sizes = (*form.affine_view, pick(node.attrs, "groups"), pick(node.attrs, "epsilon"))
    return chunk_group_norm([*(*inputs, None, None)[:3], *sizes], outputs)


def _rms_norm(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t, form = torch(), _form(rms_form, node, 0)
    rows, scale = inputs[0].view(form.rows), (*inputs, None)[1]
    y, rstd = outputs[0].view(form.rows), outputs[1].view(form.statistics_shape)
    calls: list[Call] = [
        *_variance(rows, y, rstd, form.axes),
        partial(rstd.square_),
        *_rstd(rstd, form.count, pick(node.attrs, "epsilon")),
        partial(t.mul, rows, rstd, out=y),
    ]
    return calls if scale is None else [*calls, partial(y.mul_, scale.view(form.affine_shape))]


def _layer_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, x, scale, mean, rstd = inputs
    form = _form(layer_form, node, 1)
    backward, shape = torch().ops.aten.native_layer_norm_backward, list(form.rows[1:])
    given = [dy.view(form.rows), x.view(form.rows), mean.view(form.statistics_shape), rstd.view(form.statistics_shape)]
    weight = None if scale is None else scale.view(shape)
    sums, mask = [each.view(shape) for each in outputs[1:]], [True, scale is not None, scale is not None]
    dx, calls = outputs[0].view(form.rows), []
    for piece in _row_slices(form.rows[0], x.nbytes):
        grad, part, *stats = (tensor[piece] for tensor in given)
        function = partial(backward, grad, part, shape, *stats, weight, weight, mask)
        calls.append((partial(results_at, function, range(1 + len(sums))), [dx[piece], *sums]))
    return ChunkedCall(calls, sums)


def _group_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, x, scale, mean, rstd = inputs
    sizes = (*_form(group_form, node, 1).affine_view, pick(node.attrs, "groups"))
    return chunk_group_norm_gradient([dy, x, mean, rstd, scale, *sizes, None], outputs)


def _rms_scratch(node: Node) -> int:
    """Return the scratch bytes: a slice of rows, and two numbers per row."""
    x, (rows, width) = spec_of(operand(node, 1)), _form(rms_form, node, 1).rows
    return _rows_per_chunk(rows, x.nbytes) * (width + 2) * x.dtype.bits // 8


def _rms_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute dx = rstd g - x rstd^3 sum(g x) / n with g = dy scale, and dscale = sum(dy x rstd), in row slices."""
    t, form = torch(), _form(rms_form, node, 1)
    dy, x, rstd = inputs[0].view(form.rows), inputs[1].view(form.rows), inputs[3].view(form.statistics_shape)
    scale = None if inputs[2] is None else inputs[2].view(-1)
    dx, dscale = outputs[0].view(form.rows), outputs[1].view(-1) if scale is not None else None
    calls: list[Call] = [] if dscale is None else [partial(dscale.zero_)]
    for piece in _row_slices(form.rows[0], inputs[1].nbytes):
        grad, part, r = dy[piece], x[piece], rstd[piece]
        rows, width = part.shape
        numbers = scratch_tensor(scratch, x.dtype, (rows * (width + 2),))
        product, factor, cube = numbers[: rows * width].view(rows, width), numbers[-2 * rows : -rows], numbers[-rows:]
        calls.append(partial(t.mul, grad, part, out=product))
        if scale is None:
            calls += [partial(t.sum, product, 1, out=factor), partial(product.copy_, grad)]
        else:
            calls.append(partial(t.mv, product, scale, out=factor))
            calls.append(partial(t.addmv, dscale, product.t(), r.view(-1), out=dscale))
            calls.append(partial(t.mul, grad, scale, out=product))
        calls += [
            partial(t.pow, r.view(-1), 3, out=cube),
            partial(factor.mul_, cube),
            partial(factor.mul_, -1 / form.count),
            partial(t.mul, part, factor.view(rows, 1), out=dx[piece]),
            partial(t.addcmul, dx[piece], product, r, out=dx[piece]),
        ]
    return calls


KERNELS: Mapping[str, TorchKernel] = {
    # ATen's batch norm allocates a few numbers per channel.
    "batch_norm": computed_in_f32(
        TorchKernel(_batch_norm, _batch_scratch, has_f32_or_f64, allocates=True, strided=takes_all_strides)
    ),
    "batch_norm_inference": computed_in_f32(TorchKernel(_batch_inference, supports=has_f32_or_f64, allocates=True)),
    "batch_norm_gradient": computed_in_f32(
        TorchKernel(_batch_gradient, _batch_gradient_scratch, has_f32_or_f64, allocates=True, strided=takes_all_strides)
    ),
    "layer_norm": computed_in_f32(TorchKernel(_layer_norm, supports=has_f32_or_f64, allocates=True)),
    "group_norm": computed_in_f32(TorchKernel(_group_norm, supports=has_f32_or_f64, allocates=True)),
    "rms_norm": computed_in_f32(TorchKernel(_rms_norm, supports=has_f32_or_f64)),
    "layer_norm_gradient": computed_in_f32(TorchKernel(_layer_gradient, supports=has_f32_or_f64, allocates=True)),
    "group_norm_gradient": computed_in_f32(TorchKernel(_group_gradient, supports=has_f32_or_f64, allocates=True)),
    "rms_norm_gradient": computed_in_f32(TorchKernel(_rms_gradient, _rms_scratch, has_f32_or_f64)),
}
