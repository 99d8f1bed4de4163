"""The terminal output of `sublet plan`: text and figures on a plan."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sublet.base.formatting import abbreviated_list, count_with_noun, human, percent, printable
from sublet.base.tensor import DEPENDS_ON_DATA
from sublet.plan import POINTER, UPDATE, Edge, MemoryPlan, Placement, Storage
from sublet.plan.records import OPEN
from sublet.plan.statistics import (
    PeakContributor,
    assumptions,
    bytes_by_edge,
    bytes_outside,
    coverage,
    first_names,
    multiview_values,
    peak_contributors,
    planned_values,
    state_outside,
    update_statistics,
)
from sublet.plan.verdict import EVERY, BudgetOutcome, LiveBuffer, Verdict, buffers_at_peak
from sublet.viz.loop_bands import describe_versions

# The style of tables on a terminal.


class _FoldingTable(Table):
    """A table whose columns fold where the terminal is too narrow: figures are never cut."""

    def add_column(self, *arguments: Any, **options: Any) -> None:
        super().add_column(*arguments, **{"overflow": "fold", **options})


def plain_table() -> Table:
    """Return an empty table without lines, with dim titles."""
    return _FoldingTable(box=None, padding=(0, 2), collapse_padding=True, header_style="dim")


def figures_table() -> Table:
    """Return an empty table without titles: name, figure, remark."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


