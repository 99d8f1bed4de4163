"""Output shapes of windowed operators (pools, transposed convolutions) as computed by ONNX Runtime's kernels.

ONNX's shape inference gives different extents for pools before version 22 of the operator set, if the extents are
rounded up or padded automatically with dilations, and for automatically padded transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sublet.frontends.onnx.rules.shape_rule import Extents, NodeShapes

Padding = tuple[int, int]
"""The padding elements in front of an axis and behind."""


def pool_extents(node: NodeShapes) -> Extents | None:
    """Return the shape of a pool's output, None if the window does not fit the operand's rank."""
    data, window = node.shape(0), node.integers_attribute("kernel_shape")
    if data is None or window is None or len(data) != len(window) + 2:
        return None
    count = len(window)
    strides, dilations = (
        node.integers_attribute("strides") or (1,) * count,
        node.integers_attribute("dilations") or (1,) * count,
    )
    pads = node.integers_attribute("pads") or (0,) * (2 * count)
    if (len(strides), len(dilations), len(pads)) != (count, count, 2 * count) or min(strides) < 1:
        return None
    up, mode = node.integer_attribute("ceil_mode") == 1, node.text_attribute("auto_pad", "NOTSET")
    extents: list[int | None] = []
    for i, extent in enumerate(data[2:]):
        if extent is None:
            extents.append(None)
            continue
        padding = _pool_padding(mode, extent, strides[i], window[i], (pads[i], pads[i + count]))
        extents.append(_window_count(extent, strides[i], dilations[i] * (window[i] - 1) + 1, padding, up))
    return (*data[:2], *extents)


def _pool_padding(mode: str, extent: int, stride: int, taps: int, explicit: Padding) -> Padding:
    """Return the padding of one axis of a pool. Automatic padding ignores dilations."""
    if mode == "VALID":
        return 0, 0
    if not mode.startswith("SAME"):
        return explicit
    needed = (-(-extent // stride) - 1) * stride + taps - extent
    front = (needed + 1) // 2 if mode == "SAME_LOWER" else needed // 2
    return front, needed - front


def _window_count(extent: int, stride: int, reach: int, padding: Padding, up: bool) -> int:
    """Return the number of windows on one axis. The last window begins in the operand or in the front padding."""
    room = extent + sum(padding) - reach
    if not up:
        return (room // stride if room >= 0 else -(-room // stride)) + 1
    steps = -(-room // stride) + 1
    return steps - 1 if (steps - 1) * stride >= extent + padding[0] else steps


def transposed_extents(node: NodeShapes) -> Extents | None:
    """Return the shape of an automatically padded transposed convolution, None for explicit padding."""
    data, kernel = node.shape(0), node.shape(1)
    automatic = (
        node.text_attribute("auto_pad", "NOTSET").startswith("SAME") and node.integers_attribute("output_shape") is None
    )
    if not automatic or data is None or kernel is None or len(data) != len(kernel) or len(data) < 3:
        return None
    count = len(data) - 2
    strides, dilations = (
        node.integers_attribute("strides") or (1,) * count,
        node.integers_attribute("dilations") or (1,) * count,
    )
    more = node.integers_attribute("output_padding") or (0,) * count
    if {len(strides), len(dilations), len(more)} != {count}:
        return None
    extents: list[int | None] = []
    for i, (extent, taps) in enumerate(zip(data[2:], kernel[2:], strict=True)):
        if extent is None or taps is None:
            extents.append(None)
        else:
            whole = (extent - 1) * strides[i] + more[i] + dilations[i] * (taps - 1) + 1
            extents.append(min(whole, extent * strides[i]))
    channels = None if kernel[1] is None else kernel[1] * node.integer_attribute("group", 1)
    return (data[0], channels, *extents)


CORRECTED_SHAPES: Mapping[str, Callable[[NodeShapes], Extents | None]] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool_extents),
    "ConvTranspose": transposed_extents,
}
"""Operator of ONNX's default domain -> the function returning the shape of every output, or None."""


def is_corrected(op_type: str, domain: str) -> bool:
    """True if Sublet corrects the shapes inferred by ONNX for the operator."""
    return domain in ("", "ai.onnx") and op_type in CORRECTED_SHAPES


def corrected_shapes(op_type: str, node: NodeShapes, inferred: Sequence[Extents | None]) -> list[Extents | None]:
    """Return the shapes of the outputs: ONNX Runtime's if known to Sublet, else the `inferred` shapes."""
    shape = CORRECTED_SHAPES[op_type](node)
    return list(inferred) if shape is None else [shape] * len(inferred)
