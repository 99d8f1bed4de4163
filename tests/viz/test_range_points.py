"""The page of a plan over ranges: sliders select a shape, and the map of the shape."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest
from sublet.api.ranges import plan_ranges
from sublet.plan.ranges import RangedPlan
from sublet.viz.page import MOST_POINTS, points_of, write_html
from tests.cli.test_ranges import MODEL
from tests.viz.chromium import PROGRAM, Chromium


def planned(**dims: str | int) -> RangedPlan:
    """The plan of a concatenation over ranges."""
    model = onnx.parser.parse_model(MODEL)
    return plan_ranges(CompileRequest(model, dims={**dims, "t": "s"}), Options()).ranged


def test_the_first_map_has_the_largest_sizes_and_the_last_the_smallest() -> None:
    ranged = planned(n="1..4", s="8..512:8")
    stops, pictures = points_of(ranged)
    assert stops.extents["n"] == (1, 2, 3, 4)
    assert stops.extents["s"][0] == 8
    assert stops.extents["s"][-1] == 512
    assert all(extent % 8 == 0 for extent in stops.extents["s"])
    assert len(pictures) == len(stops.extents["n"]) * len(stops.extents["s"]) <= MOST_POINTS
    assert pictures[0].peak.nbytes == ranged.worst.peak.nbytes
    assert pictures[-1].peak.nbytes == 4 * 8 * 8 * 4  # two inputs of 8 rows, and both concatenated
    assert all(each.arena_bytes == ranged.worst.arena_bytes for each in pictures)


def test_one_range_has_more_stops_and_a_range_from_zero_has_zero() -> None:
    stops, _ = points_of(planned(n=1, s="0..1000"))
    assert len(stops.extents["s"]) > 16
    assert (stops.extents["s"][0], stops.extents["s"][1], stops.extents["s"][-1]) == (0, 1, 1000)


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian package chromium)")
def test_a_slider_shows_the_map_of_its_shape(tmp_path: Path) -> None:
    stops, pictures = points_of(planned(n="1..4", s="8..512:8"))
    write_html(pictures[0], tmp_path / "ranges.html", pictures[1:], ranges=stops)
    with Chromium() as browser:
        browser.open(tmp_path / "ranges.html")
        text = "document.querySelector('#ranges p').innerText"
        assert f"n=4, s=512, with 256 KiB ({pictures[0].peak.nbytes:,} B) live" in browser.evaluate(text)
        slider = "document.querySelectorAll('#ranges input')[1]"
        browser.evaluate(f"sublet.ready = false; {slider}.value = 0; {slider}.dispatchEvent(new Event('change'))")
        browser.wait()
        least = pictures[len(stops.extents["s"]) - 1]
        assert f"n=4, s=8, with 4 KiB ({least.peak.nbytes:,} B) live" in browser.evaluate(text)
        assert browser.evaluate(f"document.activeElement === {slider}")
        assert browser.evaluate(f"{slider}.getAttribute('aria-valuetext')") == "s = 8"
        assert browser.evaluate("sublet.rectangles") == len(least.rectangles)
        assert browser.complaints() == []
