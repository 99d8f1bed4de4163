"""The context of an export: data beside the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.ir.graph import Graph
from sublet.plan.export.names import identifier
from sublet.plan.records import MemoryPlan


@dataclass(frozen=True)
class ExportContext:
    """Data for an exporter beside the plan.

    sections   linker sections by name of the memory
    model      the file of the model
    graph      the planned graph, for the roles of tensors (input, output) and the bindings of renamed values
    name       the prefix of files and identifiers, if different from the graph's name; models of one device share the
               name of a graph
    """

    sections: Mapping[str, str] = field(default_factory=dict)
    model: Path | None = None
    graph: Graph | None = None
    name: str = ""

    def base_name(self, plan: MemoryPlan) -> str:
        """Return the prefix of files and identifiers of the plan."""
        return identifier(self.name or plan.graph)

    def roles_of(self, value: str) -> str:
        """Return the roles of a tensor for the caller: "input", "output", both, or "" for neither or unknown."""
        ends = {"input": self.graph.inputs, "output": self.graph.outputs} if self.graph else {}
        return ", ".join(role for role, values in ends.items() if any(end.name == value for end in values))
