"""Text form of the dataflow sets: use, def, live-in and live-out of each point."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sublet.analysis.liveness import live_sets
from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.lives.flow import Flow, Point, flow
from sublet.frontends.paddle.lives.scopes import Place


def live_lines(program: Program, keep: Collection[Place] = ()) -> Iterator[str]:
    """Yield a paragraph for each point, in the order of the flow.

    Persistable variables are live everywhere, and left out.
    """
    laid = flow(program, keep)
    lasting = {place for place in laid.points[0].defs if program.blocks[place.block].vars[place.name].persistable}
    for index, (point, (into, out)) in enumerate(zip(laid.points, live_sets(laid), strict=True)):
        yield f"{index}: {_title(program, point)}{_edges(laid, index)}"
        for word, places in (("use", point.uses), ("def", point.defs), ("live_in", into), ("live_out", out)):
            yield f"    {word:8} = {_set(each for each in places if each not in lasting)}"


def _title(program: Program, point: Point) -> str:
    """Return the name of a point: block, operator and kind."""
    if point.op < 0:
        return point.kind
    op = program.blocks[point.block].ops[point.op]
    part = "" if point.kind == "op" else f" ({point.kind})"
    return f"block {point.block}, operator {point.op}: {op.type}{part}"


def _edges(laid: Flow, index: int) -> str:
    """Return the successors of a point as text; "" if the next point is the only successor."""
    others = [follower for follower in laid.followers[index] if follower != index + 1]
    return f" -> {', '.join(map(str, laid.followers[index]))}" if others else ""


def _set(places: Iterable[Place]) -> str:
    """Return variables as text, sorted."""
    return f"{{{', '.join(sorted(map(str, places)))}}}"
