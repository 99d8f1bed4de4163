"""LSTM and GRU: single steps and whole sequences, each as a list of calls in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Operands,
    Tensor,
    TorchKernel,
    has_f32_or_f64,
    scratch_tensor,
    torch,
)
from sublet.ir.graph import Node
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.rules import operand
from sublet.runtime.kernel import Call


def _scratch_for_states(count: int, position: int) -> Callable[[Node], int]:
    """Return a scratch function: `count` times the bytes of the input at `position`."""

    def scratch(node: Node) -> int:
        return count * spec_of(operand(node, position)).nbytes

    return scratch


def _scratch_states(scratch: Tensor, like: Tensor, count: int) -> tuple[Tensor, ...]:
    return tuple(scratch_tensor(scratch, like.dtype, (count, *like.shape)).unbind(0))


def _sigmoid_gradient(grad: Tensor, y: Tensor, out: Tensor) -> Call:
    return partial(torch().ops.aten.sigmoid_backward.grad_input, grad, y, grad_input=out)


def _tanh_gradient(grad: Tensor, y: Tensor, out: Tensor) -> Call:
    return partial(torch().ops.aten.tanh_backward.grad_input, grad, y, grad_input=out)


def _lstm_cell(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t = torch()
    (i, f, g, o), c = inputs[0].chunk(4, 1), inputs[1]
    h, after = outputs
    (gate,) = _scratch_states(scratch, c, 1)
    return [
        partial(t.sigmoid, f, out=gate),
        partial(t.mul, gate, c, out=after),
        partial(t.sigmoid, i, out=gate),
        partial(t.tanh, g, out=h),
        partial(after.addcmul_, gate, h),
        partial(t.sigmoid, o, out=gate),
        partial(t.tanh, after, out=h),
        partial(h.mul_, gate),
    ]


def _lstm_cell_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Compute the gradients of an LSTM step; the activated gates first lie in the place of the gate gradients."""
    t = torch()
    dh, dc, gates, c = inputs
    grad, before = outputs
    bent, u, inner = _scratch_states(scratch, c, 3)
    i, f, g, o = grad.chunk(4, 1)
    a, b, n, last = gates.chunk(4, 1)
    calls: list[Call] = [
        *(partial(t.sigmoid, x, out=y) for x, y in ((a, i), (b, f), (last, o))),
        partial(t.tanh, n, out=g),
        partial(t.mul, f, c, out=bent),
        partial(bent.addcmul_, i, g),
        partial(bent.tanh_),
        partial(inner.zero_) if dc is None else partial(inner.copy_, dc),
        *_lstm_step_gradient(dh, inner, bent, u, (i, f, g, o), (i, f, g, o), c),
        partial(before.copy_, inner),
    ]
    return calls


def _lstm_step_gradient(
    dh: Tensor, dc: Tensor, bent: Tensor, u: Tensor, gates: Operands, grads: Operands, c: Tensor
) -> list[Call]:
    """Return the calls of one step back in time, writing `grads` and the dc of the previous step.

    `grads` may share memory with `gates`. `bent` holds tanh(c') on entry and is overwritten.
    """
    t = torch()
    i, f, g, o = gates
    di, df, dg, do = grads
    calls: list[Call] = [partial(do.zero_)]
    if dh is not None:
        calls = [
            partial(t.mul, dh, o, out=u),
            _tanh_gradient(u, bent, u),
            partial(dc.add_, u),
            partial(bent.mul_, dh),
            _sigmoid_gradient(bent, o, do),
        ]
    return [
        *calls,
        partial(t.mul, dc, g, out=u),
        partial(t.mul, dc, i, out=bent),
        _sigmoid_gradient(u, i, di),
        _tanh_gradient(bent, g, dg),
        partial(t.mul, dc, c, out=u),
        partial(dc.mul_, f),
        _sigmoid_gradient(u, f, df),
    ]


