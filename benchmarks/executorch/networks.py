"""Networks, written here, that ExecuTorch is given: five of known shape, two larger, and six with control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan

Network = tuple[nn.Module, tuple[Tensor, ...]]


CLOSE = 1e-4


class MiniCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.three = nn.Conv2d(32, 8, 1)
        self.last = nn.Linear(8 * 16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.one(x))
        x = torch.relu(self.two(x))
        x = torch.relu(self.three(x))
        return self.last(x.flatten(1))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.a = nn.Conv2d(32, 16, 1)
        self.b1, self.b2 = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 24, 3, padding=1)
        self.c1, self.c2 = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 16, 5, padding=2)
        self.last = nn.Conv2d(56, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        a = torch.relu(self.a(x))
        b = torch.relu(self.b2(torch.relu(self.b1(x))))
        c = torch.relu(self.c2(torch.relu(self.c1(x))))
        return self.last(torch.cat([a, b, c], 1)).mean((2, 3))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            each.reshape(n, length, self.heads, width // self.heads).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, length, width))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Densenet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(16 + 8 * k, 8, 3, padding=1) for k in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], 1)
        return x.mean((2, 3))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.d3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.u2, self.u1 = nn.Conv2d(96, 32, 3, padding=1), nn.Conv2d(48, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.d1(x))
        b = torch.relu(self.d2(a))
        c = torch.relu(self.d3(b))
        b = torch.relu(self.u2(torch.cat([nn.functional.interpolate(c, scale_factor=2.0), b], 1)))
        a = torch.relu(self.u1(torch.cat([nn.functional.interpolate(b, scale_factor=2.0), a], 1)))
        return self.last(a)


class Mobilenet(nn.Module):
    """Inverted residuals of MobileNet v2, at a quarter of its size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ModuleList()
        width = 16
        for out, stride, count in ((16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 2)):
            for k in range(count):
                s, wide = stride if k == 0 else 1, 6 * width
                self.blocks.append(
                    nn.Sequential(
                        nn.Conv2d(width, wide, 1), nn.ReLU6(),
                        nn.Conv2d(wide, wide, 3, stride=s, padding=1, groups=wide), nn.ReLU6(),
                        nn.Conv2d(wide, out, 1),
                    )
                )  # fmt: skip
                width = out
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            y = block(x)
            x = x + y if y.shape == x.shape else y
        return self.last(x.mean((2, 3)))


class Written(nn.Module):
    """A network that is one function."""

    def __init__(self, forward: Callable[..., object]) -> None:
        super().__init__()
        self._forward = forward

    def forward(self, *inputs: Tensor) -> object:
        return self._forward(*inputs)


def two_conds(x: Tensor) -> Tensor:
    which = x.sum() > 0
    a = torch.cond(which, lambda x: x * 2 + 1, lambda x: x - 1, (x,))
    b = torch.cond(which, lambda x: x * 3 - 2, lambda x: x * 5, (x,))
    return a + b


def nested(x: Tensor) -> Tensor:
    def inside(x: Tensor) -> Tensor:
        u = x * 2
        v = torch.cond(u.sum() > 3, lambda u: u + 1, lambda u: u - 1, (u,))
        w = torch.cond(u.sum() > 5, lambda u: u * 7, lambda u: u * 9, (u,))
        return v + w

    a = torch.cond(x.sum() > 0, inside, lambda x: x - 1, (x,))
    b = torch.cond(x.sum() > 1, lambda x: x * 3, lambda x: x * 5, (x,))
    return a + b


def view_of_cond(x: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.cond(x.sum() > 0, lambda x: x * 2 + 1, lambda x: x - 1, (x,))
    return a.view(-1) * 2, a + 1


def two_outcomes(x: Tensor) -> Tensor:
    a, b = torch.cond(x.sum() > 0, lambda x: (x * 2, x + 3), lambda x: (x - 1, x * 4), (x,))
    c, d = torch.cond(b.sum() > 0, lambda a, b: (a * b, b + 3), lambda a, b: (b - 1, a * 4), (a, b))
    return a + b * c - d


def two_maps(xs: Tensor, y: Tensor) -> Tensor:
    a = torch_map(lambda x, y: (x + y) * 2 - x, xs, y)
    b = torch_map(lambda x, y: x * y.view(-1) * 3 - x, xs, y * 2)
    return a + b


def scanned(xs: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    return torch_scan(lambda carried, x: (carried + x, carried * x), first, xs)


def networks() -> dict[str, Network]:
    """The networks by name, with inputs; the same ones every time."""
    torch.manual_seed(0)
    image = torch.randn(1, 3, 32, 32)
    large = torch.arange(4096.0).reshape(64, 64) % 7 - 3
    return {
        "mini-CNN": (MiniCnn(), (image,)),
        "inception": (Inception(), (image,)),
        "transformer": (nn.Sequential(Attention(64, 4), Attention(64, 4)), (torch.randn(1, 64, 64),)),
        "densenet": (Densenet(), (image,)),
        "U-Net": (UNet(), (image,)),
        "MobileNet v2-like": (Mobilenet(), (torch.randn(1, 3, 96, 96),)),
        "transformer block": (Attention(128, 8), (torch.randn(1, 96, 128),)),
        "two conds": (Written(two_conds), (large,)),
        "nested conds": (Written(nested), (large,)),
        "a view of a cond": (Written(view_of_cond), (large,)),
        "two outcomes": (Written(two_outcomes), (large,)),
        "two maps": (Written(two_maps), (large[:3].clone(), large[0].clone())),
        "scan": (Written(scanned), (large[:3].clone(), large[0].clone())),
    }


def listed(outputs: Any) -> list[Tensor]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def close(some: Sequence[Tensor], others: Sequence[Tensor], within: float = CLOSE) -> bool:
    return all(torch.allclose(a, b, within, within) for a, b in zip(some, others, strict=True))
