"""The regions of all values in a plan, and the static checks before the replay.

Rules: unknown-value, outside-placed, duplicate-placement, unplaced-value, wrong-spec, wrong-size,
misaligned, bad-alignment, duplicate-storage, storage-kind, unknown-storage, out-of-storage,
bound-storage, arena-size, initial-overlap, illegal-graph, outside-untold, updates-untold, bad-copies, false-heads,
bad-rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from sublet.base.errors import Finding
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.checker.entry_bindings import EntryBindings, declared_bindings
from sublet.checker.loop_slices import SliceStorages, StrideResolver
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import row_form, strided_operands
from sublet.plan import (
    ARENA,
    MAX_ROWS,
    OPEN,
    POINTER,
    Context,
    MemoryPlan,
    Placement,
    Region,
    RolledLoop,
    Storage,
    bound_storage_name,
)

READ_ONLY = ("weight", "input")
"""Kinds of storage owned by the caller: the network writes only storages of updated values."""


@dataclass(frozen=True)
class PlanLayout:
    """The region of every placed value with bytes, and the storages by name.

    A region here always has the size of its value, even if the plan declares another size. A value in
    `regions_by_context` has several regions, each for some body versions of the enclosing loops; a value in `pointers`
    is renamed and has no own region. The region of a value with strides lies in one of the slice storages `cells`.
    `updated` names the storages of updated inputs and weights. `context` and `pointer_regions` are the current body
    versions and the current regions of pointers.
    """

    regions: Mapping[str, Region]
    storages: Mapping[str, Storage]
    regions_by_context: Mapping[str, Mapping[Context, Region]]
    pointers: frozenset[str]
    rolled: Mapping[tuple[str, Context], RolledLoop]
    entry_bindings: EntryBindings
    updated: frozenset[str]
    cells: SliceStorages
    context: Context = ()
    pointer_regions: Mapping[str, Region] = field(default_factory=dict)

    def region_of(self, value: Value) -> Region | None:
        """Return the region of the value; None for a value without bytes or placement."""
        name = value.name
        if name in self.pointers:
            return self.pointer_regions.get(name)
        if name in self.regions_by_context:
            turns, depths = self.regions_by_context[name], range(len(self.context) + 1)
            return next((turns[here] for depth in depths if (here := self.context[:depth]) in turns), None)
        return self.regions.get(name)

    def is_pointer(self, value: Value) -> bool:
        """True if the value is renamed, without own bytes."""
        return value.name in self.pointers

    def has_varying_region(self, value: Value) -> bool:
        """True if the region of the value depends on the body version or on the state."""
        return value.name in self.pointers or value.name in self.regions_by_context

    def in_context(self, context: Context, pointed: Mapping[str, Region]) -> PlanLayout:
        """Return the layout for a context, with the given regions of pointers."""
        shared = (self.regions, self.storages, self.regions_by_context, self.pointers, self.rolled, self.entry_bindings)
        return PlanLayout(*shared, self.updated, self.cells, context, pointed)

    def is_read_only(self, region: Region) -> bool:
        """True for bytes in memory of the caller never written by the network."""
        storage = self.cells.root_storage(region.storage)
        return storage not in self.updated and self.storages[storage].kind in READ_ONLY

    def storage_kind_of(self, region: Region) -> str:
        """Return the kind of the storage of a region."""
        return self.storages[self.cells.root_storage(region.storage)].kind


def build_layout(graph: Graph, plan: MemoryPlan) -> tuple[PlanLayout, list[Finding]]:
    """Return the layout described by the plan, and the findings of all static checks."""
    values = {value.name: value for value in graph.values()}
    storages = {storage.name: storage for storage in plan.storages}
    findings = [*_check_unique_names(graph), *_check_storages(graph, plan), *_check_transfer_memory(graph, plan)]
    findings += [*_check_declared_values(graph, plan), *_check_rolled_loops(graph, plan)]
    findings += _check_strided_operands(graph, plan)
    if plan.alignment < 1:
        findings.append(Finding("bad-alignment", "the plan", f"alignment {plan.alignment} is less than 1"))
    regions: dict[str, Region] = {}
    turning: dict[str, dict[Context, Region]] = {}
    pointers = {placement.value for placement in plan.placements if placement.how == POINTER}
    placed: dict[str, _ContextSet] = {}
    by_value: dict[str, list[Placement]] = {}
    for placement in plan.placements:
        by_value.setdefault(placement.value, []).append(placement)
    strides = StrideResolver(graph, by_value, plan.alignment)
    for placement in plan.placements:
        contexts = placement.copies or ((),)
        if not placed.setdefault(placement.value, _ContextSet()).is_disjoint_from(contexts):
            findings.append(Finding("duplicate-placement", f"value %{placement.value}", "is placed twice"))
            continue
        placed[placement.value].add(contexts)
        value = values.get(placement.value)
        findings += _check_placement(placement, value, storages, plan.alignment)
        if value is not None and (wrong := _wrong_rows(placement, value, plan.alignment)):
            findings.append(Finding("bad-rows", f"value {value}", wrong))
            continue
        if value is None or not value.nbytes or placement.region.storage not in storages:
            continue
        plain = replace(placement.region, nbytes=value.nbytes)
        regions_found = [
            plain if not placement.strides else strides.slice_region_of(placement, context) for context in contexts
        ]
        if placement.strides:
            findings += strides.stride_findings(placement, all(regions_found))
        turns = [
            (context, region) for context, region in zip(contexts, regions_found, strict=True) if region is not None
        ]
        if placement.copies:
            turning.setdefault(value.name, {}).update(turns)
        else:
            regions.update((value.name, region) for _, region in turns)
    for name in sorted(storages.keys() & strides.cells.by_name.keys()):
        findings.append(Finding("duplicate-storage", f"storage {name}", "has the name of a loop slice"))
    for value in values.values():
        if value.plannable and value.name not in placed:
            fix = "add a placement, or list the value as outside the plan"
            findings.append(Finding("unplaced-value", f"value {value}", f"{value.spec} has no placement", fix))
    rolled = {(record.loop, record.within): record for record in plan.rolled}
    updated = frozenset(bound_storage_name(value.name) for value in graph.updated_values)
    heads, senseless = declared_bindings(graph, plan)
    layout = PlanLayout(regions, storages, turning, frozenset(pointers), rolled, heads, updated, strides.cells)
    return layout, [*findings, *senseless, *_check_bound_values(graph, layout), *_check_initial_overlaps(graph, layout)]


class _ContextSet:
    """A set of contexts (body versions of enclosing loops), none a prefix of another."""

    def __init__(self) -> None:
        self._taken: set[Context] = set()
        self._around: set[Context] = set()  # all prefixes of the contexts in the set

    def is_disjoint_from(self, contexts: Iterable[Context]) -> bool:
        """True if no given context is a prefix or an extension of a context in the set."""
        return not any(
            context in self._around or any(context[:depth] in self._taken for depth in range(len(context)))
            for context in contexts
        )

    def add(self, contexts: Iterable[Context]) -> None:
        """Add contexts to the set."""
        for context in contexts:
            self._taken.add(context)
            self._around.update(context[:depth] for depth in range(len(context) + 1))


def _check_rolled_loops(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check that rolled loops and renamed values fit the nodes of the graph."""
    loops = {node.name for node in graph.walk() if isinstance(node, While)}
    for record in plan.rolled:
        if record.loop not in loops or record.first < 0 or record.ring < 1:
            what = f"declares a prologue of {record.first} body versions and a period of {record.ring}"
            yield Finding(
                "bad-copies",
                f"loop {record.loop}",
                what,
                "expected a loop of the graph, a prologue of at least 0 and a period of at least 1",
            )
        if any(not 0 <= jump.next < record.copies for jump in record.jumps):
            yield Finding("bad-copies", f"loop {record.loop}", "has a transition to a body version that does not exist")
    assigned: set[str] = set()
    for node in graph.walk():
        if isinstance(node, While):
            assigned.update(value.name for value in (*node.parameters, *node.finals) if value is not None)
        elif isinstance(node, CaseOf):
            assigned.update(value.name for value in node.defs)
    for placement in plan.placements:
        if placement.how == POINTER and placement.value not in assigned:
            what = "is declared as renamed, but no loop or branch assigns it"
            yield Finding("bad-copies", f"value %{placement.value}", what)


