"""The HTML page as text: what it holds, and what it must not."""

from __future__ import annotations

import io
import json
import re
import zlib
from array import array
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sublet.base.errors import SubletError
from sublet.checker.external.files import judge_plan_file
from sublet.cli.check import judgement_picture
from sublet.plan import RUN, PlanPoint
from sublet.viz.page import Columns, render_page, write_html
from sublet.viz.terminal import memory_map
from sublet.viz.view_model import picture_of_plan
from tests.viz.loops import delay_plan
from tests.viz.synthetic import network_plan, small_plan


def unpacked(page: str) -> tuple[dict[str, Any], bytes]:
    block = re.search(r'<script type="text/plain" id="model">([^<]*)</script>', page)
    assert block is not None
    content = zlib.decompress(b64decode(block[1]))
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def test_the_page_holds_every_name_and_number() -> None:
    model, columns = unpacked(render_page(picture_of_plan(small_plan())))
    assert model["words"][:7] == ["start", "conv1", "flatten", "pool", "relu", "gemm", "softmax"]
    assert model["words"][7:14] == ["image", "x", "y", "z", "a", "late", "twice"]
    kind, position, count = model["placements"]["offset"]
    assert (kind, count) == ("u16", 7)
    offsets = array("H", columns[position : position + 2 * count])
    assert offsets.tolist() == [3072, 0, 0, 0, 3072, 3072, 5120]


def test_the_page_holds_bands_rounds_and_pointers() -> None:
    model, columns = unpacked(render_page(picture_of_plan(delay_plan())))
    assert [band[0] for band in model["bands"]][:2] == ["turn: iteration 0", "turn: iteration 1"]
    assert [name for name, _, _ in model["pointers"]] == ["f", "g", "p", "q"]
    kind, position, count = model["placements"]["rounds"]
    told = [model["words"][at] for at in array({"u8": "B", "u16": "H"}[kind], columns[position:])[:count]]
    assert told.count("") == 4  # x, y, n and the stacked rows are always where they are
    assert "iteration 1 of turn; iterations 3, 5, 7, … of turn" in told


def test_the_page_asks_for_nothing() -> None:
    page = render_page(picture_of_plan(network_plan(50)))
    assert "@@" not in page
    assert not re.search(r"https?:|//\w+\.|\bsrc\s*=|<link|@import|url\((?!#)|fetch\(|XMLHttpRequest", page)
    assert "default-src 'none'" in page


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_page() -> None:
    page = render_page(picture_of_plan(small_plan()))
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for text in (script, style):
        assert f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in page
    assert "unsafe" not in page


def test_no_name_gets_into_the_markup() -> None:
    hostile = "</script><script>alert(1)</script>"
    plan = replace(small_plan(), graph=hostile, points=(PlanPoint(RUN, hostile),) * 7)
    page = render_page(picture_of_plan(plan))
    assert "alert" not in page
    assert page.count("<script") == 2
    assert unpacked(page)[0]["title"] == hostile


def test_half_characters_do_not_stop_the_page() -> None:
    page = render_page(picture_of_plan(replace(small_plan(), graph="bad \ud800 name")))
    assert page.encode("utf-8")


def test_the_same_plan_gives_the_same_page() -> None:
    assert render_page(picture_of_plan(network_plan(80))) == render_page(picture_of_plan(network_plan(80)))


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SubletError, match="cannot be written"):
        write_html(picture_of_plan(small_plan()), tmp_path / "missing" / "plan.html")
    (tmp_path / "plan.html").mkdir()
    with pytest.raises(SubletError, match="cannot be written"):
        write_html(picture_of_plan(small_plan()), tmp_path / "plan.html")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


@pytest.mark.parametrize(
    ("largest", "kind", "width"),
    [(255, "u8", 1), (256, "u16", 2), (1 << 31, "u32", 4), (1 << 32, "f64", 8), (1 << 53, "u64", 8)],
)
def test_columns_are_as_narrow_as_their_numbers_and_aligned(largest: int, kind: str, width: int) -> None:
    columns = Columns()
    assert columns.add([1]) == ("u8", 0, 1)
    assert columns.add([0, largest]) == (kind, 8, 2)
    content = zlib.decompress(b64decode(columns.to_base64({})))
    assert len(content) == 8 + 8 + 8 + (8 if width < 8 else 16)


def test_a_refused_plan_has_neither_a_bound_nor_a_gap() -> None:
    program = Path(__file__).parents[1] / "integrations" / "executorch" / "programs" / "nested.pte"
    picture = judgement_picture(judge_plan_file(program))
    model, _ = unpacked(render_page(picture))
    assert "is wrong" in model["figures"]["claimed"]
    assert (model["figures"]["lowerBound"], model["figures"]["gap"], model["figures"]["proof"]) == (None, None, "")
    output = io.StringIO()
    Console(width=80, file=output).print(memory_map(picture, width=80, height=16))
    assert output.getvalue().rstrip().endswith("arena 496 B  no lower bound")
