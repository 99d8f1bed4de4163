"""The command `sublet explain`: the bytes of one tensor, the tensors sharing them, and the points that need them.

All facts are fields of the plan's records, or sums over the live ranges in these records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sublet.analysis.residual_copies import copied_parts
from sublet.api.model_files import TEXT_SUFFIX
from sublet.base.errors import PlanError
from sublet.base.files import parse_json, read_text
from sublet.base.formatting import abbreviated_list, human, known_names, printable
from sublet.base.ranges import LiveCurve, holds, merge, overlap
from sublet.cli import options as shared
from sublet.cli.console import answer_console, print_json
from sublet.cli.export import plan_model
from sublet.cli.options import command_from, option_name
from sublet.cli.show import UNCHECKED
from sublet.integrations.registry import integration_of_file
from sublet.plan import POINTER, CopiedMove, MemoryPlan, Placement
from sublet.plan.file import load
from sublet.plan.statistics import PlannedBuffer, buffers_from, live_curve_of, planned_buffers, segmenter_of
from sublet.plan.verdict import LiveBuffer
from sublet.viz.loop_bands import iterations_at
from sublet.viz.summary import SHARING_WORDS

MAX_LISTED = 5
"""Maximum of tensors in a line, and of placements of a tensor; JSON lists all."""

MAX_SUGGESTIONS = 5


@dataclass(frozen=True)
class PlacementFacts:
    """A placement of a tensor, with the tensors around it.

    sharing      the other placements in the buffer: their bytes are shared on purpose
    reusing      placements of other buffers over some of the bytes, at other points, in order of time
    busiest      the point with the most live bytes within the live range
    live_bytes   the bytes of the arenas live at that point
    neighbours   the other buffers live at that point, largest first
    """

    place: Placement
    sharing: tuple[Placement, ...]
    reusing: tuple[Placement, ...]
    busiest: int
    live_bytes: int
    neighbours: tuple[LiveBuffer, ...]


@dataclass(frozen=True)
class TensorFacts:
    """A planned tensor.

    pointers      the renamed values that may be bound to the bytes of the tensor
    moves         the copies from and to the tensor
    peak_bytes    the most live bytes at any point of the plan
    freed_bytes   the most live bytes, if each live range of the tensor were its first and its last point only
    """

    placements: tuple[PlacementFacts, ...]
    pointers: tuple[str, ...]
    moves: tuple[CopiedMove, ...]
    peak_bytes: int
    freed_bytes: int


def tensor_facts(plan: MemoryPlan, name: str) -> TensorFacts:
    """Return the facts on a tensor. Raises PlanError with similar names for a tensor unknown to the plan."""
    places = [place for place in plan.placements if place.value == name]
    if not places:
        raise PlanError(f"{plan.graph} has no tensor {printable(name)!r}: {_similar_names(plan, name)}")
    buffers = list(planned_buffers(plan))
    curve = live_curve_of(buffers)
    return TensorFacts(
        tuple(_placement_facts(plan, place, buffers, curve) for place in places),
        tuple(dict.fromkeys(place.value for place in plan.placements if name in place.stands_for)),
        tuple(move for move in plan.moves if name in (move.source, move.destination)),
        curve.peak_bytes,
        _peak_if_freed(plan, name),
    )


def _similar_names(plan: MemoryPlan, name: str) -> str:
    """Return a hint with the outputs of the node `name`, the names that contain `name`, and names spelled alike."""
    names = dict.fromkeys((*(place.value for place in plan.placements), *(value.value for value in plan.outside)))
    made = (place.value for place in plan.placements if place.producer == name)
    containing = (other for other in names if name in other)
    similar = dict.fromkeys(chain(made, containing, get_close_matches(name, names, MAX_SUGGESTIONS)))
    if similar and name:
        return f"did you mean {known_names(islice(similar, MAX_SUGGESTIONS))}?"
    return f"known are {known_names(names)}"


def _placement_facts(
    plan: MemoryPlan, place: Placement, buffers: list[PlannedBuffer], curve: LiveCurve
) -> PlacementFacts:
    point, live_bytes = curve.peak_within(merge(place.live))
    own = place.buffer if place.buffer >= 0 else None
    others = (block for block in buffers if block.buffer != own and holds(block.live, point))
    neighbours = [
        LiveBuffer(sum(block.sizes_needed_at(point)), tuple(p.value for p in block.members if holds(p.live, point)))
        for block in others
    ]
    return PlacementFacts(
        place,
        tuple(p for p in plan.placements if own is not None and p.buffer == own and p.value != place.value),
        tuple(sorted(_reusing_placements(plan, place), key=lambda other: other.begin)),
        point,
        live_bytes,
        tuple(sorted(neighbours, key=lambda live: -live.nbytes)) if place.live else (),
    )


def _reusing_placements(plan: MemoryPlan, place: Placement) -> Iterator[Placement]:
    """Yield the placements of other buffers over bytes of a placement.

    A slice or row with strides lies in a sequence or in a stacked output: the placement of the whole is yielded.
    """
    region = place.region
    for other in plan.in_arenas if place.buffer >= 0 and not place.strides else ():
        bytes_shared = other.region.offset < region.end and region.offset < other.region.end
        if other.strides or other.buffer == place.buffer or other.region.storage != region.storage or not bytes_shared:
            continue
        if not overlap(merge(other.live), merge(place.live)):
            yield other


def _peak_if_freed(plan: MemoryPlan, name: str) -> int:
    """Return the most live bytes, if the tensor were live at the first and the last point of its ranges only."""

    def ends_of(place: Placement) -> Placement:
        return replace(place, live=merge(chain.from_iterable(((b, b + 1), (e - 1, e)) for b, e in place.live)))

    places = (ends_of(place) if place.value == name else place for place in plan.in_arenas)
    counted = (place for place in places if place.buffer >= 0 and not place.strides)
    return live_curve_of(buffers_from(counted, segmenter_of(plan))).peak_bytes


# The facts as text.


def _point_words(plan: MemoryPlan, point: int) -> str:
    return f"point {point} ({plan.points[point]})" if point < len(plan.points) else f"point {point}"


def _live_words(plan: MemoryPlan, place: Placement) -> str:
    """Return the live ranges of a placement, each from the first to the last point."""
    ranges = [
        f"from {_point_words(plan, begin)} to {_point_words(plan, end - 1)}"
        if end - begin > 1
        else f"at {_point_words(plan, begin)}"
        for begin, end in place.live
    ]
    return abbreviated_list(ranges, MAX_LISTED) if ranges else "at no point"


def _region_words(plan: MemoryPlan, place: Placement) -> str:
    """Return the storage and the bytes of a placement, and the movement from iteration to iteration."""
    if place.how == POINTER:
        sources = abbreviated_list(place.stands_for, MAX_LISTED)
        return f"no own bytes: a renamed value, bound by control flow to the bytes of {sources}"
    region = place.region
    kinds = {storage.name: storage.kind for storage in plan.storages}
    outside = "" if place in plan.in_arenas else f" ({kinds.get(region.storage, 'unknown')} outside the arena)"
    strides = "".join(
        f", in iteration k of {stride.loop} moved by k * {stride.step:,} bytes" for stride in place.strides
    )
    rows = f" in {region.rows:,} rows, one every {region.pitch:,} bytes" if region.rows > 1 else ""
    return f"{region.storage}{outside}, bytes {region.offset:,} to {region.end:,}{rows}{strides}"


def _sharing_words(place: Placement) -> str:
    how = SHARING_WORDS.get(place.how)
    return f"{how} {place.shares}" if how else ""


def _placement_words(places: Iterable[Placement], plan: MemoryPlan) -> str:
    texts = [f"{place.value} from {_point_words(plan, place.begin)}" for place in places]
    return abbreviated_list(texts, MAX_LISTED)


def _rows_of(plan: MemoryPlan, facts: PlacementFacts) -> Iterator[tuple[str, str]]:
    """Yield the lines on a placement: title and text."""
    place, begin, end = facts.place, facts.place.begin, facts.place.end
    if rounds := iterations_at(place, plan):
        yield "in", rounds
    yield "lies", _region_words(plan, place)
    if place.how != POINTER:
        yield "live", _live_words(plan, place)
    if why := _sharing_words(place):
        yield "shares", why
    members = [f"{other.value} ({_sharing_words(other) or 'the owner'})" for other in facts.sharing]
    if members:
        yield "with", abbreviated_list(list(dict.fromkeys(members)), MAX_LISTED)
    earlier = [other for other in facts.reusing if other.end <= begin]
    later = [other for other in facts.reusing if other.begin >= end]
    between = [other for other in facts.reusing if other.end > begin and other.begin < end]
    for title, others in (("before", earlier[::-1]), ("between", between), ("after", later)):
        if others:
            yield title, f"the bytes hold {_placement_words(others, plan)}"
    if place.live and facts.live_bytes:
        near = [f"{'+'.join(live.values[:2])} {human(live.nbytes)}" for live in facts.neighbours]
        beside = f", beside {abbreviated_list(near, MAX_LISTED)}" if near else ""
        yield "busiest", f"{human(facts.live_bytes)} live at {_point_words(plan, facts.busiest)}{beside}"


def _rows_on_freeing(plan: MemoryPlan, facts: TensorFacts) -> Iterator[tuple[str, str]]:
    """Yield the lines on the last point, and on the live bytes without the points in between."""
    in_arena = [each.place for each in facts.placements if each.place.buffer >= 0 and each.place.live]
    if not in_arena:
        return
    end = max(place.end for place in in_arena)
    heirs = dict.fromkeys(other.value for each in facts.placements for other in each.sharing if other.end > end)
    kept = f"; then {abbreviated_list(list(heirs), MAX_LISTED)} need the shared bytes" if heirs else ""
    yield "needed", f"last at {_point_words(plan, end - 1)}{kept}"
    peak, freed = human(facts.peak_bytes), human(facts.freed_bytes)
    if all(end - begin <= 2 for place in in_arena for begin, end in place.live):
        yield "earlier", "not in this order: no live range has points between its first and its last"
    elif facts.freed_bytes < facts.peak_bytes:
        words = f"live bytes would peak at {freed}, not {peak}, if only the first and last points needed the bytes"
        yield "earlier", f"{words} (not planned; sublet plan --advise plans changes)"
    else:
        yield "earlier", f"no use: live bytes peak at {peak} even if only the first and last points needed the bytes"


def print_facts(plan: MemoryPlan, facts: TensorFacts, claimed: str) -> None:
    """Print the facts on a tensor in a few lines."""
    console = answer_console()
    first = facts.placements[0].place
    source = next((f" ({node.source})" for node in plan.nodes if node.name == first.producer and node.source), "")
    maker = f", written by {first.producer}{source}" if first.producer else ""
    updated = ", updated by each run" if first.value in plan.updated else ""
    heading = f"{first.value}: {first.spec}, {first.region.nbytes:,} bytes{maker}{updated}"
    console.print(Text(printable(heading), "bold"))
    rows = [row for each in facts.placements[:MAX_LISTED] for row in _rows_of(plan, each)]
    if len(facts.placements) > MAX_LISTED:
        rows.append(("", f"and {len(facts.placements) - MAX_LISTED} more placements (--json lists all)"))
    if facts.pointers:
        rows.append(("carried", f"{abbreviated_list(facts.pointers, MAX_LISTED)} may be bound to the bytes"))
    rows += [
        ("copied", f"{move.nbytes:,} bytes from {move.source} to {move.destination} at {move.edge}: {move.why}")
        for move in facts.moves[:MAX_LISTED]
    ]
    for title, words in (*rows, *_rows_on_freeing(plan, facts)):
        console.print(Text.assemble((f"  {title:8}", "dim"), printable(words)))
    if claimed:
        console.print(Text(f"  {claimed}: the facts are those of the file", "yellow"))


def facts_json(plan: MemoryPlan, facts: TensorFacts) -> dict[str, Any]:
    """Return the facts as a JSON object; sizes are bytes, ranges of points half-open."""

    def content(place: Placement) -> dict[str, Any]:
        return {"tensor": place.value, "how": place.how, "shares": place.shares, "live": [list(r) for r in place.live]}

    first = facts.placements[0].place
    return {
        "tensor": first.value,
        "spec": first.spec,
        "producer": first.producer,
        "planned": True,
        "updated": first.value in plan.updated,
        "placements": [
            {
                **content(each.place),
                **asdict(each.place.region),
                "iterations": iterations_at(each.place, plan),
                "stands_for": list(each.place.stands_for),
                "strides": [asdict(stride) for stride in each.place.strides],
                "points": [[_point_words(plan, b), _point_words(plan, e - 1)] for b, e in each.place.live],
                "sharing": [content(other) for other in each.sharing],
                "reusing": [content(other) for other in each.reusing],
                "busiest_point": each.busiest,
                "live_bytes": each.live_bytes,
                "neighbours": [{"nbytes": live.nbytes, "tensors": list(live.values)} for live in each.neighbours],
            }
            for each in facts.placements
        ],
        "pointers": list(facts.pointers),
        "copied": [{**asdict(move), "edge": str(move.edge)} for move in facts.moves],
        "peak_bytes": facts.peak_bytes,
        "peak_if_freed_between_bytes": facts.freed_bytes,
    }


@dataclass(frozen=True)
class ExplainOptions:
    """The arguments and the options of `sublet explain`."""

    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_PLAN", help="A model, planned first; or a plan written by `sublet plan --out`."
        ),
    ]
    tensor: Annotated[str, typer.Argument(metavar="TENSOR", help="The name of a tensor.")]
    dim: shared.Dim = None
    const: shared.Const = None
    state: shared.State = None
    max_trips: shared.MaxTrips = None
    align: shared.Align = None
    in_json: shared.Json = False


@command_from(ExplainOptions)
def explain(options: ExplainOptions) -> None:
    """Explain where a tensor lies, which tensors share or reuse its bytes, and which point frees them."""
    from_file, copied = _is_plan(options.source), tuple[CopiedMove, ...]()
    if from_file:
        for option in ("dim", "const", "state", "max_trips", "align"):
            if getattr(options, option):
                raise PlanError(f"{option_name(option)} is for planning, but {options.source} is a finished plan")
        plan = load(options.source)
    else:
        texts = options.dim, options.const, options.state, options.max_trips
        graph, plan = plan_model(options.source, *texts, options.align, in_rows=True)
        copied = tuple(move for move in copied_parts(graph, plan) if options.tensor in (move.source, move.destination))
    outside = next((value for value in plan.outside if value.value == options.tensor), None)
    if outside is not None:
        if options.in_json:
            print_json({"tensor": outside.value, "planned": False, **asdict(outside)})
        else:
            words = f"{outside.value}: {outside.type}, without bytes in the plan: {outside.reason}"
            answer_console().print(Text(printable(words)))
        return
    facts = tensor_facts(plan, options.tensor)
    facts = replace(facts, moves=facts.moves + copied)
    if options.in_json:
        print_json({**facts_json(plan, facts), "checked": not from_file})
    else:
        print_facts(plan, facts, UNCHECKED if from_file else "")


def _is_plan(path: Path) -> bool:
    """Return True for a file with a plan: of no model's suffix, or JSON with the fields of a plan."""
    if integration_of_file(path) is None:
        return path.suffix.lower() != TEXT_SUFFIX
    if path.suffix.lower() != ".json":
        return False
    raw = parse_json(read_text(path, PlanError), str(path), PlanError)
    return isinstance(raw, dict) and {"placements", "fingerprint"} <= raw.keys()
