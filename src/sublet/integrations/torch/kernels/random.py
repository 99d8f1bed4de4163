"""Random numbers, drawn by NumPy in chunks directly into the planned bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from sublet.base.tensor import DType
from sublet.integrations.torch.kernels.kernel import Calls, Make, Operands, Tensor, TorchKernel, scratch_tensor, torch
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.random import draw_type, dropout_scale, generator
from sublet.ops.nn.rules import result
from sublet.runtime.kernel import Array

CHUNK = 1 << 14
"""Elements drawn at a time; the following functions then find the elements in the cache."""


def _chunk_elements(node: Node) -> int:
    return min(CHUNK, spec_of(result(node)).size)


def _chunk_places(target: Tensor, scratch: Tensor, size: int) -> list[tuple[Array, Tensor]]:
    """Return for each chunk the array to draw into, and the tensor to copy to; None if drawn in place."""
    if scratch is None:
        return [(piece.numpy(), None) for piece in target.split(CHUNK)]
    buffer = scratch_tensor(scratch, torch().float32, (size,))
    return [(buffer[: piece.numel()].numpy(), piece) for piece in target.split(size)]


Draw = Callable[[np.random.Generator, Array], object]


def _drawing_kernel(draw: Draw, scale: Callable[[Node], float], shift: Callable[[Node], float]) -> Make:
    def make(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
        key, stream = inputs[0].numpy(), pick(node.attrs, "stream")
        kind = draw_type(spec_of(result(node)).dtype)
        factor, offset = kind(scale(node)), kind(shift(node))
        places = [
            (place, None if target is None else partial(target.copy_, torch().from_numpy(place)))
            for place, target in _chunk_places(outputs[0].view(-1), scratch, _chunk_elements(node))
        ]

        def run() -> None:
            source = generator(key, stream)
            for place, move in places:
                draw(source, place)
                np.multiply(place, factor, out=place)
                np.add(place, offset, out=place)
                if move is not None:
                    move()

        return run

    return make


def _uniform(source: np.random.Generator, place: Array) -> None:
    """Draw uniform numbers into `place`; draw elsewhere and copy if the address is misaligned for NumPy."""
    if place.flags.aligned:
        source.random(dtype=place.dtype, out=place)
    else:
        place[...] = source.random(place.shape, place.dtype)


def _interval_width(node: Node) -> float:
    return float(pick(node.attrs, "high") - pick(node.attrs, "low"))


def _normal(source: np.random.Generator, place: Array) -> None:
    if place.flags.aligned:
        source.standard_normal(dtype=place.dtype, out=place)
    else:
        place[...] = source.standard_normal(place.shape, place.dtype)


def _draw_scratch(node: Node) -> int:
    """Return the scratch bytes: a chunk in f32, for types not drawn by NumPy."""
    return 0 if spec_of(result(node)).dtype in (DType.F32, DType.F64) else 4 * _chunk_elements(node)


def _dropout(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    t, size = torch(), _chunk_elements(node)
    key, stream = inputs[1].numpy(), pick(node.attrs, "stream")
    rate, scale = pick(node.attrs, "rate"), dropout_scale(pick(node.attrs, "rate"))
    chances, dropped = scratch_tensor(scratch, t.float32, (size,)), scratch_tensor(scratch, t.bool, (size,), 4 * size)
    pieces = [
        (chances[: x.numel()].numpy(), chances[: x.numel()], dropped[: x.numel()], x, y)
        for x, y in zip(inputs[0].view(-1).split(size), outputs[0].view(-1).split(size), strict=True)
    ]

    def run() -> None:
        source = generator(key, stream)
        for drawn_here, chance, mask, x, y in pieces:
            _uniform(source, drawn_here)
            t.lt(chance, rate, out=mask)
            t.mul(x, scale, out=y)
            y.masked_fill_(mask, 0)

    return run


_DROPOUT = TorchKernel(_dropout, scratch=lambda node: 5 * _chunk_elements(node))

KERNELS: Mapping[str, TorchKernel] = {
    "random_uniform": TorchKernel(
        _drawing_kernel(_uniform, _interval_width, lambda node: pick(node.attrs, "low")), scratch=_draw_scratch
    ),
    "random_normal": TorchKernel(
        _drawing_kernel(_normal, lambda node: pick(node.attrs, "std"), lambda node: pick(node.attrs, "mean")),
        scratch=_draw_scratch,
    ),
    "dropout": _DROPOUT,
    "dropout_gradient": _DROPOUT,
}
