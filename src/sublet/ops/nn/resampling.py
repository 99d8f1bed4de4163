"""Upsampling of images: a sparse matrix along each axis, so the gradient is the transposed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.command import REQUIRED_INTEGERS, Command, Compute, Required, pick, same_bytes, spec_of
from sublet.ops.nn.gradient_rules import only_gradient, operand, result
from sublet.ops.nn.shape_inference import FLOATS, require_type
from sublet.ops.op import Attrs, Emit, Grads, Share, Specs

MODES = ("nearest", "bilinear")


def nearest_sources(source: int, extent: int) -> NDArray[np.int64]:
    """Return for each of `extent` elements the index of the element to copy, among `source` elements."""
    return np.arange(extent) * source // max(1, extent)


def interpolation_matrix(source: int, extent: int, mode: str, align_corners: int) -> NDArray[np.float64]:
    """Return W[extent, source]: element i of the result is the sum over k of W[i, k] x[k].

    Positions are as in PyTorch: the centres of the first and last elements coincide if `align_corners`, else
    the outer edges do.
    """
    matrix = np.zeros((extent, source))
    rows = np.arange(extent)
    if mode == "nearest":
        matrix[rows, nearest_sources(source, extent)] = 1
        return matrix
    if align_corners:
        at = rows * ((source - 1) / (extent - 1) if extent > 1 else 0.0)
    else:
        at = np.maximum((rows + 0.5) * (source / extent) - 0.5, 0)
    below = np.minimum(at.astype(int), source - 1)
    share = np.clip(at - below, 0, 1)
    np.add.at(matrix, (rows, below), 1 - share)
    np.add.at(matrix, (rows, np.minimum(below + 1, source - 1)), share)
    return matrix


def _infer_resized(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, size, mode = require_type(specs[0], FLOATS), pick(attrs, "size"), pick(attrs, "mode")
    if len(x.shape) != 4:
        raise SpecError(f"the input is {x}, expected the axes [N, C, H, W]")
    if len(size) != 2 or min(size) < 1:
        raise SpecError(f"size = {list(size)} must be (height, width), both at least 1")
    if mode not in MODES:
        raise SpecError(f"mode = {mode!r} must be one of {', '.join(MODES)}")
    if 0 in x.shape[2:]:
        raise SpecError(f"the input is {x}: height and width must be at least 1")
    return (TensorSpec(x.dtype, (*x.shape[:2], *size)),)


def _upsample(x: Any, size: tuple[int, int], mode: str, align_corners: int) -> Any:
    down, across = (interpolation_matrix(n, m, mode, align_corners) for n, m in zip(x.shape[2:], size, strict=True))
    return (down @ x @ across.T).astype(x.dtype)


def _upsample_gradient(dy: Any, size: tuple[int, int], mode: str, align_corners: int) -> Any:
    down, across = (interpolation_matrix(n, m, mode, align_corners) for n, m in zip(size, dy.shape[2:], strict=True))
    return (down.T @ dy @ across).astype(dy.dtype)


def _views(node: Node) -> tuple[Share, ...]:
    return same_bytes(node) if spec_of(operand(node, 0)) == spec_of(result(node)) else ()


def _resampling(name: str, text: str, compute: Compute, other: str) -> Command:
    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        attrs = {name: pick(node.attrs, name) for name in ("mode", "align_corners")}
        return [emit(other, only_gradient(grads), size=spec_of(operand(node, 0)).shape[2:], **attrs)]

    attrs: dict[str, Attr | Required] = {"size": REQUIRED_INTEGERS, "mode": "nearest", "align_corners": False}
    return Command(name, text, _infer_resized, compute, gradient, attrs, views=_views)


COMMANDS = (
    _resampling(
        "upsample",
        "Images [N, C, H, W] of another size, nearest or bilinear; positions as in PyTorch.",
        _upsample,
        "nn.upsample_gradient",
    ),
    _resampling(
        "upsample_gradient",
        "The gradient of nn.upsample, of images of the size `size`: dy -> dx.",
        _upsample_gradient,
        "nn.upsample",
    ),
)
