"""Memory of one training step, or of one inference, counted alike for eager, inductor and Sublet; seconds of the first.

    LD_PRELOAD=COUNTER python -m benchmarks.torch.peak NETWORK eager|inductor|sublet step|inference|whole

A preloaded counter records every block of 16 KiB or more that the process allocates once the module, the inputs and the
labels exist. Blocks allocated by the Python interpreter itself count for no side: dictionaries, code and strings of
Dynamo and of plans are no tensors. Tensors, arenas (allocated by NumPy), and buffers of libraries such as MKL count.
Blocks of gradients and of the optimizer's state are left out, each for all its life. A gradient counts neither as the
backward pass made it, nor as the copy with the parameter's strides that PyTorch keeps in its place. All else, arenas
and caches held from call to call among it, has a peak in the third call. Prints JSON.
A `whole` step is one of `sublet.torch.train_step`, whose gradients lie in its arena: there gradients count for all.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import sublet
from benchmarks.torch.blocks import Blocks, peak
from benchmarks.torch.network import Judged
from benchmarks.torch.networks import NETWORKS

WARM = 2


def addresses(optimizer: torch.optim.Optimizer, gradients: bool) -> list[int]:
    """Where the optimizer's state lies, and the gradients if they are asked for."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    found = [each.grad for each in parameters if gradients and each.grad is not None]
    found += [each for state in optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    return [each.untyped_storage().data_ptr() for each in found]


def compile_options(side: str) -> dict[str, Any]:
    """The arguments of `torch.compile` for a side: a backend, or "sublet+inductor" for Sublet's division of Inductor's
    kernels, with a budget in bytes as in "sublet+inductor:1000000"."""
    backend, _, kernels = side.partition("+")
    if not kernels:
        return {"backend": backend}
    name, _, budget = kernels.partition(":")
    return {"backend": backend, "options": {"kernels": name, **({"budget": int(budget)} if budget else {})}}


def called(
    name: str, side: str, kind: str, made: Callable[[int], Any] | None = None
) -> tuple[Callable[[], Any], Callable[[], list[int]], Callable[[], Any]]:
    """One call; where what does not count lies after it; and what has to be done between calls.

    Unless gradients count, `made` is called with the address of each gradient, as the backward pass made it.
    """
    torch.manual_seed(0)
    network = NETWORKS[name]
    module, inputs, labels = network.make(), network.inputs(), network.labels()
    judged: Any = module.eval() if kind == "inference" else Judged(module.train(), network.loss)
    run = judged if side == "eager" else torch.compile(judged, dynamic=False, **compile_options(side))
    if kind == "inference":

        def infer() -> Any:
            with torch.no_grad():
                run(*inputs)

        return infer, lambda: [], lambda: None
    optimizer = torch.optim.SGD(judged.parameters(), 1e-3, momentum=0.9)

    def step() -> Any:
        run(labels, *inputs).backward()
        optimizer.step()

    if kind == "whole" and side == "sublet":
        whole = sublet.torch.train_step(judged, lambda loss: loss, optimizer)
        return lambda: whole((labels, *inputs)), lambda: addresses(optimizer, False), lambda: None
    trained = [each for each in judged.parameters() if each.requires_grad]
    for each in trained if made is not None and kind == "step" else ():
        each.register_hook(lambda gradient: made(gradient.untyped_storage().data_ptr()))
    return step, lambda: addresses(optimizer, kind == "step"), lambda: optimizer.zero_grad(set_to_none=True)


def measured(name: str, side: str, kind: str) -> dict[str, Any]:
    """Peak of one side, and the seconds of its first call."""
    blocks = Blocks()
    left_out: list[tuple[int, int]] = []
    call, outside, between = called(name, side, kind, lambda address: left_out.append((len(blocks), address)))
    gc.collect()
    blocks.record(True)
    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    between()
    call()
    between()
    gc.collect()
    mark = len(blocks)
    call()
    left_out += [(len(blocks), address) for address in outside()]
    blocks.record(False)
    held, most = peak(blocks.events(), mark, left_out)
    return {"name": name, "side": side, "kind": kind, "peak": most, "held": held, "first": first}


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(measured(*sys.argv[1:4])))


if __name__ == "__main__":
    main()
