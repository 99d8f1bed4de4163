"""The finding for a read of wrong bytes."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.base.errors import Finding
from sublet.checker.layout import format_region
from sublet.checker.memory import MemorySegment
from sublet.ir.graph import Value
from sublet.plan import Region

SHOWN = 3
"""Ranges of wrong bytes listed in a message."""


def misread_finding(
    value: Value, region: Region, wrong: Sequence[MemorySegment], where: str, rule: str, names: tuple[str, ...]
) -> Finding:
    """Return the finding for a value read in a region with the wrong segments `wrong`.

    `names` are the value and the reader. Without `rule` the rule is "clobbered" if some wrong bytes are known, else
    "undefined".
    """
    known = next((segment for segment in wrong if segment.token is not None), None)
    descriptions = "; ".join(_describe_segment(segment) for segment in wrong[:SHOWN])
    more = f"; and {len(wrong) - SHOWN} more ranges" if len(wrong) > SHOWN else ""
    fix = f"keep the bytes of {value} until here"
    if known is not None and known.token != value.name:
        other = known.token
        fix = f"place {value} and %{other} apart, or read {value} before %{other} is written"
    what = f"reads {value} at {format_region(region)}, but {descriptions}{more}"
    others = tuple(segment.token for segment in wrong[:SHOWN] if segment.token is not None)
    return Finding(rule or ("clobbered" if known is not None else "undefined"), where, what, fix, names + others)


def _describe_segment(segment: MemorySegment) -> str:
    """Return a wrong segment in words."""
    place = f"bytes [{segment.begin}, {segment.end})"
    if segment.token is None:
        return f"{place} have no known content ({segment.writer})"
    start = segment.begin - segment.base
    return f"{place} hold bytes [{start}, {start + segment.end - segment.begin}) of %{segment.token}, " + (
        f"written by {segment.writer}"
    )