def _gru_cell(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t = torch()
    x, inner, h = inputs
    (xr, xz, xn), (hr, hz, hn), (out,) = x.chunk(3, 1), inner.chunk(3, 1), outputs
    z, n = _scratch_states(scratch, h, 2)
    return [
        partial(t.add, xr, hr, out=z),
        partial(z.sigmoid_),
        partial(t.addcmul, xn, z, hn, out=n),
        partial(n.tanh_),
        partial(t.add, xz, hz, out=z),
        partial(z.sigmoid_),
        partial(t.lerp, n, h, z, out=out),
    ]


def _gru_cell_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t = torch()
    dh, x, inner, h = inputs
    of_x, of_h, before = outputs
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), inner.chunk(3, 1)
    gates = r, z, n = of_x.chunk(3, 1)
    u, v, w, kept = _scratch_states(scratch, h, 4)
    return [
        partial(kept.copy_, hn),
        *(partial(t.add, a, b, out=c) for a, b, c in ((xr, hr, r), (xz, hz, z))),
        partial(r.sigmoid_),
        partial(z.sigmoid_),
        partial(t.addcmul, xn, r, kept, out=n),
        partial(n.tanh_),
        *_gru_step_gradient(dh, h, kept, (u, v, w), gates, gates, of_h.chunk(3, 1)),
        partial(before.copy_, u),
    ]


def _gru_step_gradient(
    dh: Tensor, h: Tensor, inner: Tensor, room: Operands, gates: Operands, of_x: Operands, of_h: Operands
) -> list[Call]:
    """Return the calls of one step back in time, writing `of_x` and `of_h`.

    `of_x` may share memory with `gates`. The first tensor of `room` receives the direct part of the dh of the previous
    step.
    """
    t = torch()
    u, v, w = room
    r, z, n = gates
    return [
        partial(t.mul, dh, z, out=u),
        partial(t.sub, h, n, out=w),
        partial(w.mul_, dh),
        _sigmoid_gradient(w, z, of_x[1]),
        partial(of_h[1].copy_, of_x[1]),
        partial(t.sub, dh, u, out=v),
        _tanh_gradient(v, n, of_x[2]),
        partial(t.mul, of_x[2], r, out=of_h[2]),
        partial(t.mul, of_x[2], inner, out=v),
        _sigmoid_gradient(v, r, of_x[0]),
        partial(of_h[0].copy_, of_x[0]),
    ]


def _project_inputs(x: Tensor, w: Tensor, b: Tensor, out: Tensor) -> Call:
    """Return the call out = x w^T + b for all steps at the same time."""
    t = torch()
    rows, flat = x.flatten(0, 1), out.flatten(0, 1)
    return partial(t.mm, rows, w.t(), out=flat) if b is None else partial(t.addmm, b, rows, w.t(), out=flat)


