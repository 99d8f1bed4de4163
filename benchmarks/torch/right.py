"""What a network computes by `torch.compile(backend="sublet")`: errors beside eager's, what was planned, what was not.

python -m benchmarks.torch.right NETWORK        # prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections import Counter
from typing import Any

import torch

import sublet
from benchmarks.torch.exactness import compare
from benchmarks.torch.networks import NETWORKS


def judged(name: str) -> dict[str, Any]:
    """The figures of one network."""
    torch.manual_seed(0)
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        inference, step = compare(NETWORKS[name], lambda module: torch.compile(module, backend="sublet"))
    reports = sublet.torch.report()
    copied: Counter[str] = Counter()
    for each in reports:
        for op, nbytes in each.copied:
            copied[op] += nbytes
    return {
        "name": name,
        "inference": inference.worst, "step": step.worst, "where": step.where,
        "right": inference.is_rounding and step.is_rounding,
        "graphs": len(reports),
        "left": [each.reason for each in reports if each.plan is None],
        "arenas": [each.plan.arena_bytes for each in reports if each.plan is not None],
        "gaps": [each.plan.gap for each in reports if each.plan is not None],
        "nodes": [each.nodes for each in reports],
        "copied": copied.most_common(),
        "share": min((each.share for each in reports), default=0.0),
        "warnings": [str(each.message)[:200] for each in told if "sublet" in str(each.message)],
        "breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def main() -> None:
    for name in sys.argv[1:]:
        try:
            found = judged(name)
        except Exception as error:
            found = {
                "name": name,
                "error": f"{type(error).__name__}: {error}"[:2000],
                "trace": traceback.format_exc()[-3000:],
            }
        print(json.dumps(found), flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
