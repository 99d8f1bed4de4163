"""LSTM and GRU over a sequence, and the single steps of `cells`. Gates are in PyTorch's order.

The forward pass saves the inputs of the gradient: the activated gates, and the cells of an LSTM. The gradient command
goes back through time and returns the gradient of the gates before activation. All further gradients are single
products with the gate gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn import recurrent_cells
from sublet.ops.nn.activation import sigmoid
from sublet.ops.nn.command import Command, overwrite_unless_repeated, spec_of
from sublet.ops.nn.layout import slice_axis
from sublet.ops.nn.recurrent_cells import gates_spec, require_state
from sublet.ops.nn.rules import (
    FLOATS,
    multiply,
    operand,
    require_equal,
    require_present,
    require_same_type,
    require_type,
    result,
    sum_present,
    zeros_like,
)
from sublet.ops.op import Attrs, Emit, GradientByExpansion, Grads, Specs

# The definitions.


def _project(x: Any, w: Any, b: Any) -> Any:
    y = x @ w.T
    return y if b is None else y + b


def _lstm(x: Any, h0: Any, c0: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, ...]:
    h, c, ys, gates, kept = h0, c0, [], [], []
    for entry in _project(x, w_ih, b_ih):
        i, f, g, o = np.split(entry + _project(h, w_hh, b_hh), 4, axis=-1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        ys.append(h)
        gates.append(np.concatenate((i, f, g, o), axis=-1))
        kept.append(c)
    return np.stack(ys), h, c, np.stack(gates), np.stack(kept)


def _lstm_gradient(
    dy: Any, dh: Any, dc: Any, dgates: Any, dcells: Any, w_hh: Any, c0: Any, gates: Any, saved: Any
) -> tuple[Any, ...]:
    dh, dc = (np.zeros_like(c0) if grad is None else grad for grad in (dh, dc))
    dgates_before = np.zeros_like(gates)
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, axis=-1)
        bent, before = np.tanh(saved[t]), saved[t - 1] if t else c0
        dh = dh if dy is None else dh + dy[t]
        dc = dc + dh * o * (1 - bent**2) + (0 if dcells is None else dcells[t])
        active = np.concatenate((dc * g, dc * before, dc * i, dh * bent), axis=-1)
        active = active if dgates is None else active + dgates[t]
        slopes = np.concatenate((i * (1 - i), f * (1 - f), 1 - g**2, o * (1 - o)), axis=-1)
        dgates_before[t] = active * slopes
        dh, dc = dgates_before[t] @ w_hh, dc * f
    return dgates_before, dh, dc


def _gru(x: Any, h0: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, ...]:
    h, ys, gates, inners = h0, [], [], []
    for entry in _project(x, w_ih, b_ih):
        (xr, xz, xn), (hr, hz, hn) = np.split(entry, 3, axis=-1), np.split(_project(h, w_hh, b_hh), 3, axis=-1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        h = n + z * (h - n)
        ys.append(h)
        gates.append(np.concatenate((r, z, n), axis=-1))
        inners.append(hn)
    return np.stack(ys), h, np.stack(gates), np.stack(inners)


def _gru_gradient(
    dy: Any, dh: Any, dgates: Any, dinner: Any, w_hh: Any, h0: Any, y: Any, gates: Any, inner: Any
) -> tuple[Any, ...]:
    dh = np.zeros_like(h0) if dh is None else dh
    of_x, of_h = np.zeros_like(gates), np.zeros_like(gates)
    for t in reversed(range(len(gates))):
        r, z, n = np.split(gates[t], 3, axis=-1)
        more = np.split(np.zeros_like(gates[t]) if dgates is None else dgates[t], 3, axis=-1)
        dh = dh if dy is None else dh + dy[t]
        dn = (dh * (1 - z) + more[2]) * (1 - n**2)
        dz = (dh * ((y[t - 1] if t else h0) - n) + more[1]) * z * (1 - z)
        dr = (dn * inner[t] + more[0]) * r * (1 - r)
        of_x[t] = np.concatenate((dr, dz, dn), axis=-1)
        of_h[t] = np.concatenate((dr, dz, dn * r + (0 if dinner is None else dinner[t])), axis=-1)
        dh = dh * z + of_h[t] @ w_hh
    return of_x, of_h, dh


# Shapes.


def _check_sequence(specs: Specs, states: int, gates: int) -> tuple[TensorSpec, TensorSpec]:
    """Return the specs of y and of the state. Raises SpecError unless x, states, weights and biases fit each other."""
    require_same_type(specs, FLOATS)
    x, h = require_present(specs[0], "x"), require_state(specs[1], "h0")
    if len(x.shape) != 3 or not x.shape[0] or x.shape[1] != h.shape[0]:
        raise SpecError(f"x is {x} and h0 is {h}, expected [time > 0, batch, input] and [batch, hidden]")
    hidden, rows = h.shape[1], gates * h.shape[1]
    wanted = [("c0", h.shape)] * (states - 1) + [("w_ih", (rows, x.shape[2])), ("w_hh", (rows, hidden))]
    for (role, shape), spec in zip(wanted, specs[2:], strict=False):
        require_equal(
            require_present(spec, role), TensorSpec(x.dtype, shape), f"{role} for x {x}, h0 {h}, and its expected spec,"
        )
    for role, spec in zip(("b_ih", "b_hh"), specs[2 + len(wanted) :], strict=False):
        if spec is not None:
            require_equal(spec, TensorSpec(x.dtype, (rows,)), f"{role} for h0 {h}, and its expected spec,")
    return TensorSpec(x.dtype, (*x.shape[:2], hidden)), h


def _lstm_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    y, h = _check_sequence(specs, 2, 4)
    return y, h, h, gates_spec(y, 4), y


def _gru_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    y, h = _check_sequence(specs, 1, 3)
    return y, h, gates_spec(y, 3), y


def _require_specs(specs: Specs, roles: Sequence[str], expected: Sequence[TensorSpec], optional: int) -> None:
    """Raise SpecError unless every spec is the wanted spec; the first `optional` specs may be missing."""
    for i, (spec, role, right) in enumerate(zip(specs, roles, expected, strict=True)):
        if spec is not None or i >= optional:
            require_equal(require_present(spec, role), right, f"{role} and its expected spec")


def _specs_of_gates(spec: TensorSpec | None, count: int) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    """Return the specs of the gates, of y, of the state and of w_hh."""
    gates = require_type(spec, FLOATS, "gates")
    if len(gates.shape) != 3 or not gates.shape[0] or gates.shape[2] % count:
        raise SpecError(f"the gates are {gates}, expected [time > 0, batch, {count} * hidden]")
    (time, batch, width), dtype = gates.shape, gates.dtype
    hidden = width // count
    y, h = TensorSpec(dtype, (time, batch, hidden)), TensorSpec(dtype, (batch, hidden))
    return gates, y, h, TensorSpec(dtype, (width, hidden))


def _lstm_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    gates, y, h, w = _specs_of_gates(specs[7], 4)
    roles = ("dy", "dh", "dc", "dgates", "dcells", "w_hh", "c0", "gates", "cells")
    _require_specs(specs, roles, (y, h, h, gates, y, w, h, gates, y), 5)
    return gates, h, h


def _gru_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    gates, y, h, w = _specs_of_gates(specs[7], 3)
    roles = ("dy", "dh", "dgates", "dinner", "w_hh", "h0", "y", "gates", "inner")
    _require_specs(specs, roles, (y, h, gates, y, w, h, y, gates, y), 4)
    return gates, gates, h


# Gradients.


def _merge_time_and_batch(emit: Emit, value: Value) -> Value:
    """Return the value with time and batch merged into one axis."""
    time, batch, width = spec_of(value).shape
    return emit("nn.reshape", value, shape=(time * batch, width))


def _input_gradients(emit: Emit, grad: Value, x: Value, w: Value) -> tuple[Value, Value]:
    """Return the gradients of x and of the input weights, given the gradient of the gates."""
    dx = emit("nn.reshape", emit("nn.matmul", grad, w), shape=spec_of(x).shape)
    return dx, emit("nn.matmul", grad, _merge_time_and_batch(emit, x), transpose_a=1)


def _recurrent_weight_gradient(emit: Emit, grad: Value, h0: Value, y: Value) -> Value:
    """Return the gradient of w_hh: the first step reads h0, each later step the output of the previous step."""
    time = spec_of(y).shape[0]
    first = emit("nn.matmul", _row(emit, grad, 0), h0, transpose_a=1)
    if time == 1:
        return first
    later, before = (
        _merge_time_and_batch(emit, slice_axis(emit, grad, 0, 1, time)),
        _merge_time_and_batch(emit, slice_axis(emit, y, 0, 0, time - 1)),
    )
    return emit("nn.gemm", later, before, first, transpose_a=1)


def _row(emit: Emit, value: Value, t: int) -> Value:
    return emit("nn.reshape", slice_axis(emit, value, 0, t, t + 1), shape=spec_of(value).shape[1:])


def _lstm_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    x, h0, c0, w_ih, w_hh = (operand(node, i) for i in range(5))
    y, gates, kept = result(node, 0), result(node, 3), result(node, 4)
    grad, dh, dc = emit.all_outputs("nn.lstm_gradient", *grads, w_hh, c0, gates, kept)
    flat = _merge_time_and_batch(emit, grad)
    dx, dw_ih = _input_gradients(emit, flat, x, w_ih)
    db = emit("nn.sum", flat, axes=(0,))
    return [dx, dh, dc, dw_ih, _recurrent_weight_gradient(emit, grad, h0, y), db, db][: len(node.inputs)]


def _gru_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    x, h0, w_ih, w_hh = (operand(node, i) for i in range(4))
    y, gates, inner = result(node, 0), result(node, 2), result(node, 3)
    of_x, of_h, dh = emit.all_outputs("nn.gru_gradient", *grads, w_hh, h0, y, gates, inner)
    flat = _merge_time_and_batch(emit, of_x)
    dx, dw_ih = _input_gradients(emit, flat, x, w_ih)
    biases = [emit("nn.sum", grad, axes=(0,)) for grad in (flat, _merge_time_and_batch(emit, of_h))]
    return [dx, dh, dw_ih, _recurrent_weight_gradient(emit, of_h, h0, y), *biases][: len(node.inputs)]


def _add_row(emit: Emit, value: Value | None, more: Value | None, t: int) -> Value | None:
    """Return the sum of a value and row t of `more`, if present."""
    return sum_present(emit, value, None if more is None else _row(emit, more, t))


def _stack_rows(emit: Emit, rows: Sequence[Value]) -> Value:
    """Return rows, ordered from last to first, as one value with time as the first axis."""
    shape = spec_of(rows[0]).shape
    return emit("nn.concat", *(emit("nn.reshape", row, shape=(1, *shape)) for row in reversed(rows)), axis=0)


def _gates_of(emit: Emit, gates: Value, t: int, count: int) -> tuple[Value, ...]:
    width = spec_of(gates).shape[-1] // count
    return emit.all_outputs("nn.split", _row(emit, gates, t), axis=-1, sizes=(width,) * count)


def _lstm_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dy, dh, dc, dgates, dcells = node.inputs[:5]
    w_hh, c0, gates, kept = (operand(node, i) for i in range(5, 9))
    dh, dc = (zeros_like(emit, c0) if grad is None else grad for grad in (dh, dc))
    gate_rows: list[Value] = []
    for t in reversed(range(spec_of(gates).shape[0])):
        i, f, g, o = _gates_of(emit, gates, t, 4)
        bent, before = emit("nn.tanh", _row(emit, kept, t)), _row(emit, kept, t - 1) if t else c0
        dh = _add_row(emit, dh, dy, t)
        assert dh is not None
        dc = _add_row(emit, emit("nn.add", dc, emit("nn.tanh_gradient", multiply(emit, dh, o), bent)), dcells, t)
        assert dc is not None
        active = [multiply(emit, dc, g), multiply(emit, dc, before), multiply(emit, dc, i), multiply(emit, dh, bent)]
        if dgates is not None:
            more = _gates_of(emit, dgates, t, 4)
            active = [emit("nn.add", a, b) for a, b in zip(active, more, strict=True)]
        rows = [
            emit("nn.tanh_gradient" if gate is g else "nn.sigmoid_gradient", grad, gate)
            for grad, gate in zip(active, (i, f, g, o), strict=True)
        ]
        gate_rows.append(emit("nn.concat", *rows, axis=-1))
        dh, dc = emit("nn.matmul", gate_rows[-1], w_hh), multiply(emit, dc, f)
    assert dh is not None
    return [_stack_rows(emit, gate_rows), dh, dc]


def _gru_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dy, dh, dgates, dinner = node.inputs[:4]
    w_hh, h0, y, gates, inner = (operand(node, i) for i in range(4, 9))
    dh = zeros_like(emit, h0) if dh is None else dh
    of_x: list[Value] = []
    of_h: list[Value] = []
    for t in reversed(range(spec_of(gates).shape[0])):
        r, z, n = _gates_of(emit, gates, t, 3)
        dh = _add_row(emit, dh, dy, t)
        assert dh is not None
        carried = multiply(emit, dh, z)
        more = (None, None, None) if dgates is None else _gates_of(emit, dgates, t, 3)
        dn = emit("nn.tanh_gradient", sum_present(emit, emit("nn.sub", dh, carried), more[2]), n)
        change = emit("nn.sub", _row(emit, y, t - 1) if t else h0, n)
        dz = emit("nn.sigmoid_gradient", sum_present(emit, multiply(emit, dh, change), more[1]), z)
        dr = emit("nn.sigmoid_gradient", sum_present(emit, multiply(emit, dn, _row(emit, inner, t)), more[0]), r)
        last = _add_row(emit, multiply(emit, dn, r), dinner, t)
        of_x.append(emit("nn.concat", dr, dz, dn, axis=-1))
        of_h.append(emit("nn.concat", dr, dz, last, axis=-1))
        dh = emit("nn.add", carried, emit("nn.matmul", of_h[-1], w_hh))
    assert dh is not None
    return [_stack_rows(emit, of_x), _stack_rows(emit, of_h), dh]


COMMANDS: tuple[Command, ...] = (
    *recurrent_cells.COMMANDS,
    Command(
        "lstm",
        "LSTM over a sequence (Hochreiter and Schmidhuber 1997): x [T, B, I], h0 and c0 [B, H], w_ih [4 H, I], "
        "w_hh [4 H, H] -> (y [T, B, H], h, c, gates [T, B, 4 H], cells [T, B, H]). Gates in the order of PyTorch: "
        "input, forget, candidate, output.",
        _lstm_infer,
        _lstm,
        _lstm_rule,
        inputs=(5, 7),
        outputs=(5, 5),
    ),
    Command(
        "lstm_gradient",
        "The gradients of nn.lstm, back through time, by the gates before activation, h0 and c0.",
        _lstm_gradient_infer,
        _lstm_gradient,
        GradientByExpansion(_lstm_parts),
        inputs=(9, 9),
        outputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 7)),
    ),
    Command(
        "gru",
        "GRU over a sequence (Cho et al. 2014): x [T, B, I], h0 [B, H], w_ih [3 H, I], w_hh [3 H, H] "
        "-> (y [T, B, H], h, gates [T, B, 3 H], inner [T, B, H]). Gates as in PyTorch: reset, update, candidate.",
        _gru_infer,
        _gru,
        _gru_rule,
        inputs=(4, 6),
        outputs=(4, 4),
    ),
    Command(
        "gru_gradient",
        "The gradients of nn.gru, back through time, by the gates of x and of h before activation, and h0.",
        _gru_gradient_infer,
        _gru_gradient,
        GradientByExpansion(_gru_parts),
        inputs=(9, 9),
        outputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 7)),
    ),
)
