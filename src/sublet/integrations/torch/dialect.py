"""The dialect of ATen operators: bytes shared by operands, views, operations of products.

The measured facts of operators, by version of PyTorch, stand in `operator_facts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import prod
from typing import Any

from sublet.base.tensor import TensorSpec
from sublet.integrations.torch.operator_call import (
    Argument,
    NamedConstant,
    OperatorCall,
    StridedLayout,
    TensorArgument,
    decode,
    encode,
)
from sublet.integrations.torch.operator_facts import facts_of_version, installed_version, known_version
from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, Share, Shares, concat_shares, no_shares

PREFIX = "aten."

# Device exceptions: operators violating their schemas on a device, hence forbidden in a graph, with the reason.

SEED_RESULTS: Mapping[str, tuple[int, ...]] = {
    f"{PREFIX}_scaled_dot_product_flash_attention.default": (6, 7),
    f"{PREFIX}_scaled_dot_product_efficient_attention.default": (2, 3),
    f"{PREFIX}_scaled_dot_product_cudnn_attention.default": (6, 7),
}
"""Positions of results that are seeds of random numbers. Seeds lie on the CPU, or on the device during the capture of a
CUDA graph, whatever tracing says, and readers expect them there. Without dropout no operator reads the seeds.
"""

UNDECLARED_UPDATES = (f"{PREFIX}cudnn_batch_norm.default", f"{PREFIX}miopen_batch_norm.default")
"""Operators changing running statistics in training, contrary to their schemas."""


def why_not_plannable(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the reason why an operator with the given arguments cannot be planned on a device; "" if plannable."""
    if name in SEED_RESULTS and arguments.get("dropout_p"):
        return f"{name} with dropout: the device of its seed depends on CUDA graph capture"
    if name in UNDECLARED_UPDATES and arguments.get("training"):
        return f"{name} in training updates running statistics, which its schema does not declare"
    return ""


# PyTorch's functional collectives, such as `_c10d_functional.all_reduce.default`: computations of a process group.
#
#     begun = all_gather_into_tensor(x)      # may run concurrently with later operators
#     y = wait_tensor(begun)                 # the same bytes, complete
#
# A collective may read its input until the wait, so the wait reads the input too. All collectives run in the order of
# the graph: every rank must call the same collectives in the same order.

COLLECTIVES = "_c10d_functional."
WAIT = f"{COLLECTIVES}wait_tensor.default"

COPY_FIRST_ARGUMENT = (f"{COLLECTIVES}all_reduce.default", f"{COLLECTIVES}broadcast.default")
"""Collectives working on a copy of the first argument; the argument need not live until the wait."""


@cache
def collective_op(name: str) -> Op:
    """Return the record of a collective or of a wait."""
    if name == WAIT:
        return Op(name, views=view_shares, pure=False)
    return Op(name, inplace=_overwrite_first if name in COPY_FIRST_ARGUMENT else no_shares, pure=False)


def _overwrite_first(node: Node) -> tuple[Share, ...]:
    """Return the share of the output with input 0, for equal byte counts; a copy is then unnecessary."""
    sizes = [value.nbytes if value is not None else 0 for value in (node.inputs[0], node.outputs[0])]
    return tuple(share for share in view_shares(node) if not share.offset and sizes[0] == sizes[1])


# Fused aten operators, computed some rows at a time: the intermediate tensor never exists as a whole.
#
#     a = nll_loss_backward(dy, y, labels, weight, reduction, ignored, total)     y = _log_softmax(x, -1)
#     dx = _log_softmax_backward_data(a, y, -1, dtype)
#
#     dx = LOGITS_GRADIENT(dy, y, labels, weight, reduction, ignored, total)
#
# For logits x [N, C] of a language model, `a` is as large as `x`, but only one number per row is not 0.

FUSED_PREFIX = "joined."
LOGITS_GRADIENT = f"{FUSED_PREFIX}nll_loss_log_softmax_backward"

