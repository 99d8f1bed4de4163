"""Shape rules of layers: normalisation, recurrence, quantisation and slopes."""

from __future__ import annotations

from sublet.base.tensor import shown
from sublet.frontends.onnx.rules.rule import (
    Extents,
    Rule,
    Seen,
    alike,
    broadcast,
    broadcast_to,
    demand,
    of_length,
    same,
    size_of,
)


def elementwise(seen: Seen) -> None:
    """Require operands broadcasting together."""
    broadcast(seen.inputs)


def batch_normalization(seen: Seen) -> None:
    """Require a scale, bias, mean and variance per channel."""
    data = seen.shape(0)
    if data is not None:
        channels = data[1] if len(data) > 1 else 1
        for position, what in ((1, "the scale"), (2, "the bias"), (3, "the mean"), (4, "the variance")):
            of_length(seen.shape(position), channels, what)


def instance_normalization(seen: Seen) -> None:
    """Require a scale and a bias per channel."""
    data = seen.shape(0)
    if data is not None:
        demand(len(data) > 2, f"{shown(data)} has no spatial axes")
        of_length(seen.shape(1), data[1], "the scale")
        of_length(seen.shape(2), data[1], "the bias")


def group_normalization(seen: Seen) -> None:
    """Require groups dividing the channels, and a matching length of scale and bias."""
    data, groups = seen.shape(0), seen.whole("num_groups", 1)
    demand(data is None or len(data) > 1, f"{shown(data or ())} has no channels")
    if data is not None and len(data) > 1 and data[1] is not None:
        demand(data[1] % max(groups, 1) == 0, f"{data[1]} channels do not make {groups} groups")
        length = data[1] if seen.version >= 21 else groups
        of_length(seen.shape(1), length, "the scale")
        of_length(seen.shape(2), length, "the bias")


def layer_normalization(seen: Seen) -> None:
    """Require a scale and a bias broadcasting to the operand."""
    data = seen.shape(0)
    if data is not None:
        seen.axis(-1, len(data))
        broadcast_to(seen.shape(1), data, "the scale")
        broadcast_to(seen.shape(2), data, "the bias")


def mean_variance_normalization(seen: Seen) -> None:
    """Require an operand with an axis, no scalar."""
    demand(seen.shape(0) != (), "a scalar has no axis")


def slope(seen: Seen) -> None:
    """Require a slope broadcasting to the operand, for PRelu."""
    broadcast_to(seen.shape(1), seen.shape(0), "the slope")


def recurrent(gates: int, states: int) -> Rule:
    """Return the rule of a recurrent layer with `gates` gates and `states` carried states."""

    def rule(seen: Seen) -> None:
        data, weights, recurrence = seen.shape(0), seen.shape(1), seen.shape(2)
        directions = 2 if seen.text("direction") == "bidirectional" else 1
        for shape, what in ((data, "the sequence"), (weights, "W"), (recurrence, "R")):
            demand(shape is None or len(shape) == 3, f"{what} is {shown(shape)}, not of three dimensions")
        hidden = seen.attributes.get("hidden_size")
        hidden = hidden if isinstance(hidden, int) else (None if recurrence is None else recurrence[2])
        rows = None if hidden is None else gates * hidden
        _is(weights, (directions, rows, None if data is None else data[2]), "W")
        _is(recurrence, (directions, rows, hidden), "R")
        _is(seen.shape(3), (directions, None if rows is None else 2 * rows), "the bias")
        batch = None if data is None else data[0 if seen.whole("layout") else 1]
        _is(seen.shape(4), (batch,), "the lengths")
        state = (batch, directions, hidden) if seen.whole("layout") else (directions, batch, hidden)
        for position in range(5, 5 + states):
            _is(seen.shape(position), state, "an initial state")
        if states == 2:
            _is(seen.shape(7), (directions, None if hidden is None else 3 * hidden), "the peepholes")

    return rule


def _is(shape: Extents | None, wanted: Extents, what: str) -> None:
    """Raise ShapeConflict unless the shape, if known, may equal `wanted`."""
    if shape is not None:
        demand(alike(shape, wanted), f"{what} is {shown(shape)}, and would have to be {shown(wanted)}")


def quantization(seen: Seen) -> None:
    """Require a single scale for the tensor, or a scale for each place on an axis or for each block."""
    data, scale, zero = seen.shape(0), seen.shape(1), seen.shape(2)
    if scale is not None and zero is not None and size_of(scale) != 1:
        demand(alike(scale, zero), f"the scale {shown(scale)} and the zero point {shown(zero)} differ")
    if data is not None and scale is not None and len(scale) == 1 and scale[0] != 1 and not seen.whole("block_size"):
        same(data[seen.axis(1, len(data))], scale[0], f"the scales are not one for each place of {shown(data)}")
