"""ExecuTorch's plans beside Sublet's, executed by its runtime: `make bench-executorch`.

    python -m benchmarks.executorch.planned [--random 40] [--first 0] [--json]  (needs executorch==1.5.1)

`greedy` is ExecuTorch's default, `its best` the least of its algorithms; both are bytes of planned memory. `equal` says
that the runtime, with Sublet's plan, computes what PyTorch does (up to rounding of floats) and, where control flow does
not make ExecuTorch's own plans wrong, the bits that it computes with no memory shared. `greedy is` says the same of its
default plan, and `judged` what `sublet check` says of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch._dynamo.exc import TorchRuntimeError

import sublet
from benchmarks.executorch.networks import close, listed, networks
from benchmarks.executorch.random_graphs import random_network
from sublet.integrations.executorch.plan_reader import judge_pte

THEIRS = {"greedy": greedy, "no overlap": partial(greedy, allow_overlapping_allocations=False), "naive": naive}


@dataclass(frozen=True)
class Row:
    """One network: bytes, and what the runtime computed."""

    name: str
    greedy: int
    best: int
    ours: int
    bound: int
    equal: bool
    greedy_equal: bool
    greedy_judged: str
    ours_judged: str
    widest: float


def row(name: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> Row:
    """Plan a network by each algorithm, run it with the default plan and with Sublet's."""
    model.eval()
    exported = torch.export.export(model, inputs)
    sizes, programs = {}, {}
    for which, algorithm in THEIRS.items():
        programs[which] = lowered(exported, MemoryPlanningPass(MemoryPlanningAlgorithmSuite([algorithm])))
        sizes[which] = planned_nbytes(programs[which])
    planning = sublet.executorch.planning_pass()
    ours = lowered(exported, planning)
    (report,) = planning.memory_planning_algo.algo_list[0].reports
    assert report.nbytes == planned_nbytes(ours)
    eager = listed(model(*inputs))
    given, default, apart = (_run(program, inputs) for program in (ours, programs["greedy"], programs["naive"]))
    judged = [_judged(program) for program in (programs["greedy"], ours)]
    right = judged[0] == "right"
    return Row(
        name,
        sizes["greedy"],
        min(sizes.values()),
        report.nbytes,
        report.lower_bound_bytes,
        close(given, eager) and (not right or all(map(torch.equal, given, apart))),
        close(default, eager),
        *judged,
        max((float((a - b).abs().max()) for a, b in zip(default, eager, strict=True)), default=0.0),
    )


def lowered(exported: Any, planning: Any) -> Any:
    return to_edge(exported).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


def planned_nbytes(program: Any) -> int:
    return sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes)


def _run(program: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    return [out.clone() for out in method.execute(inputs)]


def _judged(program: Any) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "judged.pte"
        path.write_bytes(program.buffer)
        return str(judge_pte(path).outcome)


def rows(several: int, first: int = 0, only: str = "") -> Iterator[Row]:
    """All networks, then random ones."""
    for name, (model, inputs) in networks().items():
        if only in name:
            yield row(name, model, inputs)
    for seed in range(first, first + several):
        try:
            yield row(f"random {seed}", *random_network(seed))
        except TorchRuntimeError as error:  # of torch.export, which declines some branches in branches
            sys.stderr.write(f"random {seed}: PyTorch does not export it: {str(error).splitlines()[0]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=0, help="random networks with branches, beside the others")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--only", default="", help="networks with this in their name")
    parser.add_argument("--json", action="store_true", help="one object a line")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    if not asked.json:
        sys.stdout.write(
            f"{'model':20}{'greedy':>12}{'its best':>12}{'ours':>12}{'bound':>12}  equal  greedy is  judged\n"
        )
    for each in rows(asked.random, asked.first, asked.only):
        if asked.json:
            sys.stdout.write(f"{json.dumps(asdict(each))}\n")
        else:
            sizes = f"{each.greedy:>12,}{each.best:>12,}{each.ours:>12,}{each.bound:>12,}"
            default = "equal" if each.greedy_equal else f"off by {each.widest:.3g}"
            equal = "yes" if each.equal else "NO"
            sys.stdout.write(f"{each.name:20}{sizes}  {equal:5}  {default:9}  {each.greedy_judged}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
