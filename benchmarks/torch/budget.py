"""Extra time of a training step within a budget: Sublet beside PyTorch's `activation_memory_budget` and checkpoints.

    python -m benchmarks.torch.budget [NETWORK ...] [--percents 70,50,35] [--rounds 5]

For each network: Sublet's plain plan, and its plans within shares of eager's bytes and of the plain plan's. A budget
that the plain plan meets takes no extra time. PyTorch's sides are `aot_eager` with its partitioner at several budgets,
and eager checkpoints around the blocks of the network. Bytes of PyTorch are the most that its allocator hands out in a
step whose gradients lie there before; Sublet's are its arena. For each budget the fastest of PyTorch's settings within
as many bytes stands beside Sublet. Seconds are of the processor, the least of several rounds, all sides in turn in one
process; extra time is over the plain step of the same tool.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isqrt, log
from typing import Any

import torch
from torch._functorch import config
from torch.utils.checkpoint import checkpoint

import sublet
from benchmarks.torch.network import Judged
from benchmarks.torch.networks import NETWORKS
from benchmarks.train_table import eager_peak

NAMES = ("ResNet-18", "ViT-B/16", "U-Net", "GPT-2", "BERT", "Llama-like")
SHARES = (0.8, 0.65, 0.5, 0.35, 0.2, 0.1, 0.0)
"""Budgets of PyTorch's partitioner, in shares of the activations it keeps without one."""

Run = Callable[[], Any]


@dataclass
class Side:
    """One way to compute a step: what it runs, its bytes, and the least seconds of the processor so far."""

    name: str
    run: Run
    nbytes: int
    seconds: float = float("inf")
    note: str = ""


