"""The facts of ATen's operators: which inputs their kernels may overwrite, what is only a view, what is random.

`facts.json` was found by running PyTorch's own operators with their output over each of their inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.aten.call import Call, Strided, Use, decode
from sublet.ops.blocks import stacked
from sublet.ops.op import Op, Share, Shares, none

PREFIX = "aten."
AS_STRIDED = "aten.as_strided"
"""A tensor that begins as elements of another: a range of its bytes where the plan can leave it there, else a copy."""

DEVICE = "device"
"""The attribute of a node whose operator runs elsewhere than on the CPU: the device, as "cuda:0"."""

COPIES = ("aten.clone.default", "aten._to_copy.default", "aten.contiguous.default", "aten.lift_fresh_copy.default")
"""Their output has the content of their input."""


ROW_BY_ROW = {
    "_softmax.default": (0,),
    "_log_softmax.default": (0,),
    "_softmax_backward_data.default": (0, 1),
    "_log_softmax_backward_data.default": (0, 1),
}
"""What these overwrite where they work along the last axis; along another one they read what they have written.

This is known of kernels for the CPU. All others that overwrite are element by element: PyTorch's TensorIterator runs
them on every device, and takes a tensor that is an operand and the result (`assert_no_partial_overlap`).
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an operator.

    overwrites  the arguments, by position, that its kernel may overwrite with its first output
    out         the overload that writes where it is told; "" where there is none that does so without a copy
    inside      the overload that writes over its first argument, where there is no `out`
    random      whether it draws from PyTorch's generator
    """

    overwrites: tuple[int, ...] = ()
    out: str = ""
    inside: str = ""
    random: bool = False


@cache
def _found() -> Any:
    return json.loads(files(__package__).joinpath("facts.json").read_text(encoding="utf-8"))


@cache
def facts() -> Mapping[str, Facts]:
    """The facts by name, `add.Tensor`."""
    operators = _found()["operators"].items()
    return {name: Facts(**{**found, "overwrites": tuple(found.get("overwrites", ()))}) for name, found in operators}


@cache
def other_version(version: str) -> str:
    """What is wrong with the facts for a version of PyTorch; "" for the one that they were found in."""
    known = str(_found()["version"])
    if version.partition("+")[0] == known:
        return ""
    return (
        f"what PyTorch's operators may overwrite was found in version {known}, and this is {version}: install {known}"
    )


@cache
def aten(name: str) -> Op:
    """The record of an operator; of one without facts nothing is assumed, nor that it is the same each time."""
    if name == AS_STRIDED or name in COPIES:
        return Op(name, views=same_elements)
    found = facts().get(name.removeprefix(PREFIX))
    if found is None:
        return Op(name, pure=False)
    parts = _stacked if name == "aten.cat.default" else none
    if name.removeprefix(PREFIX) in ROW_BY_ROW:
        return Op(name, inplace=_along_rows(ROW_BY_ROW[name.removeprefix(PREFIX)]))
    return Op(name, parts=parts, inplace=overwriting(found.overwrites), pure=not found.random)


def _planned(value: Value | None) -> TensorSpec | None:
    return value.spec if value is not None and isinstance(value.spec, TensorSpec) and value.nbytes else None


def same_elements(node: Node) -> tuple[Share, ...]:
    """The output is a range of the bytes of the input, in their order."""
    call = decode(node)
    source, result = _planned(node.inputs[0]) if node.inputs else None, _planned(node.outputs[0])
    used = call.args[0] if call.args else None
    if source is None or result is None or not isinstance(used, Use) or source.dtype is not result.dtype:
        return ()
    read = used.layout or Strided.contiguous(source.shape)
    written = call.outputs[0] or Strided.contiguous(result.shape)
    if not read.is_dense or read.size != written.size or read.normal.stride != written.normal.stride:
        return ()
    if (read.offset + read.elements) > source.size or read.offset * source.dtype.bits % 8:
        return ()
    return (Share(0, 0, read.offset * source.dtype.bits // 8),)


def overwriting(positions: tuple[int, ...]) -> Shares:
    """That the first output may lie over the arguments at these positions, where it lies as they do."""

    def shares(node: Node) -> tuple[Share, ...]:
        result = _planned(node.outputs[0]) if node.outputs else None
        if result is None or not positions:
            return ()
        call = decode(node)
        written = call.outputs[0] or Strided.contiguous(result.shape)
        found = (call.args[position] for position in positions if position < len(call.args))
        inputs = (argument.input for argument in found if isinstance(argument, Use))
        return tuple(Share(0, i) for i in dict.fromkeys(inputs) if _laid_alike(node, call, i, written, result))

    return shares


def _along_rows(positions: tuple[int, ...]) -> Shares:
    """Of an operator whose axis follows its tensors."""
    over = overwriting(positions)

    def shares(node: Node) -> tuple[Share, ...]:
        result = _planned(node.outputs[0]) if node.outputs else None
        if result is None or not result.shape or DEVICE in node.attrs:
            return ()
        call = decode(node)
        axis = call.args[len(positions)] if len(call.args) > len(positions) else None
        last = isinstance(axis, int) and axis % len(result.shape) == len(result.shape) - 1
        return over(node) if last and call.outputs[0] is None else ()

    return shares


def _laid_alike(node: Node, call: Call, position: int, written: Strided, result: TensorSpec) -> bool:
    """Whether the output lies as the input does, element by element, wherever the call reads that."""
    source = _planned(node.inputs[position])
    if source is None or source.dtype.bits != result.dtype.bits or source.nbytes != result.nbytes:
        return False
    uses = [use.layout or Strided.contiguous(source.shape) for use in call.uses() if use.input == position]
    return written.is_dense and all(use.normal == written.normal for use in uses)


def _stacked(node: Node) -> tuple[Share, ...]:
    """Tensors lie in their concatenation one after another when no axis before is longer than 1."""
    call = decode(node)
    result = _planned(node.outputs[0])
    tensors = call.args[0] if call.args else None
    axis = call.args[1] if len(call.args) > 1 else 0
    specs = [_planned(value) for value in node.inputs]
    if result is None or not isinstance(tensors, tuple) or not isinstance(axis, int) or call.outputs[0] is not None:
        return ()
    rank = len(result.shape)
    whole = all(isinstance(t, Use) and t.layout is None for t in tensors)
    if not whole or len(tensors) != len(specs) or not -rank <= axis < rank:
        return ()
    known = [spec for spec in specs if spec is not None and len(spec.shape) == rank]
    shares = stacked(result, known, axis % rank) if len(known) == len(specs) else ()
    return shares if sum(known[share.input].nbytes for share in shares) == result.nbytes else ()
