"""Estimates of a training step beside the step: eager PyTorch's peak by its allocator, arenas by calls of Sublet.

    python -m benchmarks.torch.estimates [NETWORK ...] [--no-plan]

Peaks are bytes above parameters, buffers, arguments and momentum, gradients included; the second ratio is that of the
peaks with all these. The last figures are the peaks of eager PyTorch, of `torch.compile` by Sublet and of `train_step`.
Exit status 1 for a second ratio more than 3 % off, and for an arena with other bytes than the compiled call's or the
whole step's.
"""

from __future__ import annotations

import argparse
import warnings

import torch

import sublet
from benchmarks.torch.network import Judged, cross_entropy
from benchmarks.torch.networks import NETWORKS
from benchmarks.train_table import eager_peak

TOLERANCE = 0.03


def compared(name: str, plan: bool) -> bool:
    """Print the estimates of a network beside the measured bytes; True if all are right."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    module, inputs, labels = network.make().train(), network.inputs(), network.labels()
    loss = network.loss or cross_entropy
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, momentum=0.9)
    found = sublet.torch.estimate(module, loss, optimizer, inputs, (labels,), plan=plan)

    def step() -> None:
        loss(module(*inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    resident = found.eager.resident_bytes
    estimated, measured = found.eager.peak_bytes - resident, eager_peak(step)
    whole = found.eager.peak_bytes / (measured + resident)
    is_right = abs(whole - 1) <= TOLERANCE
    words = f"{name}: eager {estimated:,} of {measured:,}, {estimated / measured:.4f}, with all {whole:.4f}"
    if plan:
        before = len(sublet.torch.report())
        torch._dynamo.reset()
        torch.compile(Judged(module, network.loss), backend="sublet")(labels, *inputs).backward()
        plans = [each.plan for each in sublet.torch.report()[before:]]
        arenas = sum(each.arena_bytes for each in plans if each is not None)
        is_right &= found.sublet is not None and found.sublet.arena_bytes == arenas
        words += f"; arenas {found.sublet.arena_bytes if found.sublet else found.reason} of {arenas}"
        step_estimate = sublet.torch.estimate(module, loss, optimizer, inputs, (labels,), step="train_step")
        run = sublet.torch.train_step(module, loss, optimizer)
        run(inputs, labels)
        assert run.plan is not None
        is_right &= step_estimate.sublet is not None and step_estimate.sublet.arena_bytes == run.plan.arena_bytes
        peaks = [estimated, *(each.sublet.peak_bytes - resident for each in (found, step_estimate) if each.sublet)]
        words += f"; whole step {run.plan.arena_bytes}; peaks in MB {', '.join(f'{each / 1e6:.1f}' for each in peaks)}"
    print(words, "" if is_right else "WRONG", flush=True)
    return is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--no-plan", dest="plan", action="store_false", help="eager PyTorch alone")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    right = [compared(name, asked.plan) for name in asked.networks]
    raise SystemExit(not all(right))


if __name__ == "__main__":
    main()