#     a = embedding_dense_backward(dy, indices, rows, padding, False)
#     g = add(w, a)
#
#     g = EMBEDDING_SUM(w, dy, indices, padding)
#
# The gradient `a` [rows, width] of a table is as large as the table, but only the rows in `indices` are not 0. Language
# models add the gradient to the gradient `w` of the same table as the last layer.

EMBEDDING_SUM = f"{FUSED_PREFIX}add_embedding_dense_backward"

#     loss, dx, dw, db = LINEAR_LOSS(x, weight, bias, labels, ignored, mean, groups)
#
# The cross entropy of a linear layer, with the gradients of the loss by x, weight and bias, in groups of rows: see
# `compile/loss_rows.py`. Gradients that nothing reads are omitted.

LINEAR_LOSS = f"{FUSED_PREFIX}linear_cross_entropy"

OVERWRITES: dict[str, tuple[int, ...]] = {LOGITS_GRADIENT: (1,), EMBEDDING_SUM: (0,), LINEAR_LOSS: ()}
"""Positions of the arguments overwritable by the result: each row is read before it is written."""


@cache
def fused_op(name: str) -> Op:
    """Return the record of a fused operator."""
    operations = _linear_loss_operations if name == LINEAR_LOSS else None
    return Op(
        name, inplace=overwrite_arguments(OVERWRITES.get(name, ())), pure=name in OVERWRITES, operations=operations
    )


AS_STRIDED = "aten.as_strided"
"""A copy of a strided view: a range of the input's bytes if the plan can leave the tensor there, else a copy."""

DEVICE = "device"
"""The attribute of a node with an operator running on a device other than the CPU, such as "cuda:0"."""

COPIES = ("aten.clone.default", "aten._to_copy.default", "aten.contiguous.default", "aten.lift_fresh_copy.default")
"""Operators with the content of the input as output."""


ROW_BY_ROW = {
    "_softmax.default": (0,),
    "_log_softmax.default": (0,),
    "_softmax_backward_data.default": (0, 1),
    "_log_softmax_backward_data.default": (0, 1),
}
"""Arguments overwritten by operators along the last axis; along any other axis, the kernels read written elements.

The rule holds for CPU kernels. All other overwriting operators are element-wise: PyTorch's TensorIterator runs them on
every device, and accepts a tensor as both operand and result (`assert_no_partial_overlap`).
"""

COPIED_RESULTS = {"native_dropout_backward.default": (0,), "hardswish_backward.default": (0, 1)}
"""Arguments overwritten by element-wise operators without `out=`, on the CPU.

A kernel computes a result, or a chunk of a result, in memory of PyTorch, and copies the elements afterwards.
"""

UNREAD_ARGUMENTS = {
    f"{name}.default": (1,)
    for name in (
        "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
    )
}  # fmt: skip
"""Arguments of which CPU kernels read the shape and the strides, and no element: images of gradients of poolings."""


def aten_op(name: str) -> Op:
    """Return the record of an operator; an operator without facts counts as impure and shares no bytes.

    The facts are those of the installed version of PyTorch.
    """
    return _aten_op(name, known_version(installed_version()))


@cache
def _aten_op(name: str, version: str) -> Op:
    if name == AS_STRIDED or name in COPIES:
        return Op(name, views=view_shares)
    op_facts = facts_of_version(version).get(name.removeprefix(PREFIX))
    if op_facts is None:
        return Op(name, pure=False)
    parts = _concat_shares if name == "aten.cat.default" else no_shares
    if name.removeprefix(PREFIX) in ROW_BY_ROW:
        return Op(name, inplace=_overwrite_along_rows(ROW_BY_ROW[name.removeprefix(PREFIX)]))
    on_cpu = {**COPIED_RESULTS, **UNREAD_ARGUMENTS}.get(name.removeprefix(PREFIX))
    inplace = overwrite_arguments(op_facts.overwrites) if on_cpu is None else _overwrite_on_cpu(on_cpu)
    return Op(name, parts=parts, inplace=inplace, pure=not op_facts.random, operations=_operations_rule(name))


