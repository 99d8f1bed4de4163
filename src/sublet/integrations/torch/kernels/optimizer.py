"""Optimiser steps in place. An input is first copied to the result if the plan gives the result separate bytes.

PyTorch's fused optimisers read and write each number once. The remaining optimisers consist of several functions, run
on one block of the weights at a time: a block stays in the cache, and scratch memory is at most two blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from sublet.integrations.torch.kernels.kernel import (
    Calls,
    Make,
    Operands,
    Tensor,
    TorchKernel,
    has_f32_or_f64,
    scratch_tensor,
    torch,
)
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import operand
from sublet.runtime.kernel import Call

BLOCK = 1 << 17
"""Elements of a block: few enough for the cache, many enough to make the overhead of Python calls negligible."""


def _copies_to_results(sources: Sequence[Tensor], results: Sequence[Tensor]) -> list[Call]:
    """Return calls copying each input to the result, except for results at the address of the input."""
    pairs = zip(sources, results, strict=True)
    return [partial(result.copy_, source) for source, result in pairs if source.data_ptr() != result.data_ptr()]


def _sgd(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    attrs = node.attrs
    update = partial(
        torch()._fused_sgd_,
        [outputs[0]],
        [inputs[1]],
        list(outputs[1:]),
        weight_decay=attrs["decay"],
        momentum=attrs["momentum"],
        lr=inputs[2],
        dampening=attrs["dampening"],
        nesterov=bool(attrs["nesterov"]),
        maximize=False,
        is_first_step=False,
    )
    return [*_copies_to_results((inputs[0], *inputs[3:]), outputs), update]


def _adaptive(name: str) -> Make:
    """Return a kernel calling `torch._fused_adam_` or `torch._fused_adamw_`; `step` counts from 1."""

    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
        w, grad, lr, m, v, step = inputs
        attrs = node.attrs
        update = partial(
            getattr(torch(), name),
            [outputs[0]],
            [grad],
            [outputs[1]],
            [outputs[2]],
            [],
            [step],
            lr=lr,
            beta1=attrs["beta1"],
            beta2=attrs["beta2"],
            weight_decay=attrs["decay"],
            eps=attrs["epsilon"],
            amsgrad=False,
            maximize=False,
        )
        return [*_copies_to_results((w, m, v), outputs), update]

    return make


def _blocks(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Yield the same block of elements of every tensor, block by block."""
    flat = [tensor.view(-1) for tensor in tensors]
    for begin in range(0, flat[0].numel(), BLOCK):
        yield [tensor[begin : begin + BLOCK] for tensor in flat]


def _block_count(node: Node) -> int:
    return -(-spec_of(operand(node, 0)).size // BLOCK)


def _block_bytes(node: Node) -> int:
    w = spec_of(operand(node, 0))
    return min(w.size, BLOCK) * (w.dtype.bits // 8)


def _rmsprop_bytes(node: Node) -> int:
    return _block_bytes(node) * (2 if node.attrs["decay"] else 1)


def _rmsprop(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t, lr = torch(), inputs[2]
    alpha, momentum, epsilon, decay = (pick(node.attrs, key) for key in ("alpha", "momentum", "epsilon", "decay"))
    blocks = list(_blocks(outputs[0], inputs[1], *outputs[1:]))
    size = min(outputs[0].numel(), BLOCK)
    roots, *decayed = scratch_tensor(scratch, outputs[0].dtype, (2 if decay else 1, size))

    def run() -> None:
        rate = lr.item()
        for w, grad, v, *kept in blocks:
            root = roots[: len(w)]
            if decay:
                grad = t.add(grad, w, alpha=decay, out=decayed[0][: len(w)])
            v.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
            t.sqrt(v, out=root).add_(epsilon)
            if kept:
                kept[0].mul_(momentum).addcdiv_(grad, root)
                w.add_(kept[0], alpha=-rate)
            else:
                w.addcdiv_(grad, root, value=-rate)

    return [*_copies_to_results((inputs[0], *inputs[3:]), outputs), run]


def _lamb_bytes(node: Node) -> int:
    """Return the scratch bytes: a block of the update, and two norms per block."""
    return _block_bytes(node) + 2 * _block_count(node) * (spec_of(operand(node, 0)).dtype.bits // 8)


def _lamb(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Iterate over the blocks twice: first compute the norms, then recompute the update and apply it."""
    w, grad, lr, m, v, step = inputs
    beta1, beta2, epsilon, decay = (pick(node.attrs, key) for key in ("beta1", "beta2", "epsilon", "decay"))
    blocks = list(_blocks(outputs[0], grad, outputs[1], outputs[2]))
    updates = scratch_tensor(scratch, w.dtype, (min(w.numel(), BLOCK),))
    norms = scratch_tensor(scratch, w.dtype, (2, len(blocks)), updates.nbytes)
    t = torch()
    norm = t.linalg.vector_norm

    def direction(w: Tensor, m: Tensor, v: Tensor, first: float, second: float) -> Tensor:
        update = t.sqrt(v, out=updates[: len(w)])
        update.add_(epsilon * second)
        t.div(m, update, out=update).mul_(second / first)
        return update.add_(w, alpha=decay) if decay else update

    def run() -> None:
        count = step.item()
        first, second = 1 - beta1**count, math.sqrt(1 - beta2**count)
        for i, (w, grad, m, v) in enumerate(blocks):
            m.mul_(beta1).add_(grad, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            update = direction(w, m, v, first, second)
            norm(w, out=norms[0, i])
            norm(update, out=norms[1, i])
        weight_norm, update_norm = (math.hypot(*parts) for parts in norms.tolist())
        trust = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
        for w, _, m, v in blocks:
            if len(blocks) > 1:
                update = direction(w, m, v, first, second)
            w.add_(update, alpha=-lr.item() * trust)

    return [*_copies_to_results((w, m, v), outputs), run]


KERNELS: Mapping[str, TorchKernel] = {
    "sgd": TorchKernel(_sgd),
    "adam": TorchKernel(_adaptive("_fused_adam_")),
    "adamw": TorchKernel(_adaptive("_fused_adamw_")),
    "lamb": TorchKernel(_lamb, _lamb_bytes, has_f32_or_f64),  # norms are stored in the type of the weights
    "rmsprop": TorchKernel(_rmsprop, _rmsprop_bytes),
}
