"""Two processes train a network under DistributedDataParallel, eagerly and by `torch.compile(backend="sublet")`.

    python -m benchmarks.torch.distributed [--steps 20]

Tells the largest difference of losses, and what the other process sees when one is killed. In f64: in f32 weights that
differ by 1e-7 give losses that differ by 1e-3 after 20 steps, eagerly too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import sublet

RANKS = 2
DYING = 3
"""The step in which a rank is killed."""
PATIENCE = 240
F = nn.functional


class Residual(nn.Module):
    """Two convolutions, each normalised, beside a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outer) for _ in range(3))
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.norms[2](self.short(x)))


def resnet() -> nn.Module:
    """As ResNet-18, narrower."""
    widths = (16, 16, 32, 64, 128)
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class Layer(nn.Module):
    """Causal attention and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, width = x.shape
        parts = self.attend(self.norms[0](x)).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Words(nn.Module):
    """As GPT-2, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(500, 128), nn.Sequential(*(Layer(128, 4) for _ in range(4)))
        self.norm, self.last = nn.LayerNorm(128), nn.Linear(128, 500, bias=False)

    def forward(self, tokens: Any) -> Any:
        return self.last(self.norm(self.layers(self.words(tokens)))).flatten(0, 1)


def batch(name: str, generator: torch.Generator) -> tuple[Any, Any]:
    if name == "resnet":
        return torch.randn(4, 3, 64, 64, generator=generator), torch.randint(0, 10, (4,), generator=generator)
    tokens = torch.randint(0, 500, (4, 33), generator=generator)
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


def work(name: str, side: str, steps: int, dying: int) -> None:
    """One rank: prints its losses as JSON, or the error that a killed rank leaves it with."""
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    module = resnet() if name == "resnet" else Words()
    parallel: Any = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=1)
    run = torch.compile(parallel, backend="sublet") if side == "sublet" else parallel
    optimizer = torch.optim.SGD(parallel.parameters(), 0.005, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(rank), []
    for step in range(steps):
        if step == dying and rank == RANKS - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x, labels = batch(name, generator)
        optimizer.zero_grad()
        try:
            loss = F.cross_entropy(run(x), labels)
            loss.backward()
        except RuntimeError as error:
            print(json.dumps({"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}), flush=True)
            os._exit(3)
        optimizer.step()
        losses.append(float(loss))
    plans = [each.plan is not None for each in sublet.torch.report()]
    print(json.dumps({"losses": losses, "planned": sum(plans), "left": len(plans) - sum(plans)}), flush=True)
    os._exit(0)


def ranks(name: str, side: str, steps: int, dying: int = -1) -> Sequence[dict[str, Any]]:
    """What each rank has printed; nothing for one that was killed."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    base = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    command = [sys.executable, "-m", "benchmarks.torch.distributed", "--work", f"{name},{side},{steps},{dying}"]
    workers = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    found_ = []
    for worker in workers:
        out, _ = worker.communicate(timeout=PATIENCE)
        lines = out.strip().splitlines()
        found_.append(json.loads(lines[-1]) if lines else {})
    return found_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--work")
    asked = parser.parse_args()
    if asked.work:
        name, side, steps, dying = asked.work.split(",")
        work(name, side, int(steps), int(dying))
    for name in ("resnet", "words"):
        eager, ours = (ranks(name, side, asked.steps) for side in ("eager", "sublet"))
        pairs = [
            (a, b) for one, other in zip(eager, ours, strict=True)
            for a, b in zip(one["losses"], other["losses"], strict=True)
        ]  # fmt: skip
        worst = max(abs(a - b) for a, b in pairs)
        words = ", ".join(f"{abs(a - b):.0e}" for a, b in pairs[: asked.steps])
        print(f"{name}: {len(pairs)} losses, off by {worst:.1e} at most ({words}); "
              f"graphs planned, left to eager by rank: "
              f"{[(each['planned'], each['left']) for each in ours]}", flush=True)  # fmt: skip
        for side in ("eager", "sublet"):
            begin = time.perf_counter()
            first, _ = ranks(name, side, asked.steps, dying=DYING)
            print(f"    a rank killed, {side}: {first.get('error', 'no error')} ({time.perf_counter() - begin:.0f} s)",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
