"""A tensor-parallel training of two ranks, compiled; as a program the second of them, which prints its losses.

python -m tests.integrations.torch.tensor_parallel FILE_WHERE_THE_RANKS_MEET
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 3
RANKS = 2
PATIENCE = timedelta(seconds=300)
"""What a rank waits for another before it fails: a starved machine is no failure."""


def network() -> nn.Module:
    """The same weights in each process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).double()


def losses(run: Any, parameters: Iterator[Any]) -> list[float]:
    """Of some steps."""
    optimizer, found = torch.optim.SGD(parameters, 0.1, momentum=0.9), []
    x = torch.linspace(-1, 1, 48, dtype=torch.float64).view(6, 8)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (run(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def trained(rank: int, meeting: str) -> list[float]:
    """The losses that a rank sees; the file `meeting` is the ranks' own, and no port can be taken by others."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=PATIENCE
    )
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
        module = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return losses(torch.compile(module, backend="sublet"), module.parameters())
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    print(json.dumps(trained(1, sys.argv[1])))
