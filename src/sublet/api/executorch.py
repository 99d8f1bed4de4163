"""`sublet.executorch`: the smallest memory for ExecuTorch's programs, with control flow planned right.

config = ExecutorchBackendConfig(memory_planning_pass=sublet.executorch.planning_pass())
program = to_edge(torch.export.export(model, inputs)).to_executorch(config)
"""

from __future__ import annotations

from typing import Any

from sublet.frontends.executorch.algorithm import Algorithm, Memory, Planned
from sublet.frontends.executorch.modules import exir
from sublet.packing.auto import AUTO

__all__ = ["Algorithm", "Memory", "Planned", "algorithm", "planning_pass"]


def algorithm(strategy: str = AUTO, *, effort: int | None = None, timeout: float | None = None) -> Algorithm:
    """A memory planning algorithm for ExecuTorch's `MemoryPlanningAlgorithmSuite`, which is to be given no other.

    `strategy`, `effort` (steps of the search) and `timeout` (seconds) are those of `sublet.pack`. Its `reports` tell
    bytes, lower bound and gap of each method that it has planned.
    """
    return Algorithm(strategy, effort, timeout)


def planning_pass(
    strategy: str = AUTO, *, effort: int | None = None, timeout: float | None = None, **options: Any
) -> Any:
    """ExecuTorch's MemoryPlanningPass with Sublet's algorithm, which is its `memory_planning_algo.algo_list[0]`.

    `options` are those of MemoryPlanningPass: alloc_graph_input, alloc_graph_output, alloc_mutable_buffers, ...
    Raises MissingExtraError where ExecuTorch is not installed.
    """
    suite = exir("memory_planning").MemoryPlanningAlgorithmSuite([algorithm(strategy, effort=effort, timeout=timeout)])
    # ExecuTorch's own check, made when its log is at DEBUG, counts the bytes that a branch reads as needed to its end.
    options = {"allow_lifetime_and_storage_overlap": True, **options}
    return exir("passes.memory_planning_pass").MemoryPlanningPass(memory_planning_algo=suite, **options)
