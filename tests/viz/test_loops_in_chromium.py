"""Loops on the HTML page, in a real browser: bands, folding, rings and pointers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.viz.view_model import picture_of_plan
from tests.viz.chromium import PROGRAM, Chromium
from tests.viz.loops import delay_plan
from tests.viz.synthetic import small_plan
from tests.viz.test_page_in_chromium import Page

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian package chromium)")

BUTTON = "document.getElementById('fold')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


@pytest.fixture
def page(browser: Chromium, tmp_path: Path) -> Page:
    return Page(browser, picture_of_plan(delay_plan()), tmp_path)


def pressed(page: Page, title: str) -> list[str]:
    """The lines of the panel after one of its buttons was pressed."""
    script = f"[...document.querySelectorAll('#panel button')].find(b => b.title === {title!r}).click()"
    page.browser.evaluate(script)
    page.browser.settle()
    return page.text("#panel").splitlines()


def test_a_click_lists_the_ring_in_the_order_of_its_rounds(page: Page) -> None:
    lines = page.click("s")
    start = lines.index("Placements by iteration: 2")
    told = [line for line in lines[start:] if " of turn" in line]
    assert told == [
        "iteration 0 of turn; iterations 2, 4, 6, … of turn",
        "iteration 1 of turn; iterations 3, 5, 7, … of turn",
    ]
    assert "Iterations" in page.hover("s")
    assert page.browser.complaints() == []


def test_a_click_lights_the_whole_ring(page: Page) -> None:
    """The other place of %s stays bright, %x next to it does not."""
    x, y = page.at("x")
    before, place = page.pixel(x, y), page.pixel(*page.at("s"))
    page.click("s")
    assert page.pixel(*page.at("s")) == place
    assert page.pixel(x, y) != before
    lit = page.browser.evaluate("sublet.lit('s')")
    assert lit == [1, 1, 1, 1]  # two places, each alive in two pieces


def test_loops_fold_and_unfold(page: Page) -> None:
    wide, whole = page.view(), page.browser.evaluate("sublet.rectangles")
    assert page.browser.evaluate(f"{BUTTON}.hidden") is False
    page.browser.evaluate(f"{BUTTON}.click()")
    page.browser.settle()
    assert page.text("#fold") == "Unfold loops"
    # of 31 points are left: start, enter, one body of 6, one exit, end
    assert (wide["t1"], page.view()["t1"]) == (31, 10)
    assert page.browser.evaluate("sublet.rectangles") < whole
    assert [line for line in page.click("s") if line == "s"]
    page.browser.key("Escape")
    page.browser.key("f")
    assert page.text("#fold") == "Fold loops"
    assert page.view() == wide
    assert page.browser.evaluate("sublet.rectangles") == whole
    assert page.browser.complaints() == []


def test_what_is_folded_away_unfolds_when_it_is_found(page: Page) -> None:
    page.browser.key("f")
    assert page.text("#fold") == "Unfold loops"
    for _ in range(4):  # the four places of %r: three of them in copies that are folded away
        page.browser.evaluate(
            "(() => { const s = document.getElementById('search'); s.value = 'r'; s.dispatchEvent(new Event('input'));"
            " document.getElementById('next').click(); })()"
        )
    page.browser.settle()
    assert page.text("#fold") == "Fold loops"
    assert page.text("#panel h2") == "r"
    assert page.browser.complaints() == []


def test_pointers_are_listed_with_what_they_may_stand_for(page: Page) -> None:
    lines = page.text("#panel").splitlines()
    start = lines.index("Renamed loop-carried values, without bytes")
    assert [line for line in lines[start + 1 :] if line] == [
        *("f", "bound to x or y or s"),
        *("g", "bound to y or s"),
        *("p", "bound to x or y or s"),
        *("q", "bound to y or s"),
    ]
    lines = pressed(page, "g")
    assert lines[0] == "g"
    assert [line for line in lines[lines.index("May be bound to") :] if line in "xyz s"] == ["y", "s", "s"]
    assert pressed(page, "y")[0] == "y"
    assert page.browser.complaints() == []


def test_a_band_tells_its_rounds(page: Page) -> None:
    spot = page.browser.evaluate("sublet.band(0)")
    page.browser.mouse("Moved", spot["x"], spot["y"])
    assert page.text("#tip") == "turn: iteration 0"


def test_without_loops_there_is_nothing_to_fold(browser: Chromium, tmp_path: Path) -> None:
    page = Page(browser, picture_of_plan(small_plan()), tmp_path)
    assert browser.evaluate(f"{BUTTON}.hidden") is True
    page.browser.key("f")
    assert browser.evaluate("sublet.rectangles") == 8
    assert "Pointers" not in page.text("#panel")