def _operations_rule(name: str) -> Callable[[Node], float] | None:
    """Return the rule for the multiplications and additions of a product; None for any other operator.

    Products read operands by layouts: the shape of a value is the order in memory, possibly of a larger tensor.
    """
    short = name.removeprefix(PREFIX).partition(".")[0]
    if short in FACTORS:
        return partial(_matmul_operations, *FACTORS[short])
    if short.startswith("_scaled_dot_product"):
        return partial(_attention_operations, short.endswith("_backward"))
    if short.startswith("convolution"):
        return partial(_convolution_operations, short.endswith("_backward"))
    return None


FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2), "mv": (0, 1)}
"""Positions of both factors of matrix products."""


def _matmul_operations(first: int, second: int, node: Node) -> float:
    """Return two operations for each element of the first factor and column of the second."""
    right = _argument_extents(node, second)
    return 2.0 * prod(_argument_extents(node, first)) * (right[-1] if len(right) > 1 else 1)


def _linear_loss_operations(node: Node) -> float:
    """Return the operations of the three products of a linear layer and its gradients."""
    return 6.0 * prod(_argument_extents(node, 0)) * next(iter(_argument_extents(node, 1)), 1)


def _attention_operations(backward: bool, node: Node) -> float:
    """Return the operations of both products of an attention, or of the five products of its gradient."""
    query, key = (_argument_extents(node, number + backward) for number in (0, 1))
    return 2.0 * (5 if backward else 2) * prod(query) * (key[-2] if len(key) > 1 else 1)


def _convolution_operations(backward: bool, node: Node) -> float:
    """Return two operations for each output element, input channel and weight; the gradients count one such product."""
    arguments, first = decode(node).args, int(backward)
    image, weight = _argument_extents(node, first), _argument_extents(node, first + 1)
    result = _argument_extents(node, 0) if backward else getattr(_planned_spec(node.outputs[0]), "shape", ())
    transposed, mask = arguments[6 + first], arguments[-1]
    products = sum(map(bool, mask[:2])) if backward and isinstance(mask, tuple) else 1  # gradients of image and weight
    return 2.0 * products * prod(image if transposed else result) * prod(weight[1:])


def _argument_extents(node: Node, number: int) -> tuple[int, ...]:
    """Return the extents of an argument; () for an argument that is no planned tensor."""
    used = decode(node).args[number]
    spec = _planned_spec(node.inputs[used.input]) if isinstance(used, TensorArgument) else None
    if spec is None or not isinstance(used, TensorArgument):
        return ()
    return used.layout.size if used.layout is not None else spec.shape


def _planned_spec(value: Value | None) -> TensorSpec | None:
    return value.spec if value is not None and isinstance(value.spec, TensorSpec) and value.nbytes else None


