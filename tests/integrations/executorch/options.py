"""Run by the test of the same folder in a Python that has executorch: what its pass lets one ask for."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec
from executorch.runtime import Runtime
from torch import Tensor, nn

import sublet
from sublet.base.errors import PlanError


class Counting(nn.Module):
    """A state that every run changes, in a branch and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x, c: x + c, lambda x, c: x - c, (x, self.count))
        self.count.add_(1)
        return y * 2


def network(x: Tensor) -> Tensor:
    a = torch.cond(x.sum() > 0, lambda x: x * 2 + 1, lambda x: x - 1, (x,))
    b = torch.relu(a + x)
    return b.view(-1) + a.view(-1)


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return network(x)


class InMemories(MemoryPlanningPass):
    """Every other tensor goes to memory 2."""

    def run(self, module: Any, signature: Any = None) -> Any:
        specs = [node.meta.get("spec") for node in module.graph.nodes if node.op == "call_function"]
        for spec in [each for each in specs if isinstance(each, TensorSpec) and not hasattr(each, "_base")][::2]:
            spec.mem_id = 2
        return super().run(module, signature)


def lowered(model: nn.Module, x: Tensor, planning: Any) -> Any:
    exported = torch.export.export(model, (x,))
    return to_edge(exported).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


def check(model: nn.Module, x: Tensor, planning: Any, runs: int = 1) -> list[int]:
    """Run it and compare; gives back the sizes of its memories."""
    program = lowered(model, x, planning)
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    for _ in range(runs):
        (out,) = method.execute((x,))
        assert torch.equal(out, model(x)), (out, model(x))
    return list(program.executorch_program.execution_plan[0].non_const_buffer_sizes)


def in_memory_two() -> Any:
    suite = MemoryPlanningAlgorithmSuite([sublet.executorch.algorithm()])
    return InMemories(memory_planning_algo=suite)


def storage_bases() -> None:
    """A tensor that lies in another is placed there; one that cannot is declined."""

    class Inside(MemoryPlanningPass):
        def __init__(self, offset: int) -> None:
            super().__init__(MemoryPlanningAlgorithmSuite([sublet.executorch.algorithm()]))
            self.offset = offset

        def run(self, module: Any, signature: Any = None) -> Any:
            made = [node for node in module.graph.nodes if node.name.startswith("aten_relu")]
            made[0].meta["_share_alloc_with_arg_idx"] = 0
            made[0].meta["_shared_alloc_offset"] = self.offset
            return super().run(module, signature)

    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x * 2) + 1

    x = torch.arange(-8.0, 8.0)
    check(Chain(), x, Inside(0))
    nodes = lowered(Chain(), x, Inside(0)).exported_program().graph.nodes
    (relu,) = (node.meta["spec"] for node in nodes if node.name.startswith("aten_relu"))
    assert relu.storage_base is not None
    assert (relu.mem_id, relu.mem_offset) == (relu.storage_base.mem_id, relu.storage_base.mem_offset)
    with pytest.raises(PlanError, match="storage base"):
        lowered(Chain(), x, Inside(16))


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    for x in (torch.ones(4, 4), -torch.ones(4, 4)):
        for model in (Plain(), Counting()):
            runs = 3 if isinstance(model, Counting) else 1
            check(model, x, sublet.executorch.planning_pass(), runs)
        for inputs, outputs in ((False, True), (True, False), (False, False)):
            check(Plain(), x, sublet.executorch.planning_pass(alloc_graph_input=inputs, alloc_graph_output=outputs))
        sizes = check(Plain(), x, in_memory_two())
        assert len(sizes) == 3, sizes
        assert all(sizes[1:]), sizes
    storage_bases()
    beside = MemoryPlanningAlgorithmSuite([sublet.executorch.algorithm(), greedy])
    assert lowered(Plain(), torch.ones(4, 4), MemoryPlanningPass(beside)) is not None
    sys.stdout.write("honoured\n")


if __name__ == "__main__":
    main()
