"""Makers of random uses of commands with a gradient: inputs, attributes, and the same function in PyTorch.

An input is text as in `tests.nn.examples`. A text that ends with "!" keeps its elements away from the corners of the
function, because the function has two derivatives at a corner. `USES` of `gradient_programs.py` lists the makers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from sublet.ops.nn import COMMANDS
from tests.nn.test_convolution_torch import convolution
from tests.nn.test_normalization_torch import _inference
from tests.nn.test_pooling_torch import pooling
from tests.nn.test_recurrent_torch import _gru, _inputs, _lstm

F = torch.nn.functional
Rng = random.Random

EXTENTS = (1, 1, 2, 2, 3, 4, 5, 8)
MOST = 64
"""Elements of a random shape."""


@dataclass(frozen=True)
class Use:
    """Inputs, attributes, and the function of tensors that gives the first outputs."""

    inputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    function: Callable[..., Any] = field(compare=False)


def shape(rng: Rng, low: int = 0, high: int = 4) -> tuple[int, ...]:
    while True:
        found = tuple(rng.choice(EXTENTS) for _ in range(rng.randint(low, high)))
        if prod(found) <= MOST:
            return found


def of(extents: Sequence[int], rest: str = "", dtype: str = "f64") -> str:
    return f"{dtype}[{','.join(map(str, extents))}]{rest}"


def unary(function: Callable[..., Any], rest: str = "", attrs: Mapping[str, Any] | None = None, low: int = 0) -> Any:
    return lambda rng: Use((of(shape(rng, low), rest),), attrs or {}, function)


def broadcast(rng: Rng, whole: Sequence[int]) -> tuple[int, ...]:
    """A shape that is broadcast to another one."""
    found = tuple(1 if rng.random() < 0.3 else n for n in whole)
    return found[rng.randint(0, len(found)) :] if rng.random() < 0.4 else found


def binary(function: Callable[..., Any], rest: str = "", equal: bool = False) -> Any:
    def use(rng: Rng) -> Use:
        whole = shape(rng)
        a, b = whole, whole if equal or rng.random() < 0.6 else broadcast(rng, whole)
        return Use(
            (of(a, rest), of(b, rest)) if rng.random() < 0.7 or equal else (of(b, rest), of(a, rest)), {}, function
        )

    return use


def reduction(function: Callable[..., Any], rest: str = "", **attrs: Any) -> Any:
    """`function(x, axes, keepdims)`."""

    def use(rng: Rng) -> Use:
        extents = shape(rng, 1)
        axes = tuple(sorted(rng.sample(range(len(extents)), rng.randint(1, len(extents)))))
        keepdims = rng.randrange(2)
        return Use(
            (of(extents, rest),),
            {"axes": axes, "keepdims": keepdims, **attrs},
            lambda x: function(x, axes, bool(keepdims)),
        )

    return use


def along(function: Callable[..., Any], **attrs: Any) -> Any:
    """`function(x, axis)`."""

    def use(rng: Rng) -> Use:
        extents = shape(rng, 1)
        axis = rng.randrange(-len(extents), len(extents))
        return Use((of(extents),), {"axis": axis, **attrs}, lambda x: function(x, axis))

    return use


def product_of(x: Any, axes: Sequence[int], keepdims: bool) -> Any:
    for axis in reversed(axes):
        x = x.prod(axis, keepdims)
    return x


def slice_(rng: Rng) -> Use:
    extents = shape(rng, 1)
    begin = [rng.randrange(n) for n in extents]
    end = [rng.randint(b + 1, n) for b, n in zip(begin, extents, strict=True)]
    steps = [rng.choice((1, 1, 2, 3)) for _ in extents]
    cut = tuple(map(slice, begin, end, steps))
    return Use((of(extents),), {"starts": tuple(begin), "ends": tuple(end), "steps": tuple(steps)}, lambda x: x[cut])


def pad(rng: Rng) -> Use:
    extents = shape(rng, 1, 3)
    before, after = ([rng.choice((0, 0, 1, 2)) for _ in extents] for _ in range(2))
    between = [rng.choice((0, 0, 1)) for _ in extents] if rng.random() < 0.5 else [0] * len(extents)
    whole = [b + (n - 1) * (gap + 1) + 1 + a for b, n, gap, a in zip(before, extents, between, after, strict=True)]
    places = tuple(
        slice(b, b + (n - 1) * (gap + 1) + 1, gap + 1) for b, n, gap in zip(before, extents, between, strict=True)
    )

    def function(x: Any) -> Any:
        y = torch.full(whole, 0.5, dtype=x.dtype)
        y[places] = x
        return y

    given = tuple(between) if any(between) or rng.random() < 0.5 else ()
    return Use((of(extents),), {"pads": (*before, *after), "value": 0.5, "between": given}, function)


def concat(rng: Rng) -> Use:
    extents = list(shape(rng, 1, 3))
    axis = rng.randrange(len(extents))
    texts = []
    for _ in range(rng.randint(1, 3)):
        extents[axis] = rng.choice((1, 2, 3))
        texts.append(of(extents))
    return Use(tuple(texts), {"axis": axis}, lambda *xs: torch.cat(xs, axis))


def split(rng: Rng) -> Use:
    extents = list(shape(rng, 1, 3))
    axis, sizes = rng.randrange(len(extents)), [rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3))]
    extents[axis] = sum(sizes)
    return Use((of(extents),), {"axis": axis, "sizes": tuple(sizes)}, lambda x: x.split(sizes, axis))


def transpose(rng: Rng) -> Use:
    extents = shape(rng)
    axes = tuple(rng.sample(range(len(extents)), len(extents)))
    return Use((of(extents),), {"axes": axes}, lambda x: x.permute(axes))


def tile(rng: Rng) -> Use:
    extents = shape(rng, 1, 3)
    repeats = tuple(rng.choice((1, 1, 2)) for _ in extents)
    return Use((of(extents),), {"repeats": repeats}, lambda x: x.repeat(repeats))


def flip(rng: Rng) -> Use:
    extents = shape(rng, 1)
    axes = tuple(rng.sample(range(len(extents)), rng.randint(1, len(extents))))
    return Use((of(extents),), {"axes": axes}, lambda x: x.flip(axes))


def reshape(rng: Rng) -> Use:
    extents = shape(rng)
    other = rng.choice([(prod(extents),), (1, *extents), (*extents, 1), tuple(reversed(extents))])
    return Use((of(extents),), {"shape": other}, lambda x: x.reshape(other))


def spread(back: bool) -> Any:
    def use(rng: Rng) -> Use:
        whole = shape(rng)
        less = broadcast(rng, whole)
        if back:
            return Use((of(whole),), {"shape": less}, lambda x: x.sum_to_size(less))
        return Use((of(less),), {"shape": whole}, lambda x: x.expand(whole))

    return use


def matmul(rng: Rng) -> Use:
    (m, k, n), outer = (rng.choice(EXTENTS) for _ in range(3)), rng.choice(((), (), (2,), (2, 1)))
    ta, tb = rng.randrange(2), rng.randrange(2)
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    shapes = ((*outer, *a), (*(outer if rng.random() < 0.5 else ()), *b))
    attrs = {"transpose_a": ta, "transpose_b": tb}
    return Use((of(shapes[0]), of(shapes[1])), attrs, lambda x, y: (x.mT if ta else x) @ (y.mT if tb else y))


def gemm(rng: Rng) -> Use:
    m, k, n = (rng.choice(EXTENTS) for _ in range(3))
    ta, tb = rng.randrange(2), rng.randrange(2)
    texts = (of((k, m) if ta else (m, k)), of((n, k) if tb else (k, n)))
    third = rng.choice(((), (of((n,)),), (of((m, n)),), (of((m, 1)),)))
    attrs = {"transpose_a": ta, "transpose_b": tb, "alpha": 0.5, "beta": 3.0}

    def function(a: Any, b: Any, c: Any = 0) -> Any:
        return 0.5 * ((a.T if ta else a) @ (b.T if tb else b)) + 3 * c

    return Use((*texts, *third), attrs, function)


def linear(rng: Rng) -> Use:
    outer, k, n = shape(rng, 0, 2), rng.choice(EXTENTS), rng.choice(EXTENTS)
    bias = (of((n,)),) if rng.randrange(2) else ()
    return Use((of((*outer, k)), of((n, k)), *bias), {}, F.linear)


def conv(transposed: bool) -> Any:
    def use(rng: Rng) -> Use:
        axes, groups = rng.choice((1, 2)), rng.choice((1, 1, 2))
        channels, filters = groups * rng.choice((1, 2)), groups * rng.choice((1, 2, 3))
        kernel, last = [rng.choice((1, 2, 3)) for _ in range(axes)], rng.randrange(2)
        spatial = [rng.choice((3, 4, 5)) for _ in range(axes)]
        attrs: dict[str, Any] = {"groups": groups, "strides": tuple(rng.choice((1, 1, 2)) for _ in range(axes))}
        if not transposed:
            attrs["pads"] = tuple(rng.choice((0, 1)) for _ in range(2 * axes))
        batch = rng.choice((1, 2))
        x = (batch, *spatial, channels) if last else (batch, channels, *spatial)
        w = (channels, filters // groups, *kernel) if transposed else (filters, channels // groups, *kernel)
        bias = (of((filters,)),) if rng.randrange(2) else ()
        function = convolution(transposed, attrs, bool(last))
        return Use((of(x), of(w), *bias), {**attrs, "layout": "nhwc" if last else "nchw"}, function)

    return use


def pool(kind: str) -> Any:
    def use(rng: Rng) -> Use:
        last, batch, channels = rng.randrange(2), rng.choice((1, 2)), rng.choice((1, 2, 3))
        spatial, kernel = [rng.choice((3, 4, 5)) for _ in range(2)], tuple(rng.choice((1, 2, 3)) for _ in range(2))
        pads = tuple(rng.choice((0, 1)) if n > 1 else 0 for n in kernel) * 2
        attrs = {"kernel": kernel, "strides": tuple(rng.choice((1, 2)) for _ in range(2)), "pads": pads}
        x = (batch, *spatial, channels) if last else (batch, channels, *spatial)
        return Use((of(x, "!"),), {**attrs, "layout": "nhwc" if last else "nchw"}, pooling(kind, attrs, bool(last)))

    return use


def moved(axes: Callable[[int], Sequence[int]]) -> Any:
    def use(rng: Rng) -> Use:
        extents = shape(rng, 3, 4)
        return Use((of(extents),), {}, lambda x: x.permute(*axes(x.ndim)))

    return use


def indexed(name: str) -> Any:
    def use(rng: Rng) -> Use:
        rows, width, count = rng.choice((1, 2, 5)), rng.choice((1, 3)), rng.choice((1, 2, 4))
        index = f"i64[{count}] 0:{rows}"
        if name == "embedding":
            return Use((of((rows, width)), index), {}, lambda w, i: F.embedding(i, w))
        if name == "index_select":
            return Use((of((rows, width)), index), {"axis": 0}, lambda x, i: x.index_select(0, i))
        if name == "select":
            return Use((of((rows, width)), f"i64[] 0:{rows}"), {}, lambda x, i: x[i])
        wide = f"i64[{count},{width}] 0:{rows}"
        if name == "gather":
            return Use((of((rows, width)), wide), {"axis": 0}, lambda x, i: x.gather(0, i))
        return Use((of((rows, width)), wide, of((count, width))), {"axis": 0}, lambda x, i, u: x.scatter_add(0, i, u))

    return use


def masked(rng: Rng) -> Use:
    extents = shape(rng)
    return Use((of(extents), of(extents, dtype="bool")), {"value": 2.5}, lambda x, m: x.masked_fill(m, 2.5))


def where(rng: Rng) -> Use:
    extents = shape(rng)
    return Use((of(extents, dtype="bool"), of(extents), of(broadcast(rng, extents))), {}, torch.where)


def attention(rng: Rng) -> Use:
    batch, heads, queries, keys, width, values = (rng.choice((1, 2, 3)) for _ in range(6))
    shapes = (batch, heads, queries, width), (batch, heads, keys, width), (batch, heads, keys, values)
    return Use(tuple(map(of, shapes)), {"scale": 0.3}, lambda q, k, v: ((q @ k.mT) * 0.3).softmax(-1) @ v)


def cross_entropy(name: str) -> Any:
    def use(rng: Rng) -> Use:
        rows, width = rng.choice(EXTENTS), rng.choice((2, 3, 5))
        labels = f"i64[{rows}] 0:{width}"
        if name == "categorical":
            return Use((of((rows, width), " 0.1:1"), labels), {}, lambda p, i: F.nll_loss(p.log(), i, reduction="none"))
        return Use((of((rows, width)), labels), {}, lambda x, i: F.cross_entropy(x, i, reduction="none"))

    return use


def norm(name: str) -> Any:
    def use(rng: Rng) -> Use:
        batch, channels, width = rng.choice((2, 3)), 2 * rng.choice((1, 2)), rng.choice((2, 3, 4))
        x, weight = (batch, channels, width), of((width,))
        if name == "layer_norm":
            return Use((of(x), weight, weight), {}, lambda x, w, b: F.layer_norm(x, (width,), w, b))
        if name == "rms_norm":
            return Use((of(x), weight), {}, lambda x, w: F.rms_norm(x, (width,), w, 1e-5))
        return Use((of(x), *[of((channels,))] * 2), {"groups": 2}, lambda x, w, b: F.group_norm(x, 2, w, b))

    return use


def batch_norm(inference: bool) -> Any:
    def use(rng: Rng) -> Use:
        channels, last = rng.choice((1, 2, 3)), rng.randrange(2) and not inference
        x = (2, 3, 2, channels) if last else (2, channels, 3, 2)
        others = (*[of((channels,))] * 2, of((channels,), " -1:1"), of((channels,), " 0.5:2"))
        if inference:
            return Use((of(x), *others), {"epsilon": 1e-3}, _inference)

        def function(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
            # PyTorch's second derivative is wrong where the scale is strided.
            scale, bias = scale.contiguous(), bias.contiguous()
            moved_x = x.movedim(-1, 1) if last else x
            y = F.batch_norm(moved_x, mean.detach().clone(), var.detach().clone(), scale, bias, True, 0.1, 1e-5)
            return y.movedim(1, -1) if last else y

        return Use((of(x), *others), {"axis": -1 if last else 1}, function)

    return use


def recurrent(name: str) -> Any:
    def use(rng: Rng) -> Use:
        gates, states, function = (4, 2, _lstm) if name == "lstm" else (3, 1, _gru)
        sizes = [rng.choice((1, 2, 3)) for _ in range(4)]
        return Use(_inputs(*sizes, gates, states), {}, lambda *given: function(*given)[0])

    return use


def lstm_cell(rng: Rng) -> Use:
    batch, width = rng.choice((1, 2, 3)), rng.choice((1, 2, 3))

    def function(gates: Any, c: Any) -> Any:
        i, f, g, o = gates.chunk(4, 1)
        after = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * after.tanh(), after

    return Use((of((batch, 4 * width)), of((batch, width))), {}, function)


def gru_cell(rng: Rng) -> Use:
    batch, width = rng.choice((1, 2, 3)), rng.choice((1, 2, 3))

    def function(x: Any, inner: Any, h: Any) -> Any:
        (a, b, c), (d, e, f) = x.chunk(3, 1), inner.chunk(3, 1)
        z, n = torch.sigmoid(b + e), torch.tanh(c + torch.sigmoid(a + d) * f)
        return (1 - z) * n + z * h

    return Use((of((batch, 3 * width)), of((batch, 3 * width)), of((batch, width))), {}, function)


def dropout(rng: Rng) -> Use:
    extents, stream = shape(rng), rng.randrange(9)

    def function(x: Any, key: Any) -> Any:
        kept = COMMANDS["dropout"].compute(np.ones(extents), key.numpy(), rate=0.4, stream=stream)
        return x * torch.from_numpy(np.asarray(kept))

    return Use((of(extents), "i64[] 0:100"), {"rate": 0.4, "stream": stream}, function)


def upsample(rng: Rng) -> Use:
    extents, size = (
        (1, rng.choice((1, 2)), rng.choice((1, 2, 3)), rng.choice((2, 3))),
        tuple(rng.sample((1, 2, 4, 6), 2)),
    )
    mode = rng.choice(("nearest", "bilinear"))
    return Use((of(extents),), {"size": size, "mode": mode}, lambda x: F.interpolate(x, size, mode=mode))
