"""The picture by matplotlib, read back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.base.errors import SubletError
from sublet.plan import Placement
from sublet.viz.png import MAX_SVG_RECTANGLES, write_png
from sublet.viz.terminal import rgb, value_colour
from sublet.viz.view_model import picture_of_plan
from tests.viz.loops import delay_plan
from tests.viz.synthetic import network_plan, plan_of, small_plan

image = pytest.importorskip("matplotlib.image", reason="the extra png is not installed")


def test_every_buffer_is_in_the_png_in_its_colour(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    write_png(picture_of_plan(small_plan()), path)
    pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
    assert pixels.shape == (1152, 1920, 3)
    for block, how in ((0, "own"), (1, "view"), (1, "inplace"), (2, "own"), (3, "own"), (4, "own")):
        drawn = (pixels == rgb(value_colour(block, how))).all(axis=2).sum()
        assert drawn > 1000, (block, how)


def test_the_copies_of_a_loop_are_labelled(tmp_path: Path) -> None:
    path = tmp_path / "loop.svg"
    write_png(picture_of_plan(delay_plan()), path)
    text = path.read_text(encoding="utf-8")
    assert "<!-- turn: iteration 1 -->" in text
    assert "<!-- turn: iterations 2, 4, 6, … -->" in text
    write_png(picture_of_plan(delay_plan()), tmp_path / "loop.png")
    assert (tmp_path / "loop.png").stat().st_size > 10_000


def test_an_svg_has_one_path_a_rectangle_and_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.SVG"
    write_png(picture_of_plan(small_plan()), first)
    write_png(picture_of_plan(small_plan()), second)
    text = first.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    for block in range(5):
        assert value_colour(block, "own") in text
    assert first.read_bytes() == second.read_bytes()


def test_an_svg_of_too_many_rectangles_is_refused_with_advice(tmp_path: Path) -> None:
    picture = picture_of_plan(network_plan(MAX_SVG_RECTANGLES))
    with pytest.raises(SubletError, match=r"too many for an SVG \(at most 5000\); write a \.png or the HTML page"):
        write_png(picture, tmp_path / "plan.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["plan.jpg", "plan"])
def test_other_formats_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SubletError, match=r"is a \.png or \.svg file"):
        write_png(picture_of_plan(small_plan()), tmp_path / name)


def test_strange_names_and_an_empty_plan_are_drawn(tmp_path: Path) -> None:
    plan = small_plan()
    strange = ["$\\frac{x}$", "内存", "a\nb\x00c", "\ud800", "<b>&amp;", "_" * 500, "%d{}"]
    renamed = [Placement(name, *_rest(place)) for name, place in zip(strange, plan.placements, strict=False)]
    for kind in ("png", "svg"):
        write_png(picture_of_plan(plan_of(renamed, tuple(strange), graph=strange[0])), tmp_path / f"strange.{kind}")
        write_png(picture_of_plan(plan_of([], ())), tmp_path / f"empty.{kind}")
    assert len(list(tmp_path.iterdir())) == 4


def _rest(place: Placement) -> tuple[object, ...]:
    return (place.spec, place.region, place.live, place.buffer, place.how, place.shares, place.producer)


def test_thousands_of_rectangles_become_one_png(tmp_path: Path) -> None:
    picture = picture_of_plan(replace(network_plan(4000), graph="large"))
    write_png(picture, tmp_path / "large.png")
    assert image.imread(tmp_path / "large.png").shape == (1152, 1920, 4)


def test_pyplot_is_never_imported(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tests.viz.synthetic import small_plan\n"
        "from sublet.viz.png import write_png\n"
        "from sublet.viz.view_model import picture_of_plan\n"
        f"write_png(picture_of_plan(small_plan()), {str(tmp_path / 'plan.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    root = Path(__file__).parents[2]
    paths = [str(root), *sys.path]
    program = f"import sys; sys.path[:0] = {paths!r}\n{program}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