def _check_unique_names(graph: Graph) -> Iterator[Finding]:
    """Check that names of values and nodes are unique in the program."""
    seen: set[str] = set()
    for value in graph.values():
        if value.name in seen:
            yield Finding("illegal-graph", f"value {value}", "is defined twice", "names are unique in the program")
        seen.add(value.name)
    nodes: set[str] = set()
    for node in graph.walk():
        if node.name in nodes:
            yield Finding("illegal-graph", f"node {node.name}", "occurs twice", "names are unique in the program")
        nodes.add(node.name)


def _check_storages(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check the names, kinds and sizes of storages."""
    given = {*graph.weights, *graph.inputs}  # a weight or input keeps its storage kind, even if it is an output too
    owners = {
        "weight": {bound_storage_name(value.name): value for value in graph.weights},
        "input": {bound_storage_name(value.name): value for value in graph.inputs},
        "output": {bound_storage_name(value.name): value for value in graph.outputs if value not in given},
    }
    seen: set[str] = set()
    for storage in plan.storages:
        where = f"storage {storage.name}"
        if storage.name in seen:
            yield Finding("duplicate-storage", where, "is listed twice")
        seen.add(storage.name)
        if storage.kind == ARENA:
            if not storage.name or storage.name.startswith("%"):
                yield Finding("storage-kind", where, "is an arena, whose name must not be empty or begin with %")
        elif storage.kind not in owners:
            yield Finding("storage-kind", where, f"is of unknown kind {storage.kind!r}")
        elif storage.name not in owners[storage.kind]:
            yield Finding("storage-kind", where, f"the graph has no {storage.kind} of this name")
        elif storage.nbytes != (owned := owners[storage.kind][storage.name].nbytes):
            yield Finding("bound-storage", where, f"has {storage.nbytes} bytes, its {storage.kind} has {owned}")
    arenas = sum(storage.nbytes for storage in plan.arenas)
    if arenas != plan.arena_bytes:
        what = f"declares an arena of {plan.arena_bytes} bytes, but its arenas have {arenas}"
        yield Finding("arena-size", "the plan", what)


def _check_transfer_memory(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check that a memory with a transfer rate holds only offloaded values, read by reloads alone."""
    slow = {storage.name for storage in plan.storages if storage.rate}
    if not slow:
        return
    brought = {value.name for node in graph.nodes if node.op == "nn.offload" for value in node.defs}
    read = {value.name for node in graph.walk() if node.op != "nn.reload" for value in node.uses}
    for placement in plan.placements:
        if placement.region.storage in slow and (placement.value not in brought or placement.value in read):
            what = f"lies in {placement.region.storage}, which only nn.offload writes and nn.reload reads"
            yield Finding("out-of-reach", f"value %{placement.value}", what, "place it where kernels reach it")


def _check_declared_values(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check the unplanned values and the updated values declared by the plan."""
    yield from _check_unplanned_values(graph, plan)
    if plan.updated != tuple(value.name for value in graph.updated_values):
        yield Finding("updates-untold", "the plan", "lists other inputs and weights than the graph updates")


def _check_unplanned_values(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check that the plan lists every unplannable value once, with the known facts of the value's type."""
    specs = {value.name: value.spec for value in graph.values() if isinstance(value.spec, Unplannable)}
    counts = Counter(outside.value for outside in plan.outside)
    for name in sorted(specs.keys() | counts.keys()):
        if counts[name] != (name in specs):
            what = (
                "cannot be planned, but the plan does not list it as outside"
                if not counts[name]
                else "is listed as outside, but can be planned, is unknown or is listed twice"
            )
            yield Finding("outside-untold", f"value %{name}", what)
    callers = {value.name for value in (*graph.weights, *graph.inputs, *graph.outputs)}
    for outside in plan.outside:
        if (spec := specs.get(outside.value)) is None:
            continue
        dtype, dims = spec.dtype_and_dims or ("", None)
        known = (spec.type, str(dtype), tuple(OPEN if extent is None else extent for extent in dims or ()))
        if (outside.type, outside.dtype, outside.dims) != known:
            what = f"is declared as {outside.type} of {outside.dtype or 'no type'}{list(outside.dims)}, but is {spec}"
            yield Finding("outside-untold", f"value %{outside.value}", what)
        if outside.bound and outside.value not in callers:
            yield Finding(
                "outside-untold",
                f"value %{outside.value}",
                "is declared as the caller's, but is no input, output or weight",
            )


def _check_placement(
    placement: Placement, value: Value | None, storages: Mapping[str, Storage], alignment: int
) -> Iterator[Finding]:
    """Check one placement against its value, its storage and the alignment."""
    where, region = f"value %{placement.value}", placement.region
    if value is None:
        yield Finding("unknown-value", where, "is placed, but the graph has no such value")
        return
    if not value.plannable:
        yield Finding("outside-placed", where, f"is placed, but {value.spec} cannot be planned")
        return
    if placement.how == POINTER:
        if placement.copies or placement.region.storage:
            yield Finding("bad-copies", where, "is renamed, so it cannot have a region or body versions")
        return
    if placement.spec != str(value.spec):
        yield Finding("wrong-spec", where, f"is placed as {placement.spec}, but is {value.spec}")
    if region.nbytes != value.nbytes:
        yield Finding("wrong-size", where, f"has a region of {region.nbytes} bytes, but needs {value.nbytes}")
    if region.storage not in storages:
        yield Finding("unknown-storage", where, f"lies in storage {region.storage!r}, which the plan does not list")
    elif value.nbytes and not 0 <= region.offset <= region.end <= storages[region.storage].nbytes:
        what = f"lies at {format_region(region)}, but {region.storage} has {storages[region.storage].nbytes} bytes"
        yield Finding("out-of-storage", where, what)
    if value.nbytes and alignment > 1 and region.offset % alignment:
        what = f"lies at offset {region.offset}, which is no multiple of the alignment {alignment}"
        yield Finding("misaligned", where, what)


def _wrong_rows(placement: Placement, value: Value, alignment: int) -> str:
    """Return what is wrong with the rows of a placement, "" for nothing."""
    region, shape = placement.region, value.spec.shape if isinstance(value.spec, TensorSpec) else ()
    if region.rows == 1:
        return f"has a pitch of {region.pitch} bytes for a single row" if region.pitch else ""
    if not 1 < region.rows <= MAX_ROWS or shape[:1] != (region.rows,) or not value.nbytes:
        return f"lies in {region.rows} rows, but is {value.spec}"
    if value.nbytes % region.rows or region.pitch < value.nbytes // region.rows or region.pitch % max(1, alignment):
        return f"has rows of {value.nbytes // region.rows} bytes every {region.pitch} bytes, alignment {alignment}"
    if placement.strides or placement.copies:
        return "lies in rows, and moves from iteration to iteration"
    return ""


def _check_strided_operands(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Check that each value in rows is written by one kernel and read by kernels, all of which take strides."""
    in_rows = {placement.value for placement in plan.placements if placement.region.rows != 1}
    if not in_rows:
        return
    produced: set[str] = set()
    callers = (*graph.inputs, *graph.weights, *graph.outputs, *(value for pair in graph.updates for value in pair))
    refused = {value.name: "the caller" for value in callers if value.name in in_rows}
    for node in graph.nodes:
        produced.update(value.name for value in node.outputs if value is not None)
        within = (each for sub in node.subgraphs for each in sub.walk())
        touched = {value.name for each in (node, *within) for value in (*each.uses, *each.defs)} & in_rows
        if touched:
            taken = _names_of_strided(node) if not node.subgraphs else set()
            refused |= dict.fromkeys(touched - taken, f"node {node.name}")
    refused |= dict.fromkeys(in_rows - produced, "its producer")
    for name, who in sorted(refused.items()):
        yield Finding("bad-rows", f"value %{name}", f"lies in rows, but {who} takes only contiguous bytes")


def _names_of_strided(node: Node) -> set[str]:
    """Return the names of the operands of a node in which its kernels take strides wherever the node uses them."""
    positions = strided_operands(node, row_form(node))
    taken: dict[str, bool] = {}
    for operands, strided in zip((node.inputs, node.outputs), positions, strict=True):
        for i, value in enumerate(operands):
            if value is not None:
                taken[value.name] = taken.get(value.name, True) and i in strided
    return {name for name, takes in taken.items() if takes}


def _check_bound_values(graph: Graph, layout: PlanLayout) -> Iterator[Finding]:
    """Check that inputs, weights and outputs bound to a storage lie at the start of the storage."""
    owners = (("weight", graph.weights), ("input", graph.inputs), ("output", dict.fromkeys(graph.outputs)))
    for kind, value in chain.from_iterable(((kind, value) for value in group) for kind, group in owners):
        region, own = layout.region_of(value), layout.storages.get(bound_storage_name(value.name))
        if own is not None and value.nbytes and layout.has_varying_region(value):
            yield Finding("bound-storage", f"{kind} {value}", "lies in several places, but the plan binds it to one")
        if region is None:
            continue
        actual = layout.storages[layout.cells.root_storage(region.storage)]
        if (
            own is not None
            and own.kind == kind
            and (region.storage, region.offset) != (bound_storage_name(value.name), 0)
        ):
            what = f"lies at {format_region(region)}, but the plan binds it to storage {bound_storage_name(value.name)}"
            yield Finding("bound-storage", f"{kind} {value}", what)
        elif (
            kind != "output"
            and actual.kind != "arena"
            and (actual.kind, actual.name) != (kind, bound_storage_name(value.name))
        ):
            what = f"lies in storage {actual.name} of kind {actual.kind}, expected its own storage or an arena"
            yield Finding("bound-storage", f"{kind} {value}", what)


def _check_initial_overlaps(graph: Graph, layout: PlanLayout) -> Iterator[Finding]:
    """Check that inputs and weights do not overlap: all of them are live before the first step."""
    values = (*graph.inputs, *graph.weights)
    named = [(region, value.name) for value in values if (region := layout.region_of(value))]
    for one, other in overlapping_pairs(named):
        what = f"overlaps %{other[1]} at {format_region(other[0])}; both are live before the first step"
        yield Finding("initial-overlap", f"value %{one[1]} at {format_region(one[0])}", what, "place them apart")


def overlapping_pairs(named: Iterable[tuple[Region, str]]) -> Iterator[tuple[tuple[Region, str], tuple[Region, str]]]:
    """Yield all pairs of overlapping named regions, in order of address."""
    active: list[tuple[Region, str]] = []
    for entry in sorted(named, key=lambda entry: (entry[0].storage, entry[0].offset)):
        region = entry[0]
        active = [other for other in active if other[0].storage == region.storage and other[0].end > region.offset]
        for other in active:
            if regions_overlap(other[0], region):
                yield other, entry
        active.append(entry)


def regions_overlap(one: Region, other: Region) -> bool:
    """True if two regions have a byte in common; a region in rows has only the bytes of its rows."""
    if one.storage != other.storage or one.offset >= other.end or other.offset >= one.end:
        return False
    if one.rows == other.rows == 1:
        return True
    a, b = list(one.runs), list(other.runs)
    while a and b:
        if a[-1].offset < b[-1].end and b[-1].offset < a[-1].end:
            return True
        (a if a[-1].offset >= b[-1].end else b).pop()
    return False


def format_region(region: Region) -> str:
    """Return a region as text: storage[begin, end)."""
    rows = f" in {region.rows} rows every {region.pitch} bytes" if region.rows != 1 else ""
    return f"{region.storage}[{region.offset}, {region.end}){rows}"
