"""The context of an export: data beside the plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.ir.graph import Graph
from sublet.plan.records import MemoryPlan

# C identifiers for the names of tensors.

MOST_LETTERS = 40
"""Characters of a tensor's name in an identifier, number included. C99 distinguishes identifiers by 63 characters (31
for external linkage): a prefix of 12 and a suffix of 10 ("_OFFSET_12") keep all identifiers of a plan distinct."""


def identifier(name: str) -> str:
    """Return a name in small letters, digits and single underscores; the first character is always a letter.

    The function prefixes "x" where the name begins otherwise.
    """
    plain = re.sub(r"_+", "_", re.sub(r"[^0-9a-z]", "_", name.lower())).strip("_")[:MOST_LETTERS].rstrip("_")
    return plain if plain[:1].isalpha() else f"x{plain}"


def identifiers(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Return a unique identifier for each name, avoiding the reserved identifiers; equal identifiers get numbers."""
    chosen_names: dict[str, str] = {}
    taken = set(reserved)
    for name in dict.fromkeys(names):
        base = chosen = identifier(name)
        count = 1
        while chosen in taken:
            count += 1
            number = f"_{count}"
            chosen = base[: MOST_LETTERS - len(number)].rstrip("_") + number
        taken.add(chosen)
        chosen_names[name] = chosen
    return chosen_names


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