def _lstm(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Write the products with the inputs to the place of the gates and activate the gates in place."""
    t = torch()
    x, h, c, w_ih, w_hh, b_ih, b_hh = (*inputs, None, None)[:7]
    y, last, cell, gates, kept = outputs
    calls = [_project_inputs(x, w_ih, b_ih, gates)]
    if b_hh is not None:
        calls.append(partial(gates.add_, b_hh))
    for out, entry, after in zip(y, gates, kept, strict=True):
        i, f, g, o = entry.chunk(4, 1)
        hidden = i.shape[1]
        calls += [
            partial(entry.addmm_, h, w_hh.t()),
            partial(entry[:, : 2 * hidden].sigmoid_),
            partial(g.tanh_),
            partial(o.sigmoid_),
            partial(t.mul, f, c, out=after),
            partial(after.addcmul_, i, g),
            partial(t.tanh, after, out=out),
            partial(out.mul_, o),
        ]
        h, c = out, after
    return [*calls, partial(last.copy_, h), partial(cell.copy_, c)]


def _initialize_gradient(into: Tensor, grad: Tensor) -> Call:
    return partial(into.zero_) if grad is None else partial(into.copy_, grad)


def _lstm_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Carry dh and dc back through time in the output tensors of the final dh and dc."""
    t = torch()
    dy, dh_last, dc_last, _, _, w_hh, c0, gates, kept = inputs
    grad, dh, dc = outputs
    bent, u = _scratch_states(scratch, dh, 2)
    calls = [_initialize_gradient(dh, dh_last), _initialize_gradient(dc, dc_last)]
    for step in reversed(range(len(gates))):
        if dy is not None:
            calls.append(partial(dh.add_, dy[step]))
        before = kept[step - 1] if step else c0
        calls.append(partial(t.tanh, kept[step], out=bent))
        calls += _lstm_step_gradient(dh, dc, bent, u, gates[step].chunk(4, 1), grad[step].chunk(4, 1), before)
        calls.append(partial(t.mm, grad[step], w_hh, out=dh))
    return calls


def _gru(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t = torch()
    x, h, w_ih, w_hh, b_ih, b_hh = (*inputs, None, None)[:6]
    y, last, gates, inners = outputs
    product = scratch_tensor(scratch, x.dtype, gates.shape[1:])
    calls = [_project_inputs(x, w_ih, b_ih, gates)]
    for out, entry, inner in zip(y, gates, inners, strict=True):
        hidden = out.shape[1]
        both, (_, z, n) = entry[:, : 2 * hidden], entry.chunk(3, 1)
        add = partial(t.mm, h, w_hh.t(), out=product)
        calls += [
            add if b_hh is None else partial(t.addmm, b_hh, h, w_hh.t(), out=product),
            partial(both.add_, product[:, : 2 * hidden]),
            partial(both.sigmoid_),
            partial(inner.copy_, product[:, 2 * hidden :]),
            partial(n.addcmul_, entry[:, :hidden], inner),
            partial(n.tanh_),
            partial(t.lerp, n, h, z, out=out),
        ]
        h = out
    return [*calls, partial(last.copy_, h)]


def _gru_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t = torch()
    dy, dh_last, _, _, w_hh, h0, y, gates, inner = inputs
    of_x, of_h, dh = outputs
    room = _scratch_states(scratch, dh, 3)
    calls = [_initialize_gradient(dh, dh_last)]
    for step in reversed(range(len(gates))):
        if dy is not None:
            calls.append(partial(dh.add_, dy[step]))
        before = y[step - 1] if step else h0
        parts = of_x[step].chunk(3, 1), of_h[step].chunk(3, 1)
        calls += _gru_step_gradient(dh, before, inner[step], room, gates[step].chunk(3, 1), *parts)
        calls.append(partial(t.addmm, room[0], of_h[step], w_hh, out=dh))
    return calls


def _lacks_saved_gradients(*saved: int) -> Callable[[Node], bool]:
    """Return a predicate: f32 or f64, and no gradient for the saved inputs at positions `saved`.

    Gradients of saved tensors only occur in second derivatives.
    """

    def takes(node: Node) -> bool:
        return has_f32_or_f64(node) and all(node.inputs[position] is None for position in saved)

    return takes


KERNELS: Mapping[str, TorchKernel] = {
    "lstm_cell": TorchKernel(_lstm_cell, _scratch_for_states(1, 1), has_f32_or_f64),
    "lstm_cell_gradient": TorchKernel(_lstm_cell_gradient, _scratch_for_states(3, 3), has_f32_or_f64),
    "gru_cell": TorchKernel(_gru_cell, _scratch_for_states(2, 2), has_f32_or_f64),
    "gru_cell_gradient": TorchKernel(_gru_cell_gradient, _scratch_for_states(4, 3), has_f32_or_f64),
    "lstm": TorchKernel(_lstm, supports=has_f32_or_f64),
    "lstm_gradient": TorchKernel(_lstm_gradient, _scratch_for_states(2, 6), _lacks_saved_gradients(3, 4)),
    "gru": TorchKernel(_gru, _scratch_for_states(3, 1), has_f32_or_f64),
    "gru_gradient": TorchKernel(_gru_gradient, _scratch_for_states(3, 5), _lacks_saved_gradients(2, 3)),
}
