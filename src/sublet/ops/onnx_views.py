"""Views and concat operands in place of ONNX operators: outputs as bytes of an input, and outputs containing inputs.

A node has shares only if the shares explain every byte of the outputs: the node then runs without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.contiguous import block_share, concat_shares, keeps_element_order
from sublet.ops.op import Share, Shares


def _first_spec(values: Sequence[Value | None]) -> TensorSpec | None:
    """Return the spec of the first value if present, plannable and not empty; else None."""
    spec = values[0].spec if values and values[0] is not None else None
    return spec if isinstance(spec, TensorSpec) and spec.nbytes else None


def _first_specs(node: Node) -> tuple[TensorSpec, TensorSpec] | None:
    """Return the specs of the first input and output if both are plannable and of equal type; else None."""
    source, result = _first_spec(node.inputs), _first_spec(node.outputs)
    return (source, result) if source and result and source.dtype is result.dtype else None


def _same_bytes(node: Node) -> tuple[Share, ...]:
    """Return the share of the output with the whole input, for equal types and equal numbers of elements."""
    pair = _first_specs(node)
    return (Share(0, 0),) if pair and pair[0].size == pair[1].size else ()


def _dropout(node: Node) -> tuple[Share, ...]:
    """Return the share for inference without a mask output: a copy of the input."""
    masked = len(node.outputs) > 1 and node.outputs[1] is not None
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if masked or node.attrs.get("is_test", 1) != 1:
        return ()
    return _same_bytes(node) if training is None or training.literal == (False,) else ()


def _transpose(node: Node) -> tuple[Share, ...]:
    """Return the share if only dimensions of extent 1 move."""
    pair = _first_specs(node)
    if pair is None:
        return ()
    shape = pair[0].shape
    permutation = _integer_attribute(node, "perm") or tuple(reversed(range(len(shape))))
    axes = [axis for axis in permutation if 0 <= axis < len(shape)]
    return _same_bytes(node) if keeps_element_order(shape, axes) else ()


def _pad(node: Node) -> tuple[Share, ...]:
    """Return the share if every pad is 0."""
    pads = _integer_parameter(node, "pads", 1)
    return _same_bytes(node) if pads is not None and not any(pads) else ()


def _slice(node: Node) -> tuple[Share, ...]:
    pair = _first_specs(node)
    starts = _integer_parameter(node, "starts", 1)
    if pair is None or starts is None:
        return ()
    shape = pair[0].shape
    axes: Sequence[int] | None = range(len(starts))
    if _has_parameter(node, "axes", 3):
        axes = _integer_parameter(node, "axes", 3)
    steps = _integer_parameter(node, "steps", 4) if _has_parameter(node, "steps", 4) else (1,)
    if axes is None or steps is None or any(step != 1 for step in steps):
        return ()
    begin = [0] * len(shape)
    for start, axis in zip(starts, axes, strict=False):
        if not -len(shape) <= axis < len(shape):
            return ()
        extent = shape[axis]
        begin[axis] = min(max(start + extent if start < 0 else start, 0), extent)
    return block_share(0, pair[0], pair[1].shape, begin)


def _split(node: Node) -> tuple[Share, ...]:
    source = _first_spec(node.inputs)
    if source is None:
        return ()
    axis = _axis(node, len(source.shape))
    begin = [0] * len(source.shape)
    shares: list[Share] = []
    for i, output in enumerate(node.outputs):
        if axis is None or output is None or not isinstance(output.spec, TensorSpec):
            break
        if output.spec.dtype is not source.dtype or len(output.spec.shape) != len(source.shape):
            break
        shares.extend(block_share(i, source, output.spec.shape, begin))
        begin[axis] += output.spec.shape[axis]
    explained = {share.output for share in shares}
    return tuple(shares) if all(i in explained for i, out in enumerate(node.outputs) if out and out.nbytes) else ()


def _gather(node: Node) -> tuple[Share, ...]:
    """Return the share if the indices are constants counting up by one."""
    pair = _first_specs(node)
    indices = _as_integers(node.inputs[1].literal) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    axis = _axis(node, len(pair[0].shape)) if pair else None
    if pair is None or axis is None or not indices:
        return ()
    source, result = pair
    extent = source.shape[axis]
    wanted = [index + extent if index < 0 else index for index in indices]
    if wanted != list(range(wanted[0], wanted[0] + len(wanted))):
        return ()
    shape = (*source.shape[:axis], len(wanted), *source.shape[axis + 1 :])
    begin = [0] * len(shape)
    begin[axis] = wanted[0]
    return block_share(0, source, shape, begin) if prod(shape) == result.size else ()


def _concat(node: Node) -> tuple[Share, ...]:
    """Return the shares of the inputs lying one after another in the output.

    Empty if a dimension before the axis is larger than 1.
    """
    result = _first_spec(node.outputs)
    specs = [value.spec if value is not None else None for value in node.inputs]
    planned = [spec for spec in specs if isinstance(spec, TensorSpec)]
    axis = _axis(node, len(result.shape)) if result else None
    if result is None or axis is None or len(planned) < len(specs):
        return ()
    shares = concat_shares(result, planned, axis)
    return shares if sum(planned[share.input].nbytes for share in shares) == result.nbytes else ()


def _integer_attribute(node: Node, name: str) -> tuple[int, ...] | None:
    return _as_integers(node.attrs.get(name))


def _as_integers(found: object) -> tuple[int, ...] | None:
    """Return a list of integers; None for any other value."""
    if not isinstance(found, tuple) or not all(isinstance(number, int) for number in found):
        return None
    return tuple(int(number) for number in found)


def _has_parameter(node: Node, name: str, position: int) -> bool:
    return name in node.attrs or (len(node.inputs) > position and node.inputs[position] is not None)


def _integer_parameter(node: Node, name: str, position: int) -> tuple[int, ...] | None:
    """Return a list given as an attribute in old versions, or as a constant input in new versions; None if unknown."""
    if name in node.attrs:
        return _integer_attribute(node, name)
    value = node.inputs[position] if len(node.inputs) > position else None
    return None if value is None else _as_integers(value.literal)


def _axis(node: Node, rank: int) -> int | None:
    """Return the attribute `axis` counted from the front, by default 0; None if invalid."""
    axis = node.attrs.get("axis", 0)
    return axis % rank if isinstance(axis, int) and -rank <= axis < rank else None


VIEWS: Mapping[str, Shares] = {
    "Cast": _same_bytes,
    "CastLike": _same_bytes,
    "Dropout": _dropout,
    "Expand": _same_bytes,
    "Flatten": _same_bytes,
    "Gather": _gather,
    "Identity": _same_bytes,
    "Pad": _pad,
    "Reshape": _same_bytes,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _same_bytes,
    "Tile": _same_bytes,
    "Transpose": _transpose,
    "Unsqueeze": _same_bytes,
}
PARTS: Mapping[str, Shares] = {"Concat": _concat}
