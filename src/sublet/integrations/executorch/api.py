"""Memory planning for ExecuTorch programs, including control flow (`sublet.executorch`).

config = ExecutorchBackendConfig(memory_planning_pass=sublet.executorch.planning_pass())
program = to_edge(torch.export.export(model, inputs)).to_executorch(config)
"""

from __future__ import annotations

from typing import Any

from sublet.integrations.executorch.algorithm import Algorithm, Memory, Planned
from sublet.integrations.executorch.graph_program import exir_module
from sublet.packing.portfolio import AUTO

__all__ = ["Algorithm", "Memory", "Planned", "algorithm", "planning_pass"]


def algorithm(strategy: str = AUTO, *, effort: int | None = None, timeout: float | None = None) -> Algorithm:
    """Return a memory planning algorithm for ExecuTorch, to be the only one of a `MemoryPlanningAlgorithmSuite`.

    strategy  the packing strategy, see `sublet.pack`
    effort    the maximum number of search steps
    timeout   the maximum seconds of the search

    After planning, `reports` of the result lists the bytes, the lower bound and the gap of each planned method.
    """
    return Algorithm(strategy, effort, timeout)


def planning_pass(
    strategy: str = AUTO, *, effort: int | None = None, timeout: float | None = None, **options: Any
) -> Any:
    """Return ExecuTorch's MemoryPlanningPass with Sublet's algorithm.

    The parameters `strategy`, `effort` and `timeout` are as for `algorithm`. `options` are the parameters of
    MemoryPlanningPass: alloc_graph_input, alloc_graph_output, alloc_mutable_buffers and more. The algorithm, with its
    reports, is `memory_planning_algo.algo_list[0]` of the result.

    Raises MissingExtraError if ExecuTorch is not installed.
    """
    suite = exir_module("memory_planning").MemoryPlanningAlgorithmSuite(
        [algorithm(strategy, effort=effort, timeout=timeout)]
    )
    # ExecuTorch's check at log level DEBUG extends the live range of every value read in a branch to the branch's end.
    options = {"allow_lifetime_and_storage_overlap": True, **options}
    return exir_module("passes.memory_planning_pass").MemoryPlanningPass(memory_planning_algo=suite, **options)
