"""Shape rules of layers: normalisation, recurrence, quantisation and slopes."""

from __future__ import annotations

from sublet.base.tensor import format_dims
from sublet.frontends.onnx.rules.shape_rule import (
    Extents,
    NodeShapes,
    ShapeRule,
    element_count_of,
    may_be_equal,
    require_broadcastable,
    require_broadcastable_to,
    require_equal,
    require_that,
    require_vector,
)


def require_elementwise(node: NodeShapes) -> None:
    """Require operands broadcasting together."""
    require_broadcastable(node.inputs)


def require_batch_normalization(node: NodeShapes) -> None:
    """Require a scale, bias, mean and variance per channel."""
    data = node.shape(0)
    if data is not None:
        channels = data[1] if len(data) > 1 else 1
        for position, what in ((1, "the scale"), (2, "the bias"), (3, "the mean"), (4, "the variance")):
            require_vector(node.shape(position), channels, what)


def require_instance_normalization(node: NodeShapes) -> None:
    """Require a scale and a bias per channel."""
    data = node.shape(0)
    if data is not None:
        require_that(len(data) > 2, f"{format_dims(data)} has no spatial axes")
        require_vector(node.shape(1), data[1], "the scale")
        require_vector(node.shape(2), data[1], "the bias")


def require_group_normalization(node: NodeShapes) -> None:
    """Require groups dividing the channels, and a matching length of scale and bias."""
    data, groups = node.shape(0), node.integer_attribute("num_groups", 1)
    require_that(data is None or len(data) > 1, f"{format_dims(data or ())} has no channels")
    if data is not None and len(data) > 1 and data[1] is not None:
        require_that(data[1] % max(groups, 1) == 0, f"{data[1]} channels cannot be split into {groups} groups")
        length = data[1] if node.version >= 21 else groups
        require_vector(node.shape(1), length, "the scale")
        require_vector(node.shape(2), length, "the bias")


def require_layer_normalization(node: NodeShapes) -> None:
    """Require a scale and a bias broadcasting to the operand."""
    data = node.shape(0)
    if data is not None:
        node.axis_attribute(-1, len(data))
        require_broadcastable_to(node.shape(1), data, "the scale")
        require_broadcastable_to(node.shape(2), data, "the bias")


def require_mean_variance_normalization(node: NodeShapes) -> None:
    """Require an operand with an axis, no scalar."""
    require_that(node.shape(0) != (), "a scalar has no axis")


def require_prelu(node: NodeShapes) -> None:
    """Require a slope broadcasting to the operand, for PRelu."""
    require_broadcastable_to(node.shape(1), node.shape(0), "the slope")


def recurrent_rule(gates: int, states: int) -> ShapeRule:
    """Return the rule of a recurrent layer with `gates` gates and `states` carried states."""

    def rule(node: NodeShapes) -> None:
        data, weights, recurrence = node.shape(0), node.shape(1), node.shape(2)
        directions = 2 if node.text_attribute("direction") == "bidirectional" else 1
        for shape, what in ((data, "the sequence"), (weights, "W"), (recurrence, "R")):
            require_that(shape is None or len(shape) == 3, f"{what} is {format_dims(shape)}, not of three dimensions")
        hidden = node.attributes.get("hidden_size")
        hidden = hidden if isinstance(hidden, int) else (None if recurrence is None else recurrence[2])
        rows = None if hidden is None else gates * hidden
        _require_shape(weights, (directions, rows, None if data is None else data[2]), "W")
        _require_shape(recurrence, (directions, rows, hidden), "R")
        _require_shape(node.shape(3), (directions, None if rows is None else 2 * rows), "the bias")
        batch = None if data is None else data[0 if node.integer_attribute("layout") else 1]
        _require_shape(node.shape(4), (batch,), "the lengths")
        state = (batch, directions, hidden) if node.integer_attribute("layout") else (directions, batch, hidden)
        for position in range(5, 5 + states):
            _require_shape(node.shape(position), state, "an initial state")
        if states == 2:
            _require_shape(node.shape(7), (directions, None if hidden is None else 3 * hidden), "the peepholes")

    return rule


def _require_shape(shape: Extents | None, expected: Extents, what: str) -> None:
    """Raise ShapeConflict unless the shape, if known, may equal `expected`."""
    if shape is not None:
        require_that(may_be_equal(shape, expected), f"{what} is {format_dims(shape)}; expected {format_dims(expected)}")


def require_quantization(node: NodeShapes) -> None:
    """Require a single scale for the tensor, or a scale for each place on an axis or for each block."""
    data, scale, zero = node.shape(0), node.shape(1), node.shape(2)
    if scale is not None and zero is not None and element_count_of(scale) != 1:
        require_that(
            may_be_equal(scale, zero), f"the scale {format_dims(scale)} and the zero point {format_dims(zero)} differ"
        )
    if (
        data is not None
        and scale is not None
        and len(scale) == 1
        and scale[0] != 1
        and not node.integer_attribute("block_size")
    ):
        require_equal(
            data[node.axis_attribute(1, len(data))],
            scale[0],
            f"the scales are not one for each place of {format_dims(data)}",
        )