def view_shares(node: Node) -> tuple[Share, ...]:
    """Return the share of a view: the output as a range of the bytes of the input, in order."""
    call = decode(node)
    source, result = _planned_spec(node.inputs[0]) if node.inputs else None, _planned_spec(node.outputs[0])
    used = call.args[0] if call.args else None
    if source is None or result is None or not isinstance(used, TensorArgument) or source.dtype is not result.dtype:
        return ()
    read = used.layout or StridedLayout.contiguous(source.shape)
    written = call.outputs[0] or StridedLayout.contiguous(result.shape)
    if not read.is_dense or read.size != written.size or read.canonical.stride != written.canonical.stride:
        return ()
    if (read.offset + read.elements) > source.size or read.offset * source.dtype.bits % 8:
        return ()
    return (Share(0, 0, read.offset * source.dtype.bits // 8),)


def overwrite_arguments(positions: tuple[int, ...]) -> Shares:
    """Return the fact: the first output may overwrite the arguments at `positions` if layouts are equal."""

    def shares(node: Node) -> tuple[Share, ...]:
        result = _planned_spec(node.outputs[0]) if node.outputs else None
        if result is None or not positions:
            return ()
        call = decode(node)
        written = call.outputs[0] or StridedLayout.contiguous(result.shape)
        arguments = (call.args[position] for position in positions if position < len(call.args))
        inputs = (argument.input for argument in arguments if isinstance(argument, TensorArgument))
        return tuple(Share(0, i) for i in dict.fromkeys(inputs) if _has_same_layout(node, call, i, written, result))

    return shares


def _overwrite_on_cpu(positions: tuple[int, ...]) -> Shares:
    """Return the fact of `overwrite_arguments` for kernels on the CPU alone."""
    over = overwrite_arguments(positions)
    return lambda node: () if DEVICE in node.attrs else over(node)


def _overwrite_along_rows(positions: tuple[int, ...]) -> Shares:
    """Return the fact for an operator with the axis as the argument after the tensors; valid only for the last axis."""
    over = overwrite_arguments(positions)

    def shares(node: Node) -> tuple[Share, ...]:
        result = _planned_spec(node.outputs[0]) if node.outputs else None
        if result is None or not result.shape or DEVICE in node.attrs:
            return ()
        call = decode(node)
        axis = call.args[len(positions)] if len(call.args) > len(positions) else None
        last = isinstance(axis, int) and axis % len(result.shape) == len(result.shape) - 1
        return over(node) if last and call.outputs[0] is None else ()

    return shares


def _has_same_layout(node: Node, call: OperatorCall, position: int, written: StridedLayout, result: TensorSpec) -> bool:
    """True if the output has the same layout, element by element, as every use of the input in the call."""
    source = _planned_spec(node.inputs[position])
    if source is None or source.dtype.bits != result.dtype.bits or source.nbytes != result.nbytes:
        return False
    uses = [
        use.layout or StridedLayout.contiguous(source.shape) for use in call.tensor_arguments() if use.input == position
    ]
    return written.is_dense and all(use.canonical == written.canonical for use in uses)


def _concat_shares(node: Node) -> tuple[Share, ...]:
    """Return the shares of tensors lying one after another in their concatenation.

    Empty if an axis before the concatenated axis is longer than 1.
    """
    call = decode(node)
    result = _planned_spec(node.outputs[0])
    tensors = call.args[0] if call.args else None
    axis = call.args[1] if len(call.args) > 1 else 0
    specs = [_planned_spec(value) for value in node.inputs]
    if result is None or not isinstance(tensors, tuple) or not isinstance(axis, int) or call.outputs[0] is not None:
        return ()
    rank = len(result.shape)
    is_contiguous = all(isinstance(t, TensorArgument) and t.layout is None for t in tensors)
    if not is_contiguous or len(tensors) != len(specs) or not -rank <= axis < rank:
        return ()
    present = [spec for spec in specs if spec is not None and len(spec.shape) == rank]
    shares = concat_shares(result, present, axis % rank) if len(present) == len(specs) else ()
    return shares if sum(present[share.input].nbytes for share in shares) == result.nbytes else ()


# The `aten` dialect: PyTorch ATen operators by name and overload, `aten.add.Tensor`, with arguments as data.
#
# A tensor argument is a value with a layout. PyTorch views are therefore no nodes: a reader of a view reads the bytes
# of the viewed value.

__all__ = [
    "AS_STRIDED",
    "COLLECTIVES",
    "DEVICE",
    "EMBEDDING_SUM",
    "FUSED_PREFIX",
    "LINEAR_LOSS",
    "LOGITS_GRADIENT",
    "PREFIX",
    "WAIT",
    "Argument",
    "NamedConstant",
    "OperatorCall",
    "StridedLayout",
    "TensorArgument",
    "aten_op",
    "collective_op",
    "decode",
    "encode",
    "fused_op",
]  # fmt: skip
