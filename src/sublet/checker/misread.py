"""What is said when bytes are read that are not those of a value."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.base.errors import Finding
from sublet.checker.layout import span
from sublet.checker.memory import Segment
from sublet.ir.graph import Value
from sublet.plan import Region

SHOWN = 3
"""How many ranges of wrong bytes a message lists."""


def misread(
    value: Value, region: Region, wrong: Sequence[Segment], where: str, rule: str, names: tuple[str, ...]
) -> Finding:
    """A value is read in a region where some bytes are wrong; `names` are it and who reads it."""
    known = next((segment for segment in wrong if segment.token is not None), None)
    found = "; ".join(_describe(segment) for segment in wrong[:SHOWN])
    more = f"; and {len(wrong) - SHOWN} more ranges" if len(wrong) > SHOWN else ""
    fix = f"keep the bytes of {value} until here"
    if known is not None and known.token != value.name:
        other = known.token
        fix = f"place {value} and %{other} apart, or read {value} before %{other} is written"
    what = f"reads {value} at {span(region)}, but {found}{more}"
    others = tuple(segment.token for segment in wrong[:SHOWN] if segment.token is not None)
    return Finding(rule or ("clobbered" if known is not None else "undefined"), where, what, fix, names + others)


def _describe(segment: Segment) -> str:
    place = f"bytes [{segment.begin}, {segment.end})"
    if segment.token is None:
        return f"{place} hold nothing known ({segment.writer})"
    start = segment.begin - segment.base
    return f"{place} hold bytes [{start}, {start + segment.end - segment.begin}) of %{segment.token}, " + (
        f"written by {segment.writer}"
    )
