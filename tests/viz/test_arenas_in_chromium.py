"""The page with memory regions, two plans, a budget, groups of nodes and spans of time, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sublet.analysis.options import Options
from sublet.base.formatting import human
from sublet.ir.text import parse
from sublet.plan import NodeDescription
from sublet.plan.verdict import Advice, Advised
from sublet.planning.pipeline import plan_memory
from sublet.viz.comparison import compare_pictures
from sublet.viz.view_model import picture_of_plan
from tests.planning.test_regions import NET, REGIONS
from tests.viz.chromium import PROGRAM, Chromium
from tests.viz.loops import delay_plan
from tests.viz.synthetic import network_plan, small_plan
from tests.viz.test_page_in_chromium import Page

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian package chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


def told(page: Page) -> dict[str, str]:
    """The figures of the header by their names."""
    cells = page.browser.evaluate(
        "Array.from(document.querySelectorAll('#figures > div'), (cell) => "
        "[cell.querySelector('dt').innerText, cell.querySelector('dd').innerText])"
    )
    return dict(cells)


def drag_over_the_curve(browser: Chromium, begin: float, end: float) -> None:
    low = browser.evaluate("document.getElementById('stage').getBoundingClientRect().bottom") - 60
    browser.mouse("Moved", begin, low)
    browser.mouse("Pressed", begin, low, button="left", clickCount=1)
    browser.mouse("Moved", end, low, button="left")
    browser.mouse("Released", end, low, button="left", clickCount=1)


def test_regions_have_addresses_of_their_own_and_no_common_gap(browser: Chromium, tmp_path: Path) -> None:
    plan = plan_memory(parse(NET), Options(regions=REGIONS))
    page = Page(browser, picture_of_plan(plan), tmp_path)
    places = {place.value: place.region for place in plan.placements}
    for name in ("a", "b"):
        region = places[name]
        assert f"{region.offset:,} to {region.end:,} in {region.storage}" in page.hover(name)
    cells = told(page)
    assert "Gap" not in cells
    assert "Lower bound" not in cells
    for arena, region in zip(plan.arenas, REGIONS, strict=True):
        assert cells[arena.name].startswith(f"{human(arena.nbytes)} of {human(region.capacity)}")
    assert not browser.complaints()


def test_two_plans_on_one_axis(browser: Chromium, tmp_path: Path) -> None:
    first = plan_memory(parse(NET))
    second = plan_memory(parse(NET), Options(strategy="no_reuse", share=False))
    page = Page(
        browser, compare_pictures(picture_of_plan(first), picture_of_plan(second), ("a.json", "b.json")), tmp_path
    )
    cells = told(page)
    assert cells["Arena of a.json"].startswith(human(first.arena_bytes))
    assert cells["Arena of b.json"].startswith(human(second.arena_bytes))
    assert f"{second.arena_bytes - first.arena_bytes:,} B more" in cells["Arena of b.json"]
    assert len(cells) == 2, "what is told of neither plan by name would be taken for both"
    lines = page.text("#panel").splitlines()
    assert lines[0] == "At the peak of a.json"
    for plan, name in ((first, "a.json"), (second, "b.json")):
        curve = picture_of_plan(plan).curve
        live = next(level for point, level in reversed(curve) if point <= first.peak.point)
        assert lines[lines.index(f"Live in {name}") + 1].startswith(human(live))
    assert not browser.complaints()


def test_sums_of_a_span_are_told_of_each_of_two_plans(browser: Chromium, tmp_path: Path) -> None:
    first = plan_memory(parse(NET))
    second = plan_memory(parse(NET), Options(strategy="no_reuse", share=False))
    page = Page(
        browser, compare_pictures(picture_of_plan(first), picture_of_plan(second), ("a.json", "b.json")), tmp_path
    )
    drag_over_the_curve(browser, 90, 900)
    lines = page.text("#panel").splitlines()
    for name, plan in (("a.json", first), ("b.json", second)):
        own = lines[lines.index(name) :]
        most = max(level for _, level in picture_of_plan(plan).curve)
        assert own[own.index("Live at most") + 1].startswith(human(most))
        assert own[own.index("Defined here") + 1].startswith(f"{len(plan.in_arenas)} tensors")


def test_a_value_of_two_plans_does_not_take_turns_with_itself(browser: Chromium, tmp_path: Path) -> None:
    loop = delay_plan()
    alone = Page(browser, picture_of_plan(loop), tmp_path).click("s")
    both = Page(browser, compare_pictures(picture_of_plan(loop), picture_of_plan(loop), ("a", "b")), tmp_path).click(
        "s"
    )
    turns = [line for line in alone if line.startswith("Placements by iteration")]
    assert turns == [line for line in both if line.startswith("Placements by iteration")]
    assert len(turns) == 1


def test_two_plans_that_are_not_proven_fit_a_phone(browser: Chromium, tmp_path: Path) -> None:
    browser.resize(390, 844)
    try:
        one = picture_of_plan(plan_memory(parse(NET)), "not checked against its model")
        page = Page(browser, compare_pictures(one, one, ("a" * 60 + ".json", "b.json")), tmp_path)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.text("#claimed") == "neither checked against its model"
        assert browser.evaluate("document.getElementById('claimed').getBoundingClientRect().right") <= 390
        assert f"b.json {human(one.arena_bytes)}" in page.text("#sums summary")
    finally:
        browser.resize(1280, 800)


def test_a_drag_over_the_curve_sums_the_span(browser: Chromium, tmp_path: Path) -> None:
    plan = small_plan()
    nodes = tuple(NodeDescription(name, f"onnx.{name.title()}", "") for name in map(str, plan.points))
    page = Page(browser, picture_of_plan(replace(plan, nodes=nodes)), tmp_path)
    drag_over_the_curve(browser, page.at("y")[0] + 4, page.at("late")[0] - 4)  # in the points 3 and 5
    lines = page.text("#panel").splitlines()
    assert lines[0] == "In this span"
    facts = dict(pairwise(lines))
    live = [
        sum(b.nbytes for b in picture_of_plan(plan).blocks if any(x <= t < y for x, y in b.live)) for t in range(3, 6)
    ]
    assert facts["Points"] == "3"
    assert facts["Live at most"].startswith(human(max(live)))
    assert facts["Defined here"].startswith("4 tensors")  # z, a, late and twice
    assert {"Relu", "Pool", "Gemm", "Shape"} & set(lines) == {"Relu", "Pool", "Gemm"}


def test_nodes_can_be_coloured_by_op_and_by_scope(browser: Chromium, tmp_path: Path) -> None:
    plan = network_plan(40)
    nodes = tuple(
        NodeDescription(name, f"onnx.{name.rpartition('/')[2].partition('_')[0]}", "") for name in map(str, plan.points)
    )
    page = Page(browser, picture_of_plan(replace(plan, nodes=nodes)), tmp_path)
    modes = browser.evaluate("Array.from(document.getElementById('mode').options, (o) => o.text)")
    assert {"by op", "by scope"} <= set(modes)
    for mode, word in (("by op", "MatMul"), ("by scope", "layer")):
        number = modes.index(mode)
        browser.evaluate(
            f"(() => {{ const m = document.getElementById('mode'); m.value = {number};"
            " m.dispatchEvent(new Event('change')); })()"
        )
        assert word in page.text("#legend")
    assert not browser.complaints()


def test_a_budget_is_drawn(browser: Chromium, tmp_path: Path) -> None:
    plan = small_plan()
    page = Page(browser, replace(picture_of_plan(plan), budget=plan.arena_bytes // 2), tmp_path)
    assert "budget" in page.text("#legend")
    assert "Budget" not in told(page)


def test_a_budget_above_the_arena_is_in_the_picture_or_a_figure(browser: Chromium, tmp_path: Path) -> None:
    plan = small_plan()
    page = Page(browser, replace(picture_of_plan(plan), budget=plan.arena_bytes * 3 // 2), tmp_path)
    assert "budget" in page.text("#legend")
    assert "Budget" not in told(page)
    assert browser.evaluate("window.sublet.view().a1") > plan.arena_bytes * 3 // 2
    page = Page(browser, replace(picture_of_plan(plan), budget=plan.arena_bytes * 3), tmp_path)
    assert "budget" not in page.text("#legend")
    assert told(page)["Budget"] == f"{human(plan.arena_bytes * 3)} far above the arena"


def test_a_budget_of_several_arenas_is_a_figure_and_no_line(browser: Chromium, tmp_path: Path) -> None:
    plan = plan_memory(parse(NET), Options(regions=REGIONS))
    page = Page(browser, replace(picture_of_plan(plan), budget=1 << 20), tmp_path)
    assert "budget" not in page.text("#legend")
    assert told(page)["Budget"] == "1 MiB for all arenas"


def test_a_phone_folds_the_figures(browser: Chromium, tmp_path: Path) -> None:
    browser.resize(390, 844)
    try:
        page = Page(browser, picture_of_plan(small_plan()), tmp_path)
        assert not page.browser.evaluate("document.getElementById('sums').open")
        arena = human(small_plan().arena_bytes)
        assert page.text("#sums summary") == f"Arena {arena}: figures and legend"
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.evaluate("document.getElementById('stage').getBoundingClientRect().top") < 220
    finally:
        browser.resize(1280, 800)


def test_advice_is_listed_beside_the_map(browser: Chromium, tmp_path: Path) -> None:
    advice = (
        Advice("option", "another order", "--order less", 1024, 2048, 512),
        Advice("what-if", "the largest tensor in f16", "half the precision", 2048, 1024),
        Advice("option", "inputs outside", "--io bound", 5120, -2048),
    )
    picture = replace(picture_of_plan(small_plan()), advice=Advised(advice, ("halves: no such axis",), "interrupted"))
    page = Page(browser, picture, tmp_path)
    first, second = page.text("#advice").split("the largest tensor in f16")
    assert "1 KiB" in first
    assert "2 KiB less, 512 B more outside the arena: --order less" in first
    assert "what if" in second
    rest = page.text("#panel")
    assert "Tried without success: --io bound." in rest
    assert "No plan: halves: no such axis" in rest
    assert "Not everything was tried: interrupted." in rest
    wide = browser.evaluate("document.querySelector('#advice b').getBoundingClientRect().width")
    assert wide > 60, "names have room"
