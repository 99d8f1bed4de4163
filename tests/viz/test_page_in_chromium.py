"""The HTML page in a real browser: what people see, point at and click."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sublet import SGD, Graph, nn, train_step
from sublet.base.formatting import human
from sublet.ir.recipe import Recipe
from sublet.packing.problem import Buffer, Packing, Problem
from sublet.plan import ARENA, MemoryPlan, Placement, Region, UnplannedValue
from sublet.planning.budget.search import BudgetSearch
from sublet.viz.frontier import frontier_of
from sublet.viz.page import write_html
from sublet.viz.view_model import Picture, picture_of_packing, picture_of_plan
from tests.viz.chromium import PROGRAM, Chromium
from tests.viz.synthetic import network_plan, plan_of, small_plan

AXE = Path(__file__).parents[2] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian package chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


class Page:
    """One page of ours in the browser, in the words of these tests."""

    def __init__(self, browser: Chromium, picture: Picture, folder: Path) -> None:
        self.browser = browser
        self.path = folder / "plan.html"
        write_html(picture, self.path)
        browser.events.clear()
        browser.open(self.path)

    def text(self, selector: str) -> str:
        return str(self.browser.evaluate(f"document.querySelector({selector!r}).innerText"))

    def at(self, name: str) -> tuple[float, float]:
        spot = self.browser.evaluate(f"sublet.locate({name!r})")
        return spot["x"], spot["y"]

    def hover(self, name: str) -> str:
        self.browser.mouse("Moved", *self.at(name))
        return self.text("#tip")

    def click(self, name: str) -> list[str]:
        """The lines of the panel after a click on a tensor."""
        self.browser.click(*self.at(name))
        return self.text("#panel").splitlines()

    def view(self) -> dict[str, float]:
        shown: dict[str, float] = self.browser.evaluate("sublet.view()")
        return shown

    def pixel(self, x: float, y: float) -> list[int]:
        """Red, green and blue under a point of the page."""
        script = (
            "(() => { const c = document.getElementById('base'), b = c.getBoundingClientRect(),"
            f" s = c.width / b.width, x = ({x} - b.left) * s, y = ({y} - b.top) * s;"
            " return Array.from(c.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3)); })()"
        )
        colour: list[int] = self.browser.evaluate(script)
        return colour


@pytest.fixture
def small(browser: Chromium, tmp_path: Path) -> Page:
    return Page(browser, picture_of_plan(small_plan()), tmp_path)


def after(lines: list[str], heading: str) -> list[str]:
    """The names listed under a heading of the panel."""
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    names = []
    for line in lines[start + 1 :]:
        if line.startswith(("Before, in these bytes", "After, in these bytes", "Between the live ranges")):
            break
        names.append(line)
    return [name for name in names if name]


def test_the_page_draws_without_complaint_and_asks_for_nothing_else(small: Page) -> None:
    assert small.browser.evaluate("sublet.rectangles") == 8
    assert small.browser.evaluate("sublet.firstPaintMs > 0 && sublet.lastDrawMs > 0") is True
    assert small.browser.complaints() == []
    assert small.browser.requests() == [small.path.resolve().as_uri()]


def test_the_header_tells_the_figures(small: Page) -> None:
    header = " ".join(small.text("header").split())
    for words in (
        "net",
        "Arena 6 KiB",
        "Gap 0 % no packing is smaller",
        "Without reuse 15 KiB 2.5 \N{MULTIPLICATION SIGN} the arena",
    ):
        assert words in header
    for words in ("Saved by views 3 KiB", "Saved in place 3 KiB", "first_fit_size", "Alignment 64 B", "weight 256 B"):
        assert words in header


def test_the_headline_claims_nothing_of_what_is_not_counted(browser: Chromium, tmp_path: Path) -> None:
    outside = tuple(UnplannedValue(f"n{i}", "i64[1,?]", "depends on <b>data</b>") for i in range(5))
    plan = replace(small_plan(), outside=outside, recipe=Recipe(assumed=(("x", "f32[1,4,16,16]"),)))
    page = Page(browser, picture_of_plan(plan), tmp_path)
    header = " ".join(page.text("header").split())
    assert "7 of 12 tensors planned; 5 outside, not counted: n0 i64[1,?], n1 i64[1,?], n2 i64[1,?] and 2 more" in header
    assert "Assumed: x is f32[1,4,16,16]" in header
    assert "Lower bound 6 KiB of the planned part" in header
    for word in ("Gap", "no packing is smaller", "0 %", "optimal"):
        assert word not in header
    browser.evaluate("document.querySelector('#outside').open = true")
    listed = page.text("#outside ul").split("\n")
    assert listed == [f"n{i} i64[1,?] depends on <b>data</b>" for i in range(5)]
    assert browser.complaints() == []


def test_rectangles_are_where_the_plan_says(small: Page) -> None:
    assert small.pixel(*small.at("image")) != small.pixel(*small.at("late"))
    assert small.pixel(*small.at("late")) == [0x99, 0xDD, 0xFF]
    assert small.pixel(*small.at("a")) == [0xEE, 0xDD, 0x88]


def test_the_tip_tells_all_about_a_tensor(small: Page) -> None:
    tip = " ".join(small.hover("y").split())
    assert tip.startswith("y Tensor f32[1,1024] Bytes 3 KiB (3,072 B) Producer flatten")
    assert "Live from flatten to pool (2 points)" in tip
    assert "Address 0 to 3,072" in tip
    assert "How view of x" in tip
    assert "Shared with x (own bytes), z (in place)" in tip


def test_the_tip_tells_of_several_lives(small: Page) -> None:
    assert "only at conv1; only at gemm" in small.hover("twice")


def test_the_tip_over_free_bytes_tells_what_is_live_there(small: Page) -> None:
    x, _ = small.at("a")
    _, y = small.at("twice")
    small.browser.mouse("Moved", x, y)
    tip = " ".join(small.text("#tip").split())
    assert tip.startswith("relu Live 4 KiB (4,096 B) Address 5,")
    assert tip.endswith("free here")


def test_a_click_follows_the_chain_of_reuse(small: Page) -> None:
    lines = small.click("a")
    assert lines[0] == "a"
    assert after(lines, "Before, in these bytes")[::3] == ["image"]
    assert after(lines, "After, in these bytes")[::3] == ["late"]
    assert after(lines, "After, in these bytes")[1] == "1 KiB"  # of late's 2 KiB only 1 was a's


def test_a_click_shows_who_shares_the_bytes_on_purpose(small: Page) -> None:
    lines = small.click("z")
    chain = after(lines, "Sharing one buffer: 3 tensors")
    assert chain[::3] == ["x", "y", "z"]
    assert chain[2].startswith("own bytes, from conv1 to flatten")
    assert chain[5].startswith("view of x")
    assert chain[8].startswith("in place of y")
    assert after(lines, "Before, in these bytes") == ["None: first use of these bytes."]


def test_a_click_dims_the_others_and_escape_clears(small: Page) -> None:
    before = small.pixel(*small.at("x"))
    small.click("late")
    assert small.pixel(*small.at("late")) == [0x99, 0xDD, 0xFF]
    assert small.pixel(*small.at("x")) != before
    small.browser.key("Escape")
    assert small.pixel(*small.at("x")) == before
    assert small.text("#panel h2") == "At the peak"


def test_the_panel_steps_on_by_its_buttons(small: Page) -> None:
    small.click("a")
    small.browser.evaluate("[...document.querySelectorAll('#panel button')].find(b => b.title === 'late').click()")
    small.browser.settle()
    assert small.text("#panel h2") == "late"


def test_before_anything_is_chosen_the_panel_tells_the_peak(small: Page) -> None:
    lines = small.text("#panel").splitlines()
    assert lines[0] == "At the peak"
    names = lines[lines.index("Live here, largest first") + 1 :]
    assert names[::3] == ["x", "image", "twice"]


def test_a_click_on_the_curve_lists_what_is_alive_there(small: Page) -> None:
    x, _ = small.at("late")
    bottom = small.browser.evaluate("document.getElementById('stage').getBoundingClientRect().bottom")
    small.browser.click(x - 30, bottom - 60)
    lines = small.text("#panel").splitlines()
    assert lines[0] == "At this point"
    names = lines[lines.index("Live here, largest first") + 1 :]
    assert names[::3] == ["z", "late", "twice"]


def test_the_wheel_zooms_about_the_pointer(small: Page) -> None:
    home = small.view()
    x, y = small.at("a")
    small.browser.mouse("Wheel", x, y, deltaX=0, deltaY=-200)
    near = small.view()
    assert near["t1"] - near["t0"] < 0.8 * (home["t1"] - home["t0"])
    assert near["a1"] - near["a0"] < 0.8 * (home["a1"] - home["a0"])
    assert small.at("a") == pytest.approx((x, y), abs=1)
    small.browser.mouse("Wheel", x, y, deltaX=0, deltaY=-200, modifiers=8)
    assert small.view()["a0"] == pytest.approx(near["a0"])
    assert small.view()["t0"] > near["t0"]
    wide = small.view()
    small.browser.mouse("Wheel", x, y, deltaX=0, deltaY=200, modifiers=1)
    assert small.view()["t0"] == pytest.approx(wide["t0"])
    assert small.view()["a1"] > wide["a1"]


def test_a_drag_pans_and_a_double_click_resets(small: Page) -> None:
    home = small.view()
    x, y = small.at("a")
    small.browser.mouse("Wheel", x, y, deltaX=0, deltaY=-200)
    near = small.view()
    small.browser.mouse("Pressed", x, y, button="left", clickCount=1)
    small.browser.mouse("Moved", x - 50, y + 20, button="left")
    small.browser.mouse("Released", x - 50, y + 20, button="left", clickCount=1)
    assert small.view()["t0"] > near["t0"]
    assert small.view()["a0"] > near["a0"]
    assert small.text("#panel h2") == "At the peak"  # a drag is no click
    small.browser.evaluate("document.getElementById('stage').dispatchEvent(new MouseEvent('dblclick'))")
    assert small.view() == home


def test_the_keyboard_reaches_everything(small: Page) -> None:
    home = small.view()
    small.browser.key("+")
    near = small.view()
    assert near["t1"] - near["t0"] < home["t1"] - home["t0"]
    small.browser.key("ArrowRight")
    assert small.view()["t0"] > near["t0"]
    small.browser.key("0")
    assert small.view() == home
    small.browser.key(".")
    assert small.text("#panel h2") == "image"
    small.browser.key(".")
    assert small.text("#panel h2") == "x"
    small.browser.key(",")
    assert small.text("#panel h2") == "image"
    small.browser.key("/")
    assert small.browser.evaluate("document.activeElement.id") == "search"
    small.browser.send("Input.insertText", text="TWI")
    small.browser.settle()
    assert small.text("#found") == "1 match"
    small.browser.key("Enter")
    assert small.text("#panel h2") == "twice"


def test_search_lights_the_matches_only(small: Page) -> None:
    small.browser.evaluate(
        "(() => { const s = document.getElementById('search'); s.value = 'a'; s.dispatchEvent(new Event('input')); })()"
    )
    small.browser.settle()
    assert small.text("#found") == "3 matches"  # image, a, late
    assert small.pixel(*small.at("late")) == [0x99, 0xDD, 0xFF]
    assert small.pixel(*small.at("z")) != [0xCE, 0x7A, 0x5E]


@pytest.mark.parametrize("mode", range(4))
def test_every_way_of_colouring_has_a_legend(small: Page, mode: int) -> None:
    small.browser.evaluate(
        f"(() => {{ const m = document.getElementById('mode'); m.value = {mode};"
        " m.dispatchEvent(new Event('change')); })()"
    )
    small.browser.settle()
    legend = small.text("#legend")
    expected = ("one colour a buffer", "own bytes", "from 1 KiB", "from 1 point")[mode]
    assert expected in legend
    assert "lower bound" in legend
    assert small.browser.complaints() == []


def test_hostile_names_are_only_text(browser: Chromium, tmp_path: Path) -> None:
    hostile = [
        "</script><script>window.hacked=1</script>",
        "<img src=x onerror=window.hacked=1>",
        "\"'><svg onload=window.hacked=1>",
        "${window.hacked=1}\u2028\u2029\x00",
        "__proto__",
        "a" * 3000,
        "@@MODEL@@",
    ]
    plan = small_plan()
    placements = [
        replace(place, value=name, producer=name, shares=name and place.shares and hostile[1], spec=name)
        for name, place in zip(hostile, plan.placements, strict=False)
    ]
    page = Page(browser, picture_of_plan(plan_of(placements, tuple(hostile), graph=hostile[0])), tmp_path)
    for name in (hostile[0], hostile[2], hostile[4]):
        assert name in page.hover(name)
        assert page.click(name)[0] == name
    assert page.text("#title") == hostile[0]
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.evaluate("document.querySelectorAll('img, svg, script').length") == 3
    assert browser.complaints() == []


def test_bytes_beyond_what_a_double_holds_are_told_exactly(browser: Chromium, tmp_path: Path) -> None:
    size = (1 << 60) + 1
    problem = Problem((Buffer("huge", size, -5, 5), Buffer("gap", 64, -5, 9, gaps=((0, 4),))), name="big")
    picture = picture_of_packing(problem, Packing((0, size), size + 64, "by_hand"))
    page = Page(browser, picture, tmp_path)
    tip = page.hover("huge")
    assert f"{size:,} B" in tip
    assert "from t = -5 to t = 4 (10 points)" in tip
    assert "How" not in tip
    browser.key(".")
    browser.key(".")
    assert page.text("#panel h2") == "gap"
    assert f"{size:,} to {size + 64:,}" in page.text("#panel")
    assert browser.complaints() == []


def empty_plan() -> MemoryPlan:
    return plan_of([], ())


def one_byte_plan() -> MemoryPlan:
    return plan_of([Placement("bit", "bool[]", Region(ARENA, 0, 1), ((0, 1),), 0)], ("only",))


@pytest.mark.parametrize("plan", [empty_plan(), one_byte_plan(), network_plan(1)], ids=["empty", "one-byte", "one"])
def test_the_smallest_plans_are_pages_too(browser: Chromium, tmp_path: Path, plan: MemoryPlan) -> None:
    page = Page(browser, picture_of_plan(plan), tmp_path)
    browser.key(".")
    browser.key("+")
    browser.mouse("Moved", 500, 400)
    assert page.text("#panel h2") != ""
    assert browser.complaints() == []


def test_a_click_on_a_point_of_a_frontier_shows_its_plan(browser: Chromium, tmp_path: Path) -> None:
    curve, pictures = frontier_of(chain().frontier([1 << 30, *range(80_000, 10_000, -14_000)]))
    assert len(pictures) > 2
    write_html(pictures[0], tmp_path / "curve.html", pictures[1:], curve)
    browser.events.clear()
    browser.open(tmp_path / "curve.html")
    for k, (spot, picture) in enumerate(zip(curve.points, pictures, strict=True)):
        if k:  # the page comes anew, with the plan that the fragment of its address names
            mark = f"document.querySelector('#frontier a[href=\"#point-{k}\"] .mark')"
            browser.evaluate(f"sublet.ready = false; {mark}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
            browser.wait()
        assert browser.evaluate("sublet.rectangles") == len(picture.rectangles)
        shown = browser.evaluate("document.querySelector('#spot').innerText")
        assert f"({spot.nbytes:,} B)" in shown
        assert "predicted" in shown
    assert browser.complaints() == []


def chain() -> BudgetSearch:
    """Of a step that needs less in several ways."""
    g = Graph("chain")
    h = g.input("x", (32, 64))
    for i in range(6):
        h = nn.gelu(h @ g.parameter(f"w{i}", (64, 64), initial=0.1))
    return BudgetSearch(train_step(nn.square(h).mean(), g.parameters, SGD(0.1)))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_canvas_has_the_pixels_of_the_screen(browser: Chromium, tmp_path: Path, scale: float) -> None:
    browser.resize(1000, 700, scale)
    try:
        page = Page(browser, picture_of_plan(small_plan()), tmp_path)
        width = browser.evaluate("document.getElementById('stage').getBoundingClientRect().width")
        assert browser.evaluate("document.getElementById('base').width") == round(width * scale)
        assert page.pixel(*page.at("late")) == [0x99, 0xDD, 0xFF]
    finally:
        browser.resize(1280, 800)


def test_the_page_follows_the_dark_scheme(small: Page) -> None:
    scheme = "getComputedStyle(document.body).backgroundColor"
    assert small.browser.evaluate(scheme) == "rgb(255, 255, 255)"
    light = small.pixel(*small.at("late"))
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    small.browser.send("Emulation.setEmulatedMedia", features=features)
    try:
        small.browser.settle()
        assert small.browser.evaluate(scheme) == "rgb(20, 23, 28)"
        assert sum(small.pixel(*small.at("late"))) < sum(light)
    finally:
        features[0]["value"] = "light"
        small.browser.send("Emulation.setEmulatedMedia", features=features)


def test_the_page_writes_bytes_as_python_does(browser: Chromium, tmp_path: Path) -> None:
    sizes = [1, 1023, 1024, 1152, 1536, 10_239, 10_240, 102_399, 1_048_575, 9_637_824, 123_456_789, 3 << 40]
    offset = 0
    placements = []
    for i, size in enumerate(sizes):
        placements.append(Placement(f"t{i}_", "", Region(ARENA, offset, size), ((i, i + 1),), i))
        offset += size
    page = Page(browser, picture_of_plan(plan_of(placements, tuple(f"p{i}" for i in range(len(sizes))))), tmp_path)
    for i, size in enumerate(sizes):
        browser.key(".")
        told = " ".join(page.text("#panel").split())
        exact = f"{size} B" if size < 1024 else f"{human(size)} ({size:,} B)"
        assert f"t{i}_ Bytes {exact} Live" in told


def test_tens_of_thousands_of_rectangles(
    browser: Chromium, tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = picture_of_plan(network_plan(15_000))
    page = Page(browser, picture, tmp_path)
    assert browser.evaluate("sublet.rectangles") == len(picture.rectangles) > 20_000
    paint = browser.evaluate("sublet.firstPaintMs")
    zooms = []
    for _ in range(8):
        browser.mouse("Wheel", 400, 500, deltaX=0, deltaY=-100)
        zooms.append(browser.evaluate("sublet.lastDrawMs"))
    name = picture.placements[9_000].value
    browser.evaluate(
        "(() => { const s = document.getElementById('search');"
        f" s.value = {name!r}; s.dispatchEvent(new Event('input')); }})()"
    )
    browser.evaluate("document.getElementById('next').click()")
    browser.settle()
    assert page.text("#panel h2") == name
    page.browser.mouse("Moved", *page.at(name))
    assert page.text("#tip strong") == name
    assert browser.complaints() == []
    size = page.path.stat().st_size
    record_property("first_paint_ms", paint)
    record_property("zoom_ms", max(zooms))
    with capsys.disabled():
        print(f"\n{len(picture.rectangles)} rectangles: first paint {paint:.0f} ms, ", end="")
        print(f"slowest zoom {max(zooms):.0f} ms, page {size / 1e6:.1f} MB", end=" ")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_saved_as_shown(browser: Chromium, tmp_path: Path, suffix: str) -> None:
    page = Page(browser, replace(picture_of_plan(network_plan(40)), title="model <1>.onnx"), tmp_path)
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.evaluate(f"document.getElementById({suffix!r}).click()")
    file = tmp_path / f"model_1_.onnx.{suffix}"
    for _ in range(200):
        if file.exists():
            break
        time.sleep(0.05)
    if suffix == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
        texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any("peak" in (text or "") for text in texts)
        shapes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
        assert len(shapes) > browser.evaluate("sublet.rectangles")
    assert not browser.complaints()
    assert page.path.exists()


def test_a_screen_reader_finds_no_fault(browser: Chromium, tmp_path: Path) -> None:
    """The rules of axe-core, of which `make axe` installs a copy."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make axe")
    for picture in (picture_of_plan(network_plan(40)), picture_of_plan(small_plan())):
        Page(browser, picture, tmp_path)
        browser.key(".")  # selects a tensor: the panel is filled
        browser.send("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
        faults = browser.evaluate(
            "axe.run().then(found => found.violations.map(each => `${each.impact} ${each.help}`))"
        )
        assert faults == []
        assert browser.evaluate("axe.run().then(found => found.passes.length)") > 20
