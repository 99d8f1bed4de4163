"""A plan as a table for a design review, as Markdown or CSV: one row for each placement of each tensor.

The context of an export, data beside the plan, and identifiers for names of tensors are of every form.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan.records import OPEN, POINTER, Context, MemoryPlan, Placement, RolledLoop

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


# Descriptions of unrolled loops: the body version of each iteration, and the bindings of renamed values.


def iteration_lines(record: RolledLoop) -> Iterator[str]:
    """Yield lines that say which body version each iteration of a loop runs."""
    within = f" in {_format_context(record.within)}" if record.within else ""
    yield f"loop {record.loop}{within}: {record.copies} body versions, @0 to @{record.copies - 1}"
    if not record.jumps:
        first, ring = record.first, record.ring
        later = f"@{first} + (r - {first}) % {ring}" if first else f"@r % {ring}"
        yield f"iteration r runs @r while r < {first}, then {later}" if first else f"iteration r runs {later}"
        return
    for copy in range(record.copies):
        for ways, following in record.possible_successors(copy):
            left = " and ".join(f"{name} took exit {way}" for name, way in ways)
            yield f"after @{copy} comes @{following}{f' if {left}' if left else ''}"


def binding_descriptions(plan: MemoryPlan, graph: Graph | None) -> Mapping[str, str]:
    """Return a description of the binding of every renamed value, by name. Without a graph: all possible bindings."""
    descriptions = {
        place.value: f"bound to {' or '.join(place.stands_for)}" for place in plan.placements if place.how == POINTER
    }
    for node in graph.walk() if graph else ():
        if isinstance(node, While):
            descriptions |= _entry_descriptions(
                plan, node, [value.name for value in node.parameters if value.name in descriptions]
            )
            ends = zip(node.finals, node.parameters, strict=True)
            descriptions |= {
                final.name: f"bound to the last {parameter.name} of {node.name}"
                for final, parameter in ends
                if final is not None and final.name in descriptions
            }
        if isinstance(node, CaseOf):
            for i, output in enumerate(node.outputs):
                if output is not None and output.name in descriptions:
                    arms = (f"{arm.outputs[i].name} of arm {k}" for k, arm in enumerate(node.arms))
                    otherwise = f", {node.fallbacks[i].name} of no arm" if node.fallbacks else ""
                    descriptions[output.name] = f"bound to the result of {node.name}: {', '.join(arms)}{otherwise}"
    return descriptions


def _entry_descriptions(plan: MemoryPlan, loop: While, names: list[str]) -> Mapping[str, str]:
    """Return descriptions of the entry bindings of a loop's parameters, in each body version."""
    bindings: dict[str, list[str]] = {name: [] for name in names}
    for record in plan.rolled:
        if record.loop != loop.name:
            continue
        for copy, heads in enumerate(record.heads):
            at = _format_context((*record.within, (record.loop, copy)))
            for name, number in zip(names, heads, strict=True):
                what = (
                    "a value decided at run time"
                    if number == OPEN
                    else label_with_region(plan, plan.placements[number])
                )
                bindings[name].append(f"in {at} {what}")
    return {name: ", ".join(lines) for name, lines in bindings.items() if lines}


def label_with_region(plan: MemoryPlan, place: Placement) -> str:
    """Return the name of a tensor, with the number of the region for a tensor with several regions."""
    regions = list(dict.fromkeys(other.region for other in plan.placements if other.value == place.value))
    return place.value if len(regions) == 1 else f"{place.value} {regions.index(place.region)}"


def _format_context(context: Context) -> str:
    return "/".join(f"{loop}@{copy}" for loop, copy in context)


COLUMNS = (
    *("tensor", "role", "type", "bytes", "memory", "offset", "end", "alive", "copies"),
    *("why there", "written by"),
)


def markdown_table(plan: MemoryPlan, context: ExportContext) -> str:
    """Return the table in Markdown, below a summary of the plan's memory, and followed by the event of each point."""
    lines = [f"# Memory of {_cell(plan.graph)}", ""]
    lines += [f"- {storage.name}: {storage.nbytes} bytes" for storage in plan.arenas]
    lines += [
        f"- offsets are multiples of {plan.alignment} bytes",
        f"- order and graph: fingerprint {plan.fingerprint}",
    ]
    lines += [f"- **not counted**: {_cell(value.value)} ({_cell(value.reason)})" for value in plan.not_counted]
    lines += [f"- {_cell(line)}" for record in plan.rolled for line in iteration_lines(record)]
    lines += ["", _row(COLUMNS), _row("---" for _ in COLUMNS)]
    lines += [_row(map(_cell, row)) for row in table_rows(plan, context)]
    lines += ["", _row(("point", "what happens")), _row(("---", "---"))]
    lines += [_row((str(at), _cell(str(point)))) for at, point in enumerate(plan.points)]
    return "\n".join(lines) + "\n"


def csv_table(plan: MemoryPlan, context: ExportContext) -> str:
    """Return the table as CSV; uncounted values follow with empty offsets."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(table_rows(plan, context))
    for value in plan.not_counted:
        empty = ("",) * (COLUMNS.index("why there") - 3)
        writer.writerow(
            (value.value, context.roles_of(value.value), value.type, *empty, f"not counted: {value.reason}", "")
        )
    return written.getvalue()


def table_rows(plan: MemoryPlan, context: ExportContext) -> Iterator[tuple[str, ...]]:
    """Yield one row for each placement, ordered by memory and offset; rows of renamed values follow."""
    arenas = [storage.name for storage in plan.arenas]
    for place in sorted(plan.in_arenas, key=lambda place: (arenas.index(place.region.storage), place.region.offset)):
        region = place.region
        where = map(str, (region.nbytes, region.storage, region.offset, region.end))
        yield (place.value, context.roles_of(place.value), place.spec, *where, live_points(place),
               body_versions(place), sharing_reason(place), place.producer)  # fmt: skip
    standing = binding_descriptions(plan, context.graph)
    for place in plan.placements:
        if place.how == POINTER:
            yield (place.value, context.roles_of(place.value), place.spec, "0", "", "", "", live_points(place),
                   body_versions(place), standing[place.value], "")  # fmt: skip


def live_points(place: Placement) -> str:
    """Return the live ranges of a placement, first and last points included."""
    return " ".join(f"{begin}-{end - 1}" for begin, end in place.live)


def body_versions(place: Placement) -> str:
    """Return the body versions of a placement; empty for all versions."""
    return " ".join("/".join(f"{loop}@{copy}" for loop, copy in context) for context in place.copies)


def sharing_reason(place: Placement) -> str:
    """Return the reason for sharing bytes, for people; empty for a value with own bytes."""
    moving = "".join(f", {stride.step:+d} bytes an iteration of {stride.loop}" for stride in place.strides)
    region = place.region
    rows = f", {region.rows} rows every {region.pitch} bytes" if region.rows > 1 else ""
    return (f"{place.how} of {place.shares}" if place.shares else "") + moving + rows


def _cell(text: str) -> str:
    """Return text safe in a table cell: names come from an untrusted file and may hold row ends or mark-up."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
