"""Chains of element-wise commands, block by block.

Each block fits in the cache and passes through all steps before the next block starts. A chain of any length therefore
reads its inputs and writes its output once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.kernels import activation, elementwise
from sublet.integrations.torch.kernels.kernel import Calls, Operands, Tensor, TorchKernel, scratch_tensor, torch
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.ops.nn.fused import ChainStep, chain_steps, specs_of_steps
from sublet.runtime.kernel import Call

BLOCK_ELEMENTS = 1 << 16
"""Elements of a block: the operands of a block should stay in the second-level cache, and the work of a call should
take much longer than the overhead.
"""

STEP_KERNELS: Mapping[str, TorchKernel] = {**elementwise.KERNELS, **activation.ELEMENTWISE_KERNELS}

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
"""PyTorch's names of the types allowed for intermediate results."""

BlockIndex = tuple[slice, ...]


def block_slices(shape: Sequence[int]) -> list[BlockIndex]:
    """Return slices cutting a tensor into contiguous blocks of at most BLOCK_ELEMENTS elements, in order of address."""
    for axis, extent in enumerate(shape):
        inner = prod(shape[axis + 1 :])
        if inner <= BLOCK_ELEMENTS:
            count = max(1, BLOCK_ELEMENTS // max(1, inner))
            cuts = [slice(begin, min(extent, begin + count)) for begin in range(0, extent, count)]
            outer = [[slice(i, i + 1) for i in range(extent_before)] for extent_before in shape[:axis]]
            return [(*where, cut) for *where, cut in product(*outer, cuts)]
    return [()]


def _block_of(tensor: Tensor, where: BlockIndex, rank: int) -> Tensor:
    """Return the slice of an operand for a block; the whole operand along broadcast axes."""
    skipped = rank - tensor.ndim
    index = [cut if tensor.shape[axis] != 1 else slice(None) for axis, cut in enumerate(where[skipped:])]
    return tensor[tuple(index)] if index else tensor


def _assign_slots(steps: Sequence[ChainStep], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return a slot for the result of each step but the last, and the element size in bytes of each slot.

    A step may write over an operand without later readers: every element is read before it is written.
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


def _element_sizes(node: Node) -> list[int]:
    return [spec.dtype.bits // 8 for spec in _step_specs(node)]


def _block_elements(node: Node) -> int:
    (result,) = node.defs
    return min(BLOCK_ELEMENTS, spec_of(result).size)


def _scratch(node: Node) -> int:
    """Return the scratch bytes: a block for each result read by a later step."""
    _, widths = _assign_slots(chain_steps(node.attrs), _element_sizes(node))
    return sum(_align_up(width * _block_elements(node)) for width in widths)


def _align_up(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _step_nodes(node: Node) -> list[Node]:
    """Return each step as a node, for the kernel of the step's command."""
    specs = _step_specs(node)
    earlier: list[Value] = []
    nodes = []
    for i, step in enumerate(chain_steps(node.attrs)):
        earlier.append(Value(f"{node.name}/s{i}", specs[i]))
        operands = tuple((earlier if name[0] == "s" else node.inputs)[int(name[1:])] for name in step.operands)
        nodes.append(Node(earlier[-1].name, PREFIX + step.command.name, operands, (earlier[-1],), step.attrs))
    return nodes


def _supports(node: Node) -> bool:
    """True if PyTorch has the types of all steps, and every step is a kernel without scratch memory or allocation."""
    if not all(spec.dtype in TYPES for spec in _step_specs(node)):
        return False
    for each in _step_nodes(node):
        fast = STEP_KERNELS.get(each.op.removeprefix(PREFIX))
        if fast is None or not fast.supports(each) or fast.allocates or fast.scratch(each):
            return False
    return True


def _chain(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    steps, nodes, out = chain_steps(node.attrs), _step_nodes(node), outputs[0]
    slots, widths = _assign_slots(steps, _element_sizes(node))
    offsets = [sum(_align_up(width * _block_elements(node)) for width in widths[:slot]) for slot in range(len(widths))]
    dtypes = [_dtype(each) for each in nodes]
    calls: list[Call] = []
    for where in block_slices(out.shape):
        target = out[where] if where else out
        given = [_block_of(tensor, where, out.ndim) for tensor in inputs]
        intermediates = [
            scratch_tensor(scratch, dtypes[i], target.shape, offsets[slot]) for i, slot in enumerate(slots)
        ]
        intermediates.append(target)
        for i, (step, each) in enumerate(zip(steps, nodes, strict=True)):
            operands = [(intermediates if name[0] == "s" else given)[int(name[1:])] for name in step.operands]
            fast = STEP_KERNELS[step.command.name]
            step_calls = fast.make(each, operands, [intermediates[i]], None)
            calls += [step_calls] if callable(step_calls) else step_calls
    return calls


def _dtype(node: Node) -> Any:
    (result,) = node.defs
    return getattr(torch(), TYPES[spec_of(result).dtype])


def _takes_strides(node: Node, inputs: Collection[int]) -> bool:
    return all(
        STEP_KERNELS[step.command.name].strided(each, inputs)
        for step, each in zip(chain_steps(node.attrs), _step_nodes(node), strict=True)
    )


KERNELS: Mapping[str, TorchKernel] = {
    "chain": TorchKernel(_chain, scratch=_scratch, supports=_supports, strided=_takes_strides)
}
