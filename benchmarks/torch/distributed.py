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
from typing import Any

import torch
from torch import nn

import sublet
from benchmarks.torch.networks import NETWORKS

RANKS = 2
DYING = 3
"""The step in which a rank is killed."""
PATIENCE = 1200
BUCKET = 8
"""Megabytes of gradients that are sent together: several times a step for both networks."""
F = nn.functional


def gpt2() -> nn.Module:
    """GPT-2 small, with logits that are a matrix."""
    return nn.Sequential(NETWORKS["GPT-2"].make(), nn.Flatten(0, 1))


NETS = {"ResNet-18": NETWORKS["ResNet-18"].make, "GPT-2": gpt2}


def batch(name: str, generator: torch.Generator) -> tuple[Any, Any]:
    if name == "ResNet-18":
        return torch.randn(2, 3, 224, 224, generator=generator), torch.randint(0, 1000, (2,), generator=generator)
    tokens = torch.randint(0, 50257, (1, 65), generator=generator)
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)


def work(name: str, side: str, steps: int, dying: int) -> None:
    """One rank: prints its losses as JSON, or the error that a killed rank leaves it with."""
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    module = NETS[name]()
    parallel: Any = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=BUCKET)
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
    for name in NETS:
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
