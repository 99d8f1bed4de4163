"""What an exporter is told beside a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.ir.graph import Graph
from sublet.plan.export.names import identifier
from sublet.plan.records import MemoryPlan


@dataclass(frozen=True)
class Told:
    """What a plan does not say of itself.

    sections   the linker sections of its memories, by name
    model      the file of its model
    graph      the graph that is planned: which tensors are inputs and outputs, and what pointers point at
    name       what files and identifiers begin with, where that is not the graph's name: models of one device share it
    """

    sections: Mapping[str, str] = field(default_factory=dict)
    model: Path | None = None
    graph: Graph | None = None
    name: str = ""

    def named(self, plan: MemoryPlan) -> str:
        """What files and identifiers of the plan begin with."""
        return identifier(self.name or plan.graph)

    def roles(self, value: str) -> str:
        """What a tensor is to the caller: "input", "output", both, or "" for neither or unknown."""
        ends = {"input": self.graph.inputs, "output": self.graph.outputs} if self.graph else {}
        return ", ".join(role for role, values in ends.items() if any(end.name == value for end in values))
