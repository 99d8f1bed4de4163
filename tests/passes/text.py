"""Passes in the text form: a graph before and after."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

from sublet import parse, to_text
from sublet.ir.graph import Graph
from sublet.ops.verify import verify


def becomes(run: Callable[[Graph], Graph], before: str, after: str) -> None:
    """Assert that the pass makes one text of the other, and leaves that alone."""
    given, expected = parse(dedent(before)), parse(dedent(after))
    verify(given)
    verify(expected)
    found = run(given)
    assert to_text(found) == to_text(expected)
    assert run(found) == found


def stays(run: Callable[[Graph], Graph], text: str) -> None:
    """Assert that the pass changes nothing."""
    becomes(run, text, text)
