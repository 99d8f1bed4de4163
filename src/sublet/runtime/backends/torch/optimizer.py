"""Optimisers, in place: a result that is not planned over its input is copied there first.

PyTorch's fused optimisers read and write each number once. The others are written as several functions and run on one
block of the weights after the other: a block stays in cache, and scratch memory is two blocks at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand
from sublet.runtime.backends.torch.kernel import Calls, Fast, Make, Operands, Tensor, bytes_as, single, torch
from sublet.runtime.kernel import Call

BLOCK = 1 << 17
"""Elements of a block: few enough for a cache, many enough that Python's calls do not count."""


def _copies(sources: Sequence[Tensor], results: Sequence[Tensor]) -> list[Call]:
    """Calls that copy each input to its result, where that lies elsewhere."""
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
    return [*_copies((inputs[0], *inputs[3:]), outputs), update]


def _adaptive(name: str) -> Make:
    """`torch._fused_adam_` or `torch._fused_adamw_`, which take the step that is being made."""

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
        return [*_copies((w, m, v), outputs), update]

    return make


def _blocks(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """The same elements of each tensor, a block at a time."""
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
    roots, *decayed = bytes_as(scratch, outputs[0].dtype, (2 if decay else 1, size))

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

    return [*_copies((inputs[0], *inputs[3:]), outputs), run]


def _lamb_bytes(node: Node) -> int:
    """A block of the update, and two norms a block."""
    return _block_bytes(node) + 2 * _block_count(node) * (spec_of(operand(node, 0)).dtype.bits // 8)


def _lamb(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Two rounds over the blocks: the first finds the norms, the second computes the update again and makes it."""
    w, grad, lr, m, v, step = inputs
    beta1, beta2, epsilon, decay = (pick(node.attrs, key) for key in ("beta1", "beta2", "epsilon", "decay"))
    blocks = list(_blocks(outputs[0], grad, outputs[1], outputs[2]))
    updates = bytes_as(scratch, w.dtype, (min(w.numel(), BLOCK),))
    norms = bytes_as(scratch, w.dtype, (2, len(blocks)), updates.nbytes)
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
        weights, whole = (math.hypot(*parts) for parts in norms.tolist())
        trust = weights / whole if weights > 0 and whole > 0 else 1.0
        for w, _, m, v in blocks:
            if len(blocks) > 1:
                update = direction(w, m, v, first, second)
            w.add_(update, alpha=-lr.item() * trust)

    return [*_copies((w, m, v), outputs), run]


KERNELS: Mapping[str, Fast] = {
    "sgd": Fast(_sgd),
    "adam": Fast(_adaptive("_fused_adam_")),
    "adamw": Fast(_adaptive("_fused_adamw_")),
    "lamb": Fast(_lamb, _lamb_bytes, single),  # norms are kept in the type of the weights,
    "rmsprop": Fast(_rmsprop, _rmsprop_bytes),
}
