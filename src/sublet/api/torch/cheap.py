"""Nodes of graphs that PyTorch traced: whose elements a tensor is, how large it is, and whether it is cheap."""

from __future__ import annotations

import operator
from typing import Any

from sublet.frontends.torch.tensors import torch

LEAST = 1 << 14
"""Bytes below which a tensor is kept."""

CHEAP = (
    "aten.clone.default", "aten._to_copy.default", "aten.full.default", "aten.full_like.default",
    "aten.scalar_tensor.default", "aten.arange.default", "aten.arange.start", "aten.arange.start_step",
    "aten.zeros_like.default", "aten.ones_like.default", "aten.native_layer_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
)  # fmt: skip
"""Operators that take about as long as reading their inputs, beside those that PyTorch calls pointwise."""

POOL = "aten.max_pool2d_with_indices.default"
"""Its indices are twice as large as its maxima."""

BATCH_NORM = "aten._native_batch_norm_legit_functional.default"


def storage(node: Any) -> Any:
    """The node that computed what this one is a view of."""
    while _is_view(node) and node.args and isinstance(node.args[0], torch().fx.Node):
        node = node.args[0]
    return node


def nbytes(node: Any) -> int:
    """Bytes of the tensor that a node gives; 0 for what is none."""
    found = node.meta.get("val")
    if not isinstance(found, torch().Tensor) or any(not isinstance(extent, int) for extent in found.shape):
        return 0
    return int(found.numel() * found.element_size())


def _is_view(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    alias = [result.alias_info for result in schema.returns]
    return len(alias) == 1 and alias[0] is not None and not alias[0].is_write and not schema.is_mutable


def is_cheap(node: Any) -> bool:
    """Whether a tensor is computed by what takes about as long as reading its inputs."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        whole, position = node.args
        if str(whole.target) == BATCH_NORM:
            return is_batch_norm(node)
        return str(whole.target) == POOL or (position == 0 and str(whole.target) in CHEAP)
    t, tags = torch(), getattr(node.target, "tags", ())
    if t.Tag.nondeterministic_seeded in tags or not isinstance(node.meta.get("val"), t.Tensor) or _is_own(node):
        return False
    return t.Tag.pointwise in tags or str(node.target) in CHEAP


def _is_own(node: Any) -> bool:
    """Whether it is a copy of an argument, as AOTAutograd makes one of what the function changes: later it is not what
    it was."""
    return str(node.target) == "aten.clone.default" and node.args[0].op == "placeholder"


def is_batch_norm(node: Any) -> bool:
    """Whether it is the result of a batch norm in training whose statistics are kept, with a scale and a bias."""
    if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != 0:
        return False
    whole = node.args[0]
    if str(whole.target) != BATCH_NORM or None in whole.args[1:3] or not whole.args[5]:
        return False
    return result(whole, 1) is not None and result(whole, 2) is not None


def result(whole: Any, position: int) -> Any:
    return next((user for user in whole.users if user.target is operator.getitem and user.args[1] == position), None)


def gives_several(node: Any) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), list | tuple)
