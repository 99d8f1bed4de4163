"""Chains of element-wise commands, block by block.

A block that fits in the cache goes through all steps before the next one is begun, so that a chain of any length
reads its inputs and writes its output once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.ops.nn.fused import ChainStep, chain_steps, specs_of_steps
from sublet.runtime.backends.torch import activation, elementwise
from sublet.runtime.backends.torch.kernel import Calls, Fast, Operands, Tensor, bytes_as, torch
from sublet.runtime.kernel import Call

BLOCK_ELEMENTS = 1 << 16
"""Elements of a block: what is read and written of it should stay in the second-level cache, and its calls should
take much longer than it takes to make them."""

STEP_KERNELS: Mapping[str, Fast] = {**elementwise.KERNELS, **activation.KERNELS}

TYPES = {
    DType.BOOL: "bool",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U8: "uint8",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
}
"""PyTorch's names of the types that intermediate results may have."""

Slices = tuple[slice, ...]


def blocks(shape: Sequence[int]) -> list[Slices]:
    """A tensor of this shape cut into blocks of at most BLOCK_ELEMENTS, contiguous and in order of address."""
    for axis, extent in enumerate(shape):
        inner = prod(shape[axis + 1 :])
        if inner <= BLOCK_ELEMENTS:
            count = max(1, BLOCK_ELEMENTS // max(1, inner))
            cuts = [slice(begin, min(extent, begin + count)) for begin in range(0, extent, count)]
            outer = [[slice(i, i + 1) for i in range(several)] for several in shape[:axis]]
            return [(*where, cut) for *where, cut in product(*outer, cuts)]
    return [()]


def _cut(tensor: Tensor, where: Slices, rank: int) -> Tensor:
    """The part of an operand that goes with a block: all of it along axes it is extended along."""
    skipped = rank - tensor.ndim
    index = [cut if tensor.shape[axis] != 1 else slice(None) for axis, cut in enumerate(where[skipped:])]
    return tensor[tuple(index)] if index else tensor


def _slots(steps: Sequence[ChainStep], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each step but the last a slot for its result, and the bytes of an element in each slot.

    A step may write over an operand that nobody reads later: element by element, all have read before.
    """
    last = {name: i for i, step in enumerate(steps) for name in step.operands}
    slots: list[int] = []
    widths: list[int] = []
    free: list[int] = []
    for i, step in enumerate(steps[:-1]):
        free += [slots[int(name[1:])] for name in dict.fromkeys(step.operands) if name[0] == "s" and last[name] == i]
        fitting = [slot for slot in free if widths[slot] == sizes[i]]
        if fitting:
            slot = fitting[0]
            free.remove(slot)
        else:
            slot = len(widths)
            widths.append(sizes[i])
        slots.append(slot)
        if f"s{i}" not in last:
            free.append(slot)
    return slots, widths


def _step_specs(node: Node) -> list[TensorSpec]:
    return specs_of_steps([None if value is None else spec_of(value) for value in node.inputs], node.attrs)


def _sizes(node: Node) -> list[int]:
    return [spec.dtype.bits // 8 for spec in _step_specs(node)]


def _block_elements(node: Node) -> int:
    (result,) = node.defs
    return min(BLOCK_ELEMENTS, spec_of(result).size)


def _scratch(node: Node) -> int:
    """One block for each result that waits for a later step."""
    _, widths = _slots(chain_steps(node.attrs), _sizes(node))
    return sum(_aligned(width * _block_elements(node)) for width in widths)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _step_nodes(node: Node) -> list[Node]:
    """Each step as a node, for the kernel of its command."""
    specs = _step_specs(node)
    made: list[Value] = []
    nodes = []
    for i, step in enumerate(chain_steps(node.attrs)):
        made.append(Value(f"{node.name}/s{i}", specs[i]))
        operands = tuple((made if name[0] == "s" else node.inputs)[int(name[1:])] for name in step.operands)
        nodes.append(Node(made[-1].name, PREFIX + step.command.name, operands, (made[-1],), step.attrs))
    return nodes


def _takes(node: Node) -> bool:
    """Whether every step is one call that needs no memory of its own."""
    if not all(spec.dtype in TYPES for spec in _step_specs(node)):
        return False
    for each in _step_nodes(node):
        fast = STEP_KERNELS.get(each.op.removeprefix(PREFIX))
        if fast is None or not fast.takes(each) or fast.allocates or fast.scratch(each):
            return False
    return True


def _chain(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    steps, nodes, out = chain_steps(node.attrs), _step_nodes(node), outputs[0]
    slots, widths = _slots(steps, _sizes(node))
    offsets = [sum(_aligned(width * _block_elements(node)) for width in widths[:slot]) for slot in range(len(widths))]
    dtypes = [_dtype(each) for each in nodes]
    calls: list[Call] = []
    for where in blocks(out.shape):
        target = out[where] if where else out
        given = [_cut(tensor, where, out.ndim) for tensor in inputs]
        made = [bytes_as(scratch, dtypes[i], target.shape, offsets[slot]) for i, slot in enumerate(slots)]
        made.append(target)
        for i, (step, each) in enumerate(zip(steps, nodes, strict=True)):
            operands = [(made if name[0] == "s" else given)[int(name[1:])] for name in step.operands]
            fast = STEP_KERNELS[step.command.name]
            step_calls = fast.make(each, operands, [made[i]], None)
            calls += [step_calls] if callable(step_calls) else step_calls
    return calls


def _dtype(node: Node) -> Any:
    (result,) = node.defs
    return getattr(torch(), TYPES[spec_of(result).dtype])


KERNELS: Mapping[str, Fast] = {"chain": Fast(_chain, scratch=_scratch, takes=_takes)}
