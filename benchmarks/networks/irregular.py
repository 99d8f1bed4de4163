"""Networks with irregular wiring, as their papers describe them: RandWire, NASNet-A, DARTS; cells of concatenations.

Batch normalisation is folded into the convolutions, as inference engines do. Weights are random from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import onnx

from benchmarks.models.builder import Builder

Wiring = list[list[int]]
"""For each node those before it that it reads; none: it reads what comes in."""


def watts_strogatz(nodes: int, rng: random.Random, near: int = 4, probability: float = 0.75) -> Wiring:
    """A ring in which each node knows its neighbours, some of whom are exchanged (Watts and Strogatz, 1998)."""
    edges = {(i, (i + step) % nodes) for i in range(nodes) for step in range(1, near // 2 + 1)}
    for step in range(1, near // 2 + 1):
        for i in range(nodes):
            old = (i, (i + step) % nodes)
            known = {k for edge in edges if i in edge for k in edge}
            free = [k for k in range(nodes) if k not in known]
            if rng.random() < probability and free and old in edges:
                edges.remove(old)
                edges.add((i, rng.choice(free)))
    return _directed(nodes, edges)


def barabasi_albert(nodes: int, rng: random.Random, links: int = 5) -> Wiring:
    """Nodes that come one by one and join the well known (Barabasi and Albert, 1999)."""
    edges: set[tuple[int, int]] = set()
    ends: list[int] = []
    targets = list(range(links))
    for i in range(links, nodes):
        edges.update((target, i) for target in targets)
        ends += [*targets, *[i] * len(targets)]
        chosen: set[int] = set()
        while len(chosen) < links:
            chosen.add(rng.choice(ends))
        targets = sorted(chosen)
    return _directed(nodes, edges)


def erdos_renyi(nodes: int, rng: random.Random, probability: float = 0.2) -> Wiring:
    """Each pair with a probability (Erdos and Renyi, 1959)."""
    edges = {(i, k) for i in range(nodes) for k in range(i + 1, nodes) if rng.random() < probability}
    return _directed(nodes, edges)


def _directed(nodes: int, edges: set[tuple[int, int]]) -> Wiring:
    return [sorted({min(edge) for edge in edges if max(edge) == i}) for i in range(nodes)]


WIRINGS: dict[str, Callable[[int, random.Random], Wiring]] = {
    "WS": watts_strogatz,
    "BA": barabasi_albert,
    "ER": erdos_renyi,
}


def randwire(kind: str, seed: int, nodes: int = 32, channels: int = 78, image: int = 224) -> onnx.ModelProto:
    """RandWire, small regime (Xie et al. 2019): four stages of random graphs of separable convolutions."""
    b, rng = Builder(f"randwire_{kind}_{seed}", seed), random.Random(seed)
    x = b.conv(b.input("image", (1, 3, image, image)), channels // 2, 3, 2)
    for stage in range(4):
        count = nodes // 2 if stage == 0 else nodes
        x = _random_stage(b, x, WIRINGS[kind](count, rng), channels << stage)
    x = b.op("Relu", b.conv(b.op("Relu", x), 1280, 1))
    return b.model(probabilities=b.classifier(x, 1000))


def _random_stage(b: Builder, x: str, wiring: Wiring, channels: int) -> str:
    made: list[str] = []
    for sources in wiring:
        y = x
        if sources:
            y = b.op("Mul", made[sources[0]], b.filled(0.5))
            for source in sources[1:]:
                y = b.op("Add", y, b.op("Mul", made[source], b.filled(0.5)))
        stride = 1 if sources else 2
        y = b.op("Relu", y)
        made.append(b.conv(b.conv(y, b.channels[y], 3, stride, group=b.channels[y]), channels, 1))
    read = {source for sources in wiring for source in sources}
    ends = [made[i] for i in range(len(wiring)) if i not in read]
    total = ends[0]
    for end in ends[1:]:
        total = b.op("Add", total, end)
    return b.op("Mul", total, b.filled(1 / len(ends)))


def _separable(b: Builder, x: str, channels: int, kernel: int, stride: int = 1, times: int = 2) -> str:
    for _ in range(times):
        y = b.op("Relu", x)
        x = b.conv(b.conv(y, b.channels[y], kernel, stride, group=b.channels[y]), channels, 1)
        stride = 1
    return x


def _pool(b: Builder, x: str, kind: str, stride: int = 1) -> str:
    return b.pool("AveragePool" if kind == "avg" else "MaxPool", x, 3, stride, 1)


def _squeezed(b: Builder, x: str, channels: int, halved: bool) -> str:
    """ReLU and a 1x1 convolution; to half the extent by two shifted paths side by side."""
    x = b.op("Relu", x)
    if not halved:
        return b.conv(x, channels, 1)
    first = b.conv(x, channels // 2, 1, 2)
    shifted = b.op(
        "Pad", b.op("Slice", x, b.ints(1, 1), b.ints(1 << 30, 1 << 30), b.ints(2, 3)), b.ints(0, 0, 0, 0, 0, 0, 1, 1)
    )
    b.channels[shifted] = b.channels[x]
    return b.concat([first, b.conv(shifted, channels - channels // 2, 1, 2)])


def nasnet_a(filters: int = 44, repeats: int = 4, image: int = 224) -> onnx.ModelProto:
    """NASNet-A (repeats @ 24 filters), mobile: 4 @ 1056 (Zoph et al. 2018, figure 4 and appendix)."""
    b = Builder("nasnet_a")
    previous = current = b.conv(b.input("image", (1, 3, image, image)), 32, 3, 2)
    scale, extent = {previous: 1}, 1
    cells = [("reduction", filters // 4), ("reduction", filters // 2)]
    for stage in range(3):
        cells += [("reduction", filters << stage)] if stage else []
        cells += [("normal", filters << stage)] * repeats
    for kind, width in cells:
        p = _squeezed(b, previous, width, scale[previous] != extent)
        h = _squeezed(b, current, width, False)
        extent *= 2 if kind == "reduction" else 1
        previous, current = current, (_nasnet_reduction if kind == "reduction" else _nasnet_normal)(b, h, p, width)
        scale[current] = extent
    return b.model(probabilities=b.classifier(b.op("Relu", current), 1000))


def _nasnet_normal(b: Builder, h: str, p: str, width: int) -> str:
    blocks = [
        b.op("Add", _separable(b, h, width, 3), h),
        b.op("Add", _separable(b, p, width, 3), _separable(b, h, width, 5)),
        b.op("Add", _pool(b, h, "avg"), p),
        b.op("Add", _pool(b, p, "avg"), _pool(b, p, "avg")),
        b.op("Add", _separable(b, p, width, 5), _separable(b, p, width, 3)),
    ]
    return b.concat([p, *blocks])


def _nasnet_reduction(b: Builder, h: str, p: str, width: int) -> str:
    first = b.op("Add", _separable(b, h, width, 5, 2), _separable(b, p, width, 7, 2))
    second = b.op("Add", _pool(b, h, "max", 2), _separable(b, p, width, 7, 2))
    third = b.op("Add", _pool(b, h, "avg", 2), _separable(b, p, width, 5, 2))
    fourth = b.op("Add", _pool(b, h, "max", 2), _separable(b, first, width, 3))
    fifth = b.op("Add", _pool(b, first, "avg"), second)
    return b.concat([second, third, fourth, fifth])


DARTS_NORMAL = (("sep3", 0), ("sep3", 1), ("sep3", 0), ("sep3", 1), ("sep3", 1), ("skip", 0), ("skip", 0), ("dil3", 2))
DARTS_REDUCTION = (
    *(("max", 0), ("max", 1), ("skip", 2), ("max", 1), ("max", 0), ("skip", 2), ("skip", 2), ("max", 1)),
)
"""The cells found on CIFAR-10, second order (Liu et al. 2019, figures 4 and 5): (operation, which state it reads)."""


def darts(channels: int = 48, layers: int = 14, image: int = 224) -> onnx.ModelProto:
    """DARTS for ImageNet (Liu et al. 2019)."""
    b = Builder("darts")
    x = b.op("Relu", b.conv(b.input("image", (1, 3, image, image)), channels // 2, 3, 2))
    previous = b.conv(x, channels, 3, 2)
    current = b.conv(b.op("Relu", previous), channels, 3, 2)
    width, halved_before = channels, True
    for layer in range(layers):
        halved = layer in (layers // 3, 2 * layers // 3)
        width *= 2 if halved else 1
        states = [_squeezed(b, previous, width, halved_before), _squeezed(b, current, width, False)]
        steps = DARTS_REDUCTION if halved else DARTS_NORMAL
        for one, other in zip(steps[::2], steps[1::2], strict=True):
            pair = [_darts_step(b, states[at], op, width, 2 if halved and at < 2 else 1) for op, at in (one, other)]
            states.append(b.op("Add", *pair))
        previous, current, halved_before = current, b.concat(states[2:]), halved
    return b.model(probabilities=b.classifier(current, 1000))


def _darts_step(b: Builder, x: str, op: str, width: int, stride: int) -> str:
    if op == "skip":
        return x if stride == 1 else _squeezed(b, x, width, True)
    if op == "max":
        return _pool(b, x, "max", stride)
    if op == "sep3":
        return _separable(b, x, width, 3, stride)
    y = b.op("Relu", x)
    weights = b.random_weight(width, 1, 3, 3)
    y = b.op(
        "Conv", y, weights, group=width, kernel_shape=[3, 3], strides=[stride] * 2, pads=[2] * 4, dilations=[2] * 2
    )
    b.channels[y] = width
    return b.conv(y, width, 1)


def concatenated_cells(
    seed: int, cells: Sequence[tuple[int, int]] = ((12, 32), (16, 64), (12, 128)), image: int = 224
) -> onnx.ModelProto:
    """Cells of convolutions that read concatenations of some before them, of irregular widths, as SwiftNet's are
    (Cheng et al. 2019): (nodes, channels in the middle) by cell."""
    b, rng = Builder(f"concatenated_{seed}", seed), random.Random(seed)
    x = b.conv(b.input("image", (1, 3, image, image)), 24, 3, 2)
    for nodes, channels in cells:
        states = [b.op("Relu", b.conv(x, channels, 3, 2))]
        read: set[int] = set()
        for i in range(nodes):
            chosen = sorted({rng.randrange(max(0, i - 5), i + 1) for _ in range(rng.choice((1, 2, 2, 3)))})
            read.update(chosen)
            y = b.concat([states[k] for k in chosen]) if len(chosen) > 1 else states[chosen[0]]
            width = rng.choice((channels // 2, channels, channels, 2 * channels))
            y = b.op("Relu", b.conv(y, width, 1))
            states.append(b.conv(y, width, 3, group=width) if rng.random() < 0.6 else y)
        x = b.concat([state for k, state in enumerate(states) if k not in read])
    return b.model(probabilities=b.classifier(x, 1000))