def cut_middle(text: str, columns: int, dots: str = "…") -> str:
    """Return the text, with `dots` in place of the middle where the text takes more than `columns` of a terminal."""
    if cell_len(text) <= columns:
        return text
    kept = max(0, columns - cell_len(dots))
    end = set_cell_size(text[::-1], kept // 2)[::-1]
    return set_cell_size(f"{set_cell_size(text, kept - kept // 2)}{dots}{end}", columns)


MIN_NAME_COLUMNS = 9
"""Columns of a cut name, at least: four characters at both ends tell most names of a model apart."""


FOLDER = re.compile(r"[^,]*/(?=[^/,]+:\d+$)")
"""The folder of the file in a source such as "up, models/network.py:12"."""

LINE = re.compile(r"\S:\d+$")
"""The end of a source with the line of a file. Without any, sources such as "operator 3" repeat names of nodes."""


class NameCell:
    """A name in a table, cut in the middle where the terminal is too narrow: names often differ only at the ends."""

    def __init__(self, name: str) -> None:
        self.name = printable(name)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        columns = cell_len(self.name)
        return Measurement(min(columns, MIN_NAME_COLUMNS), columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(cut_middle(self.name, options.max_width, "..." if options.ascii_only else "…"))


class NamedSentence:
    """A dim sentence with one name, cut in the middle to half a line of the terminal: converters join many names."""

    def __init__(self, before: str, name: str, after: str) -> None:
        self.before, self.name, self.after = before, printable(name), after

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name = cut_middle(self.name, options.max_width // 2, "..." if options.ascii_only else "…")
        yield Text(f"{self.before}{name}{self.after}", "dim")


# A table of buffers for the terminal: bytes, and tensors in the buffer.

MAX_BUFFERS = 12
"""Maximum of buffers in a table; one line sums up the rest."""
MAX_VALUES = 3
"""Maximum of listed values of one buffer."""

SHARING_WORDS = {
    "view": "view of",
    "part": "part of",
    "inplace": "over",
    "carry": "carried with",
    "slice": "slice of",
    "row": "row of",
    "joined": "in the buffer of",
}
"""The reason for sharing bytes, as a prefix of the sharing value's name."""


def buffer_table(buffers: tuple[LiveBuffer, ...], plan: MemoryPlan) -> RenderableType:
    """Return a table of the first buffers, with the values sharing each buffer.

    Producers with a known line in the user's program add a column: the path of a module, and the line of a file.
    """
    places = {place.value: place for place in plan.placements}
    sources = {node.name: FOLDER.sub("", node.source) for node in plan.nodes}
    shown = (places[value] for live in buffers[:MAX_BUFFERS] for value in live.values[:MAX_VALUES])
    has_sources = any(LINE.search(sources.get(place.producer, "")) for place in shown)
    table = plain_table()
    table.add_column("bytes", justify="right")
    for name in ("tensor", "type", "producer", *(("source",) if has_sources else ())):
        table.add_column(name)
    for live in buffers[:MAX_BUFFERS]:
        for i, value in enumerate(live.values[:MAX_VALUES]):
            place = places[value]
            size = human(live.nbytes) if i == 0 else "shared"
            source = (NameCell(sources.get(place.producer, "")),) if has_sources else ()
            table.add_row(size, NameCell(value), Text(place.spec), NameCell(_describe_maker(place)), *source)
        if len(live.values) > MAX_VALUES:
            table.add_row("shared", Text(f"{len(live.values) - MAX_VALUES} more"))
    rest = buffers[MAX_BUFFERS:]
    if rest:
        table.add_row(human(sum(live.nbytes for live in rest)), Text(f"{len(rest)} more"))
    return table


def _describe_maker(place: Placement) -> str:
    """Return the producer of a value, with the reason for sharing bytes."""
    how = SHARING_WORDS.get(place.how)
    maker = place.producer or "input"
    return f"{maker} ({how} {place.shares})" if how else maker


# The verdict on a budget as text: fits, does not fit (with the proof), or unknown (with the missing facts).


def render_verdict(verdict: Verdict, plan: MemoryPlan) -> RenderableType:
    """Return a sentence on the verdict, and a table of the tensors in the proof, if any."""
    budget = human(verdict.budget)
    if verdict.outcome is BudgetOutcome.FITS:
        return _describe_fit(verdict, plan)
    if verdict.outcome is BudgetOutcome.UNKNOWN:
        return Text(
            f"Unknown whether the plan fits the budget of {budget}: {_describe_uncounted(verdict, plan)}", "yellow"
        )
    if not verdict.is_settled:
        over = human(plan.arena_bytes - verdict.budget)
        head = f"This plan does not fit the budget of {budget}: {over} too much"
        tail = f"A smaller plan is not excluded: the lower bound is {human(verdict.least)}"
        return Text(f"{head}{_describe_conditions(verdict, plan)}. {tail}.", "red")
    head = f"Cannot fit the budget of {budget} in this order{_describe_conditions(verdict, plan)}"
    if not verdict.proof:
        return Text(f"{head}: the search refuted every arena below {human(verdict.least)}.", "red")
    nbytes = sum(live.nbytes for live in verdict.proof)
    rounded = human(nbytes)
    total = rounded if rounded != budget else f"{nbytes:,} bytes, {nbytes - verdict.budget:,} too many,"
    heading = Text(f"{head}: these must not overlap and take {total} with their padding:", "red")
    return Group(heading, buffer_table(verdict.proof, plan))


def _describe_fit(verdict: Verdict, plan: MemoryPlan) -> Text:
    assert verdict.most is not None
    spare = human(verdict.budget - verdict.most)
    whose = "its" if len(plan.not_counted) == 1 else "their"
    outside = f", with {_count_uncounted(plan)} outside at {whose} largest" if plan.not_counted else ""
    conditions = _describe_conditions(verdict, plan)
    head = f"Fits the budget of {human(verdict.budget)}{conditions}"
    updated_bytes = sum(state_outside(plan).values())
    updated_words = f" {human(updated_bytes)} updated and kept by each run lie outside the arena, and do not count."
    words = f"{head}: {spare} to spare{outside}.{updated_words if updated_bytes else ''}"
    return Text(words, "yellow" if conditions or outside or updated_bytes else "green")


def _describe_conditions(verdict: Verdict, plan: MemoryPlan) -> str:
    """Return the assumptions of the verdict, as text."""
    conditions = [assumptions(plan)] if plan.assumed_types else []
    if verdict.outcome is BudgetOutcome.FITS and plan.not_counted:
        for name, extent in verdict.largest:
            every = "of any other value outside" if len(verdict.largest) > 1 else "of a value outside"
            whose = every if name == EVERY else f"of {printable(name)}"
            conditions.append(f"no open extent {whose} is above {extent:,}")
    return f" if {', and '.join(conditions)}" if conditions else ""


def _describe_uncounted(verdict: Verdict, plan: MemoryPlan) -> str:
    """Return a text on the uncounted values, and on possible remedies."""
    arena = f"the planned part takes {human(plan.arena_bytes)}"
    if verdict.most is not None:
        more = human(verdict.most - plan.arena_bytes)
        outside = f"{_count_uncounted(plan)} outside at most {more} more"
        return f"{arena}, and {outside}. Declare smaller bounds, or raise the budget."
    names = first_names(plan.not_counted)
    how = "Declare shapes with --assume NAME=SHAPE, ranges with --dim NAME:AXIS=0..N, or the most with --max-dim."
    return f"{arena}, and {_count_uncounted(plan)} outside not counted: {names}. {how}"


def _count_uncounted(plan: MemoryPlan) -> str:
    return count_with_noun(len(plan.not_counted), "value")


def render_summary(plan: MemoryPlan, claimed: str = "") -> RenderableType:
    """Return the figures of a plan, the peak, and the values outside; `claimed` says why the figures are not proven."""
    parts: list[RenderableType] = [_figures_table(plan, claimed), Text(), *_render_peak(plan)]
    if claimed:
        parts.insert(0, Text(f"{claimed}: these figures are stated in the file; --model checks them", "yellow"))
    if plan.schedule.bodies:
        parts += [Text(), *_describe_loops(plan)]
    if copied := update_statistics(plan).copied:
        parts += [Text(), Text("bytes copied at the end of each run:"), _describe_edge(plan, Edge(UPDATE), copied)]
    if plan.stopped:
        parts.insert(1, Text(f"the search was stopped by {plan.stopped}: the best so far", "yellow"))
    if plan.outside:
        parts += [Text(), *_describe_unplanned(plan)]
    return Group(*parts)


def _describe_arena(arena: Storage) -> str:
    """Return the bytes of an arena, and the rate of an arena accessed by transfers only."""
    transfers = f", by transfers alone, at {arena.rate / 1e9:g} GB/s" if arena.rate else ""
    return f"{arena.nbytes:,} bytes{transfers}"


def _figures_table(plan: MemoryPlan, claimed: str) -> Table:
    table = figures_table()
    bound = "by search, which the checker does not repeat" if plan.bound == "search" else plan.bound
    listed_arenas = plan.arenas if len(plan.arenas) > 1 else ()
    rows: list[tuple[RenderableType, int, str]] = [
        ("arena", plan.arena_bytes, f"{plan.arena_bytes:,} bytes, aligned to {plan.alignment}, by {plan.strategy}"),
        *((NameCell(f"  {arena.name}"), arena.nbytes, _describe_arena(arena)) for arena in listed_arenas),
        ("lower bound", plan.lower_bound_bytes, f"{_describe_gap(plan, claimed)} ({bound})"),
        ("without reuse", plan.total_bytes, _describe_reuse(plan)),
        ("views save", plan.view_bytes, "of that sum: outputs that alias an input"),
        ("in-place saves", plan.inplace_bytes, "of that sum: outputs written over an input at its last use"),
    ]
    for kind, nbytes in bytes_outside(plan).items():
        state = ", with the values updated in place" if kind == "weight" and plan.updated else ""
        rows.append((f"{kind}s", nbytes, f"bound to memory outside the arena{state}"))
    if plan.updated:
        update_figures = update_statistics(plan)
        rows.append(
            (
                "updated in place",
                update_figures.nbytes,
                f"kept for the next run: {update_figures.description}; copied: {human(update_figures.copied)}",
            )
        )
    for name, nbytes, remark in rows:
        table.add_row(name, human(nbytes), remark)
    table.add_row("graph", "", printable(plan.recipe.description))
    for name, words in (("covers", coverage(plan)), ("assumed", assumptions(plan))):
        if words:
            table.add_row(name, "", Text(words, "yellow"))
    return table


def _describe_gap(plan: MemoryPlan, claimed: str) -> str:
    if plan.gap is None:
        return "of the planned part" if plan.not_counted else "of all regions together"
    if claimed:
        return f"gap {percent(plan.gap)}, as stated in the file"
    words = "optimal for these buffers in this order" if plan.gap == 0 else f"gap {percent(plan.gap)}"
    return f"{words} if the assumed types are true" if plan.assumed_types else words


def _describe_reuse(plan: MemoryPlan) -> str:
    times = f", {plan.total_bytes / plan.arena_bytes:.1f} times the arena" if plan.arena_bytes else ""
    return f"{count_with_noun(len(planned_values(plan)), 'tensor')}, each with separate bytes{times}"


def _render_peak(plan: MemoryPlan) -> list[RenderableType]:
    point, buffers, contributors = plan.peak_point, buffers_at_peak(plan), peak_contributors(plan)
    heading = Table.grid(padding=(0, 1))
    where = f"{human(plan.peak.nbytes)} at point {plan.peak.point} of {len(plan.points)},"
    heading.add_row(Text.assemble(("Peak", "bold"), " ", where), NameCell(repr(str(point))))
    return [heading, buffer_table(buffers, plan), *_describe_contributor(plan, contributors)]


def _describe_contributor(plan: MemoryPlan, contributors: tuple[PeakContributor, ...]) -> list[RenderableType]:
    """Return a line on the buffer with the most effect on the peak, marked as an estimate."""
    best = next(iter(contributors), None)
    if best is None or best.without_bytes >= plan.peak.nbytes:
        return []
    rest, halved = human(best.without_bytes), human(best.halved_bytes)
    words = f" ({human(best.nbytes)}) the peak would be {rest}, with half of the bytes {halved}"
    return [NamedSentence("estimate: without ", best.values[0], f"{words} (not planned; --advise plans changes)")]


def _renamed_carries(plan: MemoryPlan) -> list[Placement]:
    return [place for place in plan.placements if place.how == POINTER]


def _describe_loops(plan: MemoryPlan) -> list[RenderableType]:
    """Return lines on the body versions of loops, and on the bytes copied on each control-flow edge."""
    renamed_count, multiview_count = len(_renamed_carries(plan)), len(multiview_values(plan))
    edges = {edge: nbytes for edge, nbytes in bytes_by_edge(plan).items() if edge.kind != UPDATE}
    lines: list[RenderableType] = [Text(printable(describe_versions(record))) for record in plan.rolled[:MAX_BUFFERS]]
    if len(plan.rolled) > MAX_BUFFERS:
        lines.append(Text(f"and {len(plan.rolled) - MAX_BUFFERS} more loops"))
    if renamed_count or multiview_count:
        what = f"{count_with_noun(renamed_count, 'loop-carried value')} renamed, not copied (0 bytes)"
        several = f"{count_with_noun(multiview_count, 'value')} with several placements"
        lines.append(Text(f"{what}; {several}"))
    if not edges:
        return [*lines, Text("0 bytes moved by loops and branches", "green")]
    lines.append(Text("maximum bytes moved by loops and branches, at each pass of an edge:"))
    lines += [_describe_edge(plan, edge, nbytes) for edge, nbytes in list(edges.items())[:MAX_BUFFERS]]
    if len(edges) > MAX_BUFFERS:
        lines.append(Text(f"  and {len(edges) - MAX_BUFFERS} more edges (all are in the plan file)"))
    return lines


def _describe_edge(plan: MemoryPlan, edge: Edge, nbytes: int) -> Text:
    """Return a line on the bytes copied on an edge, with the reason for the first copy."""
    moves = [move for move in plan.moves if move.edge == edge]
    copies = abbreviated_list([f"{move.source} to {move.destination}" for move in moves], 1)
    return Text(printable(f"  {edge}: {human(nbytes)}, {copies}: {moves[0].why}"))


def _describe_unplanned(plan: MemoryPlan) -> list[RenderableType]:
    """Return one line a reason: a single cause often leaves many values outside."""
    reasons: dict[str, list[str]] = {}
    for value in plan.outside:
        reasons.setdefault(value.reason, []).append(f"{value.value}: {value.type}")
    bound = len(plan.outside) - len(plan.not_counted)
    bound_words = f", {bound} of them in memory bound by the caller" if bound else ""
    lines: list[RenderableType] = [
        Text(f"{count_with_noun(len(plan.outside), 'value')} outside the arena{bound_words}", "yellow")
    ]
    for reason, names in list(reasons.items())[:MAX_BUFFERS]:
        lines.append(Text(printable(f"  {abbreviated_list(names, 1)}: {reason}")))
    if len(reasons) > MAX_BUFFERS:
        lines.append(Text(f"  and {len(reasons) - MAX_BUFFERS} more reasons (all are in the plan file)"))
    by_data = [value for value in plan.not_counted if value.reason.startswith(DEPENDS_ON_DATA) and OPEN in value.dims]
    if by_data:
        axes = [axis for axis, extent in enumerate(by_data[0].dims) if extent == OPEN]
        options = " ".join(f"--dim {by_data[0].value}:{axis}=0..N" for axis in axes)
        lines.append(Text(printable(f"A range for such an extent plans the tensors behind it: {options}"), "dim"))
    return lines
