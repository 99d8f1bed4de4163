"""Branches and loops of PyTorch's: planned by Sublet and by ExecuTorch, run eagerly, by inductor and by Sublet.

    python -m benchmarks.torch.control  (needs executorch==1.5.1)

Of each plan its bytes, inputs and results among them, of Sublet's also what no plan goes below and what is copied at
the edges of the control flow; of each run the most bytes it holds at once besides its inputs (results, and all that it
and its compiler keep from call to call, among them), and whether its results are eager's. Exits 1 where they are not.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import sublet
from benchmarks.executorch.networks import Written, close, listed
from benchmarks.torch.__main__ import asked_of
from benchmarks.torch.blocks import Blocks, counter, peak

WIDE = 512
WARM = 2
CLOSE = 1e-5
SIDES = ("eager", "inductor", "sublet")
while_loop = torch._higher_order_ops.while_loop


def two_branches(x: Any, y: Any, z: Any) -> Any:
    x = torch.cond(x.sum() > 0, lambda x, y: x.relu() @ y, lambda x, y: x.cos() + y, (x, y))
    return torch.cond(x.mean() > 1, lambda x, z: x * 3 - z, lambda x, z: x.tanh() @ z, (x, z))


def nested_branches(x: Any, y: Any, z: Any) -> Any:
    def inner(x: Any, y: Any) -> Any:
        return torch.cond(x.max() > 2, lambda x, y: x @ y, lambda x, y: x + y, (x, y))

    x = torch.cond(x.sum() > 0, inner, lambda x, y: x.cos() - y, (x, y))
    return torch.cond(x.mean() > 1, lambda x, z: x * 3 + z, inner, (x, z))


def swap(x: Any, y: Any, z: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        return i + 1, b.clone(), a.clone()

    return while_loop(lambda i, a, b: i < 5, body, (torch.zeros((), dtype=torch.int64), x + z, y - z))[1:]


def shift(x: Any, y: Any, z: Any) -> Any:
    def body(i: Any, a: Any, b: Any, c: Any) -> Any:
        return i + 1, b.clone(), c.clone(), a.tanh() + b

    return while_loop(lambda i, a, b, c: i < 5, body, (torch.zeros((), dtype=torch.int64), x * 2, y + 1, z - 1))[1:]


FUNCTIONS = {"two branches": two_branches, "nested branches": nested_branches, "swap": swap, "shift": shift}


def inputs() -> tuple[Any, ...]:
    return tuple(torch.randn(WIDE, WIDE, generator=torch.Generator().manual_seed(seed)) for seed in range(3))


def run(name: str, side: str) -> dict[str, Any]:
    """The peak of a call, and whether it gives what eager does."""
    given, module = inputs(), Written(FUNCTIONS[name])
    wanted = module(*given)
    called: Any = module if side == "eager" else torch.compile(module, backend=side)
    blocks = Blocks()
    blocks.record(True)
    with torch.no_grad():
        for _ in range(WARM):
            called(*given)
        mark = len(blocks)
        found = called(*given)
        blocks.record(False)
    return {"peak": peak(blocks.events(), mark, ())[1], "equal": close(listed(found), listed(wanted), CLOSE)}


def planned(name: str) -> dict[str, Any]:
    """Sublet's plan, run, and those of ExecuTorch's algorithms."""
    given, module = inputs(), Written(FUNCTIONS[name]).eval()
    network = sublet.compile(sublet.from_torch(module, given))
    results = network(dict(zip((value.name for value in network.graph.inputs), given, strict=True)))
    exported = torch.export.export(module, given)
    return {
        "arena": network.arena_bytes,
        "bound": network.plan.lower_bound_bytes,
        "copied": sum(move.nbytes for move in network.plan.moves),
        "equal": close([torch.as_tensor(each) for each in results.values()], listed(module(*given)), CLOSE),
        "executorch": _executorch(exported),
    }


def _executorch(exported: Any) -> dict[str, Any]:
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    from benchmarks.executorch.planned import THEIRS, lowered, planned_nbytes

    found: dict[str, Any] = {}
    for name, algorithm in THEIRS.items():
        try:
            program = lowered(exported, MemoryPlanningPass(MemoryPlanningAlgorithmSuite([algorithm])))
        except Exception as error:  # what it refuses is told
            return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"}
        found[name] = planned_nbytes(program)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["planned", name]:
            print(json.dumps(planned(name)))
            return
        case [side, name]:
            print(json.dumps(run(name, side)))
            return
    print(f"torch {torch.__version__}; bytes, three inputs of {4 * WIDE * WIDE:,}")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        preload = counter(Path(folder))
        for name in FUNCTIONS:
            found = asked_of("control", "planned", name)
            right &= found.get("equal") is True
            print(f"{name}: planned {found}")
            for side in SIDES:
                found = asked_of("control", side, name, LD_PRELOAD=str(preload))
                right &= found.get("equal") is True or side == "inductor"
                print(f"    {side} {found}", flush=True)
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
