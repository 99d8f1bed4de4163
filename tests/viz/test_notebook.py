"""Plans in a notebook: the HTML is small, has no script, escapes names, and shows the numbers of the plan."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import sublet
from sublet.base.formatting import human
from sublet.plan import MemoryPlan
from sublet.plan.verdict import Advice, Advised
from sublet.viz.view_model import picture_of_plan
from tests.cli.test_startup import modules_after
from tests.viz.loops import delay_plan
from tests.viz.synthetic import network_plan, small_plan

HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\x1b[2J\u202e"
MAX_BYTES = 200_000


class Elements(HTMLParser):
    """Parses HTML: the start tags with attributes, and the text of each element; every element must end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append((self._open[-1], text))


def hostile_plan() -> MemoryPlan:
    """A plan of two arenas; the graph, all points, an arena and the value `x` have a hostile name."""
    plan = small_plan()
    arena, weight = replace(plan.storages[0], name=HOSTILE), plan.storages[1]
    placements = tuple(
        replace(
            place,
            value=HOSTILE if place.value == "x" else place.value,
            shares=HOSTILE if place.shares == "x" else place.shares,
            region=replace(place.region, storage=HOSTILE) if place.buffer >= 0 else place.region,
        )
        for place in plan.placements
    )
    points = tuple(replace(point, node=HOSTILE) for point in plan.points)
    storages = (arena, replace(arena, name="second"), weight)
    return replace(plan, graph=HOSTILE, placements=placements, points=points, storages=storages)


@pytest.mark.parametrize(
    "plan", [small_plan(), delay_plan(), network_plan(400), network_plan(4000), hostile_plan()], ids=range(5)
)
def test_a_map_is_small_and_well_formed_without_scripts(plan: MemoryPlan) -> None:
    html = plan._repr_html_()
    assert len(html.encode()) < MAX_BYTES
    for tag, attributes in Elements(html).tags:
        assert tag in {"div", "b", "span", "svg", "g", "rect", "title", "text", "path"}
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "src")]
    assert html == plan._repr_html_()


def test_hostile_names_stay_text() -> None:
    html = hostile_plan()._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert not {"\x1b", "\u202e"} & set(html)
    names = [text for tag, text in Elements(html).texts if tag in ("title", "b")]
    assert any(text.startswith("</title></svg><script>alert(1)") for text in names)


def test_a_map_of_long_hostile_names_is_bounded() -> None:
    plan = network_plan(2000)
    long = tuple(replace(place, value=place.value + 10_000 * '"') for place in plan.placements)
    assert len(replace(plan, placements=long)._repr_html_().encode()) < MAX_BYTES


@pytest.mark.parametrize("plan", [small_plan(), delay_plan(), network_plan(400)], ids=range(3))
def test_the_figures_are_those_of_the_plan(plan: MemoryPlan) -> None:
    elements = Elements(plan._repr_html_())
    exact = [attributes["title"] for tag, attributes in elements.tags if tag == "span"]
    figures = plan.arena_bytes, plan.lower_bound_bytes, plan.total_bytes, plan.peak.nbytes
    assert exact == [f"{nbytes:,} bytes" for nbytes in figures]
    assert [text for tag, text in elements.texts if tag == "span"] == [human(nbytes) for nbytes in figures]


@pytest.mark.parametrize("plan", [small_plan(), delay_plan()], ids=range(2))
def test_rectangles_lie_where_and_when_the_plan_says(plan: MemoryPlan) -> None:
    picture, elements = picture_of_plan(plan), Elements(plan._repr_html_())
    (view,) = (attributes["viewbox"] for tag, attributes in elements.tags if tag == "svg")
    width, height = map(float, (view or "").split()[2:])
    across, up = (picture.end - picture.begin) / width, picture.top_address / height
    boxes = [attributes for tag, attributes in elements.tags if tag == "rect"]
    assert len(boxes) == len(picture.rectangles)
    for piece, box in zip(picture.rectangles, boxes, strict=True):
        x, y, wide, tall = (float(box[name] or 0) for name in ("x", "y", "width", "height"))
        assert (x * across, wide * across) == pytest.approx((piece.begin, piece.end - piece.begin), abs=0.1 * across)
        assert (height - y - tall) * up == pytest.approx(piece.offset, abs=0.11 * up)
        assert tall * up == pytest.approx(piece.nbytes, abs=0.1 * up)
    titles = [text for tag, text in elements.texts if tag == "title"]
    for piece, title in zip(picture.rectangles, titles, strict=False):
        assert title.startswith(f"{picture.placements[piece.placement].value}")
        assert title.endswith(f": {piece.nbytes:,} bytes, points {piece.begin} to {piece.end - 1}")


def test_a_large_plan_is_sampled_and_says_so() -> None:
    html = network_plan(4000)._repr_html_()
    named = sum(tag == "rect" for tag, _ in Elements(html).tags)
    total = len(picture_of_plan(network_plan(4000)).rectangles)
    assert f"the map names the {named:,} largest of {total:,} rectangles" in html
    assert re.search(r'<path fill="#\w+" d="M\d+ \d+h', html)


def test_an_executable_shows_its_plan_and_advice_its_savings() -> None:
    graph = sublet.parse("graph @net(%x: f32[16]) { %a: f32[16] = onnx.Relu(%x) return %a }")
    network = sublet.compile(graph)
    assert network._repr_html_() == network.plan._repr_html_()
    np.testing.assert_array_equal(network(x=np.ones(16, np.float32))["a"], np.ones(16, np.float32))
    advised = Advised(
        (Advice("option", HOSTILE, "--order less", 1000, 24), Advice("model", "b", "c", 1024, 0)), ("d: no",), "timeout"
    )
    html = advised._repr_html_()
    elements = Elements(html)
    assert "<script" not in html
    assert ("td", "24 B") in elements.texts
    assert [a["title"] for tag, a in elements.tags if tag == "td" and a] == ["24 bytes", "1,000 bytes"]
    assert ("div", "1 without a smaller arena; 1 without a plan; not everything was tried: timeout") in elements.texts


def test_a_plan_outside_a_notebook_loads_no_picture() -> None:
    assert not {name for name in modules_after("import sublet.plan.verdict") if name.startswith("sublet.viz")}
