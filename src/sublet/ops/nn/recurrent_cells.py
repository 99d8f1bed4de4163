"""Single steps of LSTM and GRU, after the products with the weights. Gates are in PyTorch's order.

LSTM: input, forget, candidate, output; GRU: reset, update, candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.activation import sigmoid
from sublet.ops.nn.command import Command, overwrite_unless_repeated, spec_of
from sublet.ops.nn.rules import (
    FLOATS,
    multiply,
    only_gradient,
    operand,
    require_equal,
    require_present,
    require_same_type,
    require_type,
    zeros_like,
)
from sublet.ops.op import Attrs, Emit, GradientByExpansion, Grads, Specs
from sublet.ops.slice_maps import leading_axis


def _lstm_gates(gates: Any) -> tuple[Any, ...]:
    i, f, g, o = np.split(gates, 4, axis=-1)
    return sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)


def _lstm_cell(gates: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = _lstm_gates(gates)
    after = f * c + i * g
    return o * np.tanh(after), after


def _lstm_cell_gradient(dh: Any, dc: Any, gates: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = _lstm_gates(gates)
    bent = np.tanh(f * c + i * g)
    dh, dc = (np.zeros_like(c) if grad is None else grad for grad in (dh, dc))
    inner = dc + dh * o * (1 - bent**2)
    parts = inner * g * i * (1 - i), inner * c * f * (1 - f), inner * i * (1 - g**2), dh * bent * o * (1 - o)
    return np.concatenate(parts, axis=-1), inner * f


def _gru_gates(x: Any, h: Any) -> tuple[Any, ...]:
    """Return reset, update, candidate, and the term multiplied by the reset gate."""
    (xr, xz, xn), (hr, hz, hn) = np.split(x, 3, axis=-1), np.split(h, 3, axis=-1)
    r = sigmoid(xr + hr)
    return r, sigmoid(xz + hz), np.tanh(xn + r * hn), hn


def _gru_cell(x: Any, inner: Any, h: Any) -> Any:
    _, z, n, _ = _gru_gates(x, inner)
    return n + z * (h - n)


def _gru_cell_gradient(dh: Any, x: Any, inner: Any, h: Any) -> tuple[Any, Any, Any]:
    r, z, n, hn = _gru_gates(x, inner)
    dn = dh * (1 - z) * (1 - n**2)
    dr, dz = dn * hn * r * (1 - r), dh * (h - n) * z * (1 - z)
    return np.concatenate((dr, dz, dn), axis=-1), np.concatenate((dr, dz, dn * r), axis=-1), dh * z


def require_state(spec: TensorSpec | None, role: str) -> TensorSpec:
    """Return the spec of a state, [B, H]."""
    checked = require_type(spec, FLOATS, role)
    if len(checked.shape) != 2:
        raise SpecError(f"{role} is {checked}, expected [batch, hidden]")
    return checked


def gates_spec(spec: TensorSpec, times: int) -> TensorSpec:
    """Return a spec with the last axis `times` as long: the spec of all gates."""
    return TensorSpec(spec.dtype, (*spec.shape[:-1], times * spec.shape[-1]))


def _lstm_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    c = require_state(specs[1], "c")
    require_equal(
        require_present(specs[0], "gates"), gates_spec(c, 4), "the gates, and 4 of the state c [batch, hidden],"
    )
    return c, c


def _lstm_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    c, _ = _lstm_infer(specs[2:], attrs)
    for spec, role in ((specs[0], "dh"), (specs[1], "dc")):
        if spec is not None:
            require_equal(spec, c, f"{role} and c")
    return gates_spec(c, 4), c


def _gru_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    h = require_state(specs[2], "h")
    for spec, role in ((specs[0], "the gates of x"), (specs[1], "the gates of h")):
        require_equal(require_present(spec, role), gates_spec(h, 3), f"{role}, and 3 of the state h [batch, hidden],")
    return (h,)


def _gru_gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (h,) = _gru_infer(specs[1:], attrs)
    require_same_type(specs, FLOATS)
    require_equal(require_present(specs[0], "dh"), h, "dh and h")
    return gates_spec(h, 3), gates_spec(h, 3), h


def _lstm_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return list(emit.all_outputs("nn.lstm_cell_gradient", *grads, operand(node, 0), operand(node, 1)))


def _gru_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    return list(emit.all_outputs("nn.gru_cell_gradient", only_gradient(grads), *(operand(node, i) for i in range(3))))


def _split(emit: Emit, value: Value, count: int) -> tuple[Value, ...]:
    width = spec_of(value).shape[-1] // count
    return emit.all_outputs("nn.split", value, axis=-1, sizes=(width,) * count)


def _lstm_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dh, dc = node.inputs[:2]
    gates, c = operand(node, 2), operand(node, 3)
    i, f, g, o = _split(emit, gates, 4)
    i, f, g, o = (emit("nn.tanh" if gate is g else "nn.sigmoid", gate) for gate in (i, f, g, o))
    bent = emit("nn.tanh", emit("nn.add", multiply(emit, f, c), multiply(emit, i, g)))
    inner = zeros_like(emit, c) if dc is None else dc
    output = zeros_like(emit, c)
    if dh is not None:
        inner = emit("nn.add", inner, emit("nn.tanh_gradient", multiply(emit, dh, o), bent))
        output = emit("nn.sigmoid_gradient", multiply(emit, dh, bent), o)
    parts = (
        emit("nn.sigmoid_gradient", multiply(emit, inner, g), i),
        emit("nn.sigmoid_gradient", multiply(emit, inner, c), f),
        emit("nn.tanh_gradient", multiply(emit, inner, i), g),
        output,
    )
    return [emit("nn.concat", *parts, axis=-1), multiply(emit, inner, f)]


def _gru_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dh, x, inner, h = (operand(node, i) for i in range(4))
    (xr, xz, xn), (hr, hz, hn) = _split(emit, x, 3), _split(emit, inner, 3)
    r, z = (emit("nn.sigmoid", emit("nn.add", a, b)) for a, b in ((xr, hr), (xz, hz)))
    n = emit("nn.tanh", emit("nn.add", xn, multiply(emit, r, hn)))
    kept = multiply(emit, dh, z)
    dn = emit("nn.tanh_gradient", emit("nn.sub", dh, kept), n)
    dr = emit("nn.sigmoid_gradient", multiply(emit, dn, hn), r)
    dz = emit("nn.sigmoid_gradient", multiply(emit, dh, emit("nn.sub", h, n)), z)
    return [
        emit("nn.concat", dr, dz, dn, axis=-1),
        emit("nn.concat", dr, dz, multiply(emit, dn, r), axis=-1),
        kept,
    ]


COMMANDS: tuple[Command, ...] = (
    Command(
        "lstm_cell",
        "A step of LSTM: (gates [B, 4 H] before activation, c [B, H]) -> (h', c').",
        _lstm_infer,
        _lstm_cell,
        _lstm_rule,
        inputs=(2, 2),
        outputs=(2, 2),
        inplace=overwrite_unless_repeated((1, 1)),
        slices=leading_axis(),
    ),
    Command(
        "lstm_cell_gradient",
        "The gradients of nn.lstm_cell: (dh, dc, gates, c) -> (dgates, dc).",
        _lstm_gradient_infer,
        _lstm_cell_gradient,
        GradientByExpansion(_lstm_parts),
        inputs=(4, 4),
        outputs=(2, 2),
        inplace=overwrite_unless_repeated((0, 2)),
    ),
    Command(
        "gru_cell",
        "A step of GRU: (x [B, 3 H] and h [B, 3 H] times their weights, h [B, H]) -> h'.",
        _gru_infer,
        _gru_cell,
        _gru_rule,
        inputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 2)),
        slices=leading_axis(),
    ),
    Command(
        "gru_cell_gradient",
        "The gradients of nn.gru_cell: (dh, gates of x, gates of h, h) -> the gradients of the last three inputs.",
        _gru_gradient_infer,
        _gru_cell_gradient,
        GradientByExpansion(_gru_parts),
        inputs=(4, 4),
        outputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 1), (1, 2)),
    ),
)
