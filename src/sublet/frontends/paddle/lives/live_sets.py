"""Text form of the dataflow sets: use, def, live-in and live-out of each point."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sublet.analysis.liveness import live_in_out
from sublet.frontends.paddle.format.program import PaddleProgram
from sublet.frontends.paddle.lives.control_flow import PaddleFlow, PaddlePoint, build_flow
from sublet.frontends.paddle.lives.scopes import ScopedVariable


def live_lines(program: PaddleProgram, keep: Collection[ScopedVariable] = ()) -> Iterator[str]:
    """Yield a paragraph for each point, in the order of the flow.

    Persistable variables are live everywhere, and left out.
    """
    flow = build_flow(program, keep)
    lasting = {place for place in flow.points[0].defs if program.blocks[place.block].vars[place.name].persistable}
    for index, (point, (into, out)) in enumerate(zip(flow.points, live_in_out(flow), strict=True)):
        yield f"{index}: {_point_title(program, point)}{_edges_text(flow, index)}"
        for word, places in (("use", point.uses), ("def", point.defs), ("live_in", into), ("live_out", out)):
            yield f"    {word:8} = {_set_text(each for each in places if each not in lasting)}"


def _point_title(program: PaddleProgram, point: PaddlePoint) -> str:
    """Return the name of a point: block, operator and kind."""
    if point.op < 0:
        return point.kind
    op = program.blocks[point.block].ops[point.op]
    part = "" if point.kind == "op" else f" ({point.kind})"
    return f"block {point.block}, operator {point.op}: {op.type}{part}"


def _edges_text(flow: PaddleFlow, index: int) -> str:
    """Return the successors of a point as text; "" if the next point is the only successor."""
    others = [follower for follower in flow.successors[index] if follower != index + 1]
    return f" -> {', '.join(map(str, flow.successors[index]))}" if others else ""


def _set_text(places: Iterable[ScopedVariable]) -> str:
    """Return variables as text, sorted."""
    return f"{{{', '.join(sorted(map(str, places)))}}}"