def judged(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a network with its loss in training, and the arguments."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    return Judged(network.make().train(), network.loss), (network.labels(), *network.inputs())


def stepping(module: Any, call: Run) -> Run:
    """Return a step: forward, backward, and gradients dropped."""

    def step() -> float:
        loss = call()
        loss.backward()
        module.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def activations(module: Any, call: Run) -> int:
    """Return the most bytes that PyTorch's allocator hands out in a step with gradients allocated before."""

    def step() -> float:
        module.zero_grad(set_to_none=False)
        loss = call()
        loss.backward()
        return float(loss.detach())

    step()
    nbytes = eager_peak(step)
    module.zero_grad(set_to_none=True)
    return nbytes


def compiled(module: Any, given: tuple[Any, ...], backend: str, **options: Any) -> Run:
    """Return the call of a module compiled at once."""
    call = torch.compile(module, backend=backend, dynamic=False, **options)
    call(*given).backward()
    module.zero_grad(set_to_none=True)
    return lambda: call(*given)


def parameter_bytes(module: Any) -> int:
    """Return the bytes of the trained parameters of a module."""
    return sum(each.nbytes for each in module.parameters() if each.requires_grad)


def blocks_of(module: Any) -> list[Any]:
    """Return the blocks of a network: of the classes with three modules or more, those with the most parameters."""
    classes: dict[type, list[Any]] = {}
    for each in module.modules():
        if not type(each).__module__.startswith("torch.nn"):
            classes.setdefault(type(each), []).append(each)
    repeated = [each for each in classes.values() if len(each) > 2]
    return max(repeated, key=lambda each: sum(map(parameter_bytes, each)), default=[])


def checkpointed(module: Any, given: tuple[Any, ...], every: int) -> Run:
    """Return an eager call with a checkpoint around every n-th block."""
    chosen = blocks_of(module)[:: max(1, every)]

    def call() -> Any:
        before = [(block, block.forward) for block in chosen]
        try:
            for block, forward in before:
                block.forward = lambda *args, forward=forward, **named: checkpoint(
                    forward, *args, use_reentrant=False, **named
                )
            return module(*given)
        finally:
            for block, _ in before:
                del block.forward

    return call


def sublet_side(name: str, budget: int | None) -> Side | str:
    """Return Sublet's step within a budget of the arena, or why there is none."""
    module, given = judged(name)
    before = len(sublet.torch.report())
    begin = time.process_time()
    try:
        call = compiled(module, given, "sublet", options={"budget": budget} if budget is not None else {})
    except Exception as error:
        return refusal(str(error))
    took = time.process_time() - begin
    plans = [each.plan for each in sublet.torch.report()[before:]]
    arena = sum(each.arena_bytes for each in plans if each is not None)
    graphs = "" if len(plans) == 1 else f"{len(plans)} graphs, each within the budget; "
    note = f"{graphs}{sum(len(each.recipe.again) for each in plans if each is not None)} again, first {took:.0f} s"
    return Side("sublet", stepping(module, call), arena, note=note)


def refusal(message: str) -> str:
    """Return the reason of a refused budget, without the words of PyTorch around the error."""
    line = next((each for each in message.splitlines() if "an arena of" in each or "no program" in each), message)
    return line[max(line.find("an arena of"), line.find("no program"), 0) :][:200]


def torch_sides(name: str) -> list[Side]:
    """Return PyTorch's ways of a step with their bytes: plain, budgets, eager, checkpoints."""
    sides = []
    for share in (1.0, *SHARES):
        module, given = judged(name)
        torch._dynamo.reset()
        with config.patch(activation_memory_budget=share):
            call = compiled(module, given, "aot_eager")
        sides.append(Side(f"budget {share:g}", stepping(module, call), activations(module, call)))
    module, given = judged(name)
    ways = {f"checkpoint 1/{n}": checkpointed(module, given, n) for n in (1, 2, max(3, isqrt(len(blocks_of(module)))))}
    for way, call in {"eager": lambda: module(*given), **ways}.items():
        sides.append(Side(way, stepping(module, call), activations(module, call)))
    return sides


def paced(sides: Sequence[Side], rounds: int) -> None:
    """Time all sides in turn."""
    for turn in range(rounds + 1):
        for side in sides:
            begin = time.process_time()
            side.run()
            if turn:
                side.seconds = min(side.seconds, time.process_time() - begin)


@dataclass(frozen=True)
class Row:
    """Extra time of one network within one budget: Sublet's, and the least of PyTorch's within as many bytes."""

    base: str
    percent: int
    extra: float
    beside: float | None


def extra_time(side: Side, theirs: Sequence[Side]) -> float:
    """Return the extra time of one of PyTorch's sides over the plain step, eager or compiled."""
    is_eager = side.name == "eager" or side.name.startswith("checkpoint")
    base = next(each for each in theirs if each.name == ("eager" if is_eager else "budget 1"))
    return side.seconds / base.seconds - 1


def compared(name: str, percents: Sequence[int], rounds: int) -> list[Row]:
    """Print the sides of one network; return a row for each budget that Sublet meets."""
    theirs = torch_sides(name)
    torch._dynamo.reset()
    plain = sublet_side(name, None)
    assert isinstance(plain, Side), plain
    eager = next(each for each in theirs if each.name == "eager")
    limits = {(base, percent): side.nbytes * percent // 100
              for base, side in (("eager", eager), ("plain", plain)) for percent in percents}  # fmt: skip
    found = {at: plain if plain.nbytes <= limit else sublet_side(name, limit) for at, limit in limits.items()}
    timed = {id(side): side for side in found.values() if isinstance(side, Side)} | {id(plain): plain}
    paced([*timed.values(), *theirs], rounds)
    print(f"{name}: Sublet's plain arena {plain.nbytes / 1e6:.1f} MB, {plain.seconds:.3f} s ({plain.note}); "
          f"eager {eager.nbytes / 1e6:.1f} MB, {eager.seconds:.3f} s")  # fmt: skip
    for each in theirs:
        print(f"    {each.name}: {each.nbytes / 1e6:.1f} MB, {each.seconds:.3f} s, {extra_time(each, theirs):+.1%}")
    rows = []
    for (base, percent), side in found.items():
        limit = limits[base, percent]
        if not isinstance(side, Side):
            print(f"  {percent} % of {base} ({limit / 1e6:.1f} MB): {side}", flush=True)
            continue
        extra = side.seconds / plain.seconds - 1
        able = [(extra_time(each, theirs), each.name) for each in theirs if each.nbytes <= limit]
        least = min(able, default=None)
        beside = "has none within these bytes" if least is None else f"{least[0]:+.1%} by {least[1]}"
        print(f"  {percent} % of {base} ({limit / 1e6:.1f} MB): {side.nbytes / 1e6:.1f} MB, {side.seconds:.3f} s, "
              f"{extra:+.1%} ({side.note}); PyTorch {beside}", flush=True)  # fmt: skip
        rows.append(Row(base, percent, extra, None if least is None else least[0]))
    return rows


def geometric(extras: Sequence[float]) -> float:
    """Return the geometric mean of extra times."""
    return exp(sum(log(1 + each) for each in extras) / len(extras)) - 1 if extras else float("nan")


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NAMES)
    parser.add_argument("--percents", default="70,50,35")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    percents = [int(each) for each in asked.percents.split(",")]
    rows = [row for name in asked.networks for row in compared(name, percents, asked.rounds)]
    for base in ("eager", "plain"):
        for percent in percents:
            ours = [row for row in rows if (row.base, row.percent) == (base, percent)]
            both = [row for row in ours if row.beside is not None]
            print(
                f"{percent} % of {base}: Sublet {geometric([row.extra for row in ours]):+.1%} geometric mean of "
                f"{len(ours)}; where PyTorch fits too ({len(both)}): Sublet "
                f"{geometric([row.extra for row in both]):+.1%}, PyTorch "
                f"{geometric([row.beside for row in both if row.beside is not None]):+.1%}"
            )


if __name__ == "__main__":
    main()
