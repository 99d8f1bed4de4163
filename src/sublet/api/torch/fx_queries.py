"""Queries on nodes of traced FX graphs: storage of a view, size in bytes, and cost of a second computation."""

from __future__ import annotations

import operator
from typing import Any

from sublet.frontends.torch.traced_tensor import torch

MIN_RECOMPUTED_BYTES = 1 << 14
"""Minimum bytes of a rematerialized tensor. Smaller tensors are kept."""

CHEAP_OPERATORS = (
    "aten.clone.default", "aten._to_copy.default", "aten.full.default", "aten.full_like.default",
    "aten.scalar_tensor.default", "aten.arange.default", "aten.arange.start", "aten.arange.start_step",
    "aten.zeros_like.default", "aten.ones_like.default", "aten.native_layer_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
)  # fmt: skip
"""Operators about as fast as reading their inputs, beside operators tagged as pointwise by PyTorch."""

MAX_POOL = "aten.max_pool2d_with_indices.default"
"""Max pooling with indices. The int64 indices are twice as large as f32 maxima."""

BATCH_NORM = "aten._native_batch_norm_legit_functional.default"


def storage_node(node: Any) -> Any:
    """Return the node computing the storage of a view; the node itself for a node without an operand to view."""
    while _is_view(node) and node.args and isinstance(node.args[0], torch().fx.Node):
        node = node.args[0]
    return node


def tensor_bytes(node: Any) -> int:
    """Return the bytes of a node's tensor; 0 for a node without a tensor, or with symbolic extents."""
    tensor = node.meta.get("val")
    if not isinstance(tensor, torch().Tensor) or any(not isinstance(extent, int) for extent in tensor.shape):
        return 0
    return int(tensor.numel() * tensor.element_size())


def _is_view(node: Any) -> bool:
    """True if the only result of the node aliases an operand and the operator writes no operand."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    alias = [result.alias_info for result in schema.returns]
    return len(alias) == 1 and alias[0] is not None and not alias[0].is_write and not schema.is_mutable


def is_cheap(node: Any) -> bool:
    """True if computing the tensor takes about as long as reading the operator's inputs."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        whole, position = node.args
        if str(whole.target) == BATCH_NORM:
            return is_batch_norm_result(node)
        return str(whole.target) == MAX_POOL or (position == 0 and str(whole.target) in CHEAP_OPERATORS)
    t, tags = torch(), getattr(node.target, "tags", ())
    if (
        t.Tag.nondeterministic_seeded in tags
        or not isinstance(node.meta.get("val"), t.Tensor)
        or _is_argument_copy(node)
    ):
        return False
    return t.Tag.pointwise in tags or str(node.target) in CHEAP_OPERATORS


def _is_argument_copy(node: Any) -> bool:
    """True for a copy of an argument.

    AOTAutograd copies an argument before the function changes the argument, so a second copy would have the changed
    content.
    """
    return str(node.target) == "aten.clone.default" and node.args[0].op == "placeholder"


def is_batch_norm_result(node: Any) -> bool:
    """True for the result of a training batch norm with scale, bias and saved statistics."""
    if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != 0:
        return False
    whole = node.args[0]
    if str(whole.target) != BATCH_NORM or None in whole.args[1:3] or not whole.args[5]:
        return False
    return result_at(whole, 1) is not None and result_at(whole, 2) is not None


def result_at(whole: Any, position: int) -> Any:
    """Return the `getitem` node of a result position, or None if the position is unused."""
    return next((user for user in whole.users if user.target is operator.getitem and user.args[1] == position), None)


def has_several_results(node: Any) -> bool:
    """True if the node returns several tensors."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), list | tuple)
