"""`make bench-all` writes result files of one schema, and the site draws every row of these files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks.all import BENCHMARKS, Benchmark, run_all, write_benchmark
from benchmarks.packing_generated import KINDS, best_fit_with_reuse, cut_rectangles
from benchmarks.results import RESULTS, Row, exact_row, round_rows, versions, write_result
from docs import benchmark_plots
from sublet.packing import Buffer, Problem, check_packing, pack
from tests.support.prose import ROOT

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
MACHINE = {"processor": TEXT, "cores": NUMBER, "memory_gib": NUMBER, "load": {"type": ["number", "null"]}}
FIELDS = {"case": TEXT, "series": TEXT, "value": NUMBER, "unit": TEXT, "low": NUMBER, "high": NUMBER}


def closed(properties: dict[str, Any], **optional: Any) -> dict[str, Any]:
    every = {**properties, **optional}
    return {"type": "object", "properties": every, "required": [*properties], "additionalProperties": False}


SCHEMA = closed(
    {
        **dict.fromkeys(("name", "title", "about", "command", "peer"), TEXT),
        "machine": closed(MACHINE),
        "versions": {"type": "object", "required": ["python", "sublet"], "additionalProperties": TEXT},
        "quick": {"type": "boolean"},
        "rows": {"type": "array", "minItems": 1, "items": closed(FIELDS, at={"type": "integer"})},
    }
)
CHEAP = replace(next(b for b in BENCHMARKS if b.name == "packing_generated"), quick={"seconds": 0.2, "seeds": (0,)})
FAILING = Benchmark("no_such_module", "None", "Nothing.", "Sublet")


def result(rows: list[Row], peer: str = "peer", quick: bool = False) -> dict[str, Any]:
    """Return a result file as read."""
    written = [{key: value for key, value in vars(row).items() if value is not None} for row in rows]
    machine = {"processor": "a <processor>", "cores": 2, "memory_gib": 8, "load": 0.5}
    head = {"name": "some", "title": "Some", "about": "A & B.", "command": "python -m benchmarks.all some"}
    return {**head, "peer": peer, "machine": machine, "versions": {"python": "3"}, "quick": quick, "rows": written}


def drawn(text: str) -> list[ET.Element]:
    """Return the SVG elements of a page."""
    pieces = [piece.partition("</svg>")[0] for piece in text.split("<svg ")[1:]]
    return [ET.fromstring(f"<svg {piece}</svg>") for piece in pieces]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_result_files_have_the_schema_and_name_no_path(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    jsonschema.validate(content, SCHEMA)
    assert content["name"] == path.stem in {benchmark.name for benchmark in BENCHMARKS}
    assert all(row["low"] <= row["value"] <= row["high"] for row in content["rows"])
    assert not any(folder in text for folder in ("/home", "/root", "/tmp", "/work", str(ROOT)))


def test_a_quick_benchmark_writes_its_file(tmp_path: Path) -> None:
    quick = replace(CHEAP, quick={**CHEAP.quick, "kinds": ("layers, 150",)})
    assert run_all([quick], True, tmp_path) == {}
    content = json.loads((tmp_path / "packing_generated.json").read_text(encoding="utf-8"))
    jsonschema.validate(content, SCHEMA)
    ratios = {row["series"]: row["value"] for row in content["rows"]}
    assert ratios["Sublet"] == min(ratios.values()) == ratios["lower bound"] == 1.0
    assert ratios["best fit with reuse"] > 1.0
    assert content["versions"]["ortools"] == versions(["ortools"])["ortools"]


def test_a_failing_benchmark_leaves_the_others_and_the_old_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    old = tmp_path / "no_such_module.json"
    old.write_text("an earlier run", encoding="utf-8")
    quick = replace(CHEAP, quick={**CHEAP.quick, "kinds": ("cut rectangles, 60",)})
    failed = run_all([FAILING, replace(FAILING, module="left", quick=None), quick], True, tmp_path)
    assert "No module named 'benchmarks.no_such_module'" in failed.pop("no_such_module")
    assert not failed
    assert old.read_text(encoding="utf-8") == "an earlier run"
    assert {path.name for path in tmp_path.iterdir()} == {"no_such_module.json", "packing_generated.json"}
    assert "left: left out of --quick" in capsys.readouterr().out


def test_a_benchmark_without_rows_writes_no_file(tmp_path: Path) -> None:
    empty = replace(CHEAP, quick={"kinds": ()})
    assert write_benchmark(empty, True, tmp_path, {}) == "no row was measured"
    assert not list(tmp_path.iterdir())


def test_every_benchmark_has_a_function_of_rows() -> None:
    for benchmark in BENCHMARKS:
        path = ROOT / "benchmarks" / f"{benchmark.module.replace('.', '/')}.py"
        assert "\ndef result_rows(" in path.read_text(encoding="utf-8")
    assert len({benchmark.name for benchmark in BENCHMARKS}) == len(BENCHMARKS) >= 8


def test_bars_show_each_case_and_ratio() -> None:
    rows = [
        *round_rows("net <1>", {"peer": [2.0, 4.0, 5.0], "Sublet": [1.0, 2.0, 3.0]}, "ms"),
        *round_rows("net 2", {"peer": [10.0], "Sublet": [7.5]}, "ms"),
        exact_row("net 3", "Sublet", 1.0, "ms"),
    ]
    text = "\n".join(benchmark_plots.result_parts(result(rows)))
    (plot,) = drawn(text)
    said = [element.text for element in plot.iter("text")]
    assert said[:3] == ["net <1>", "peer: 1 (0.5 to 1.25)", "Sublet: 0.5 (0.25 to 0.75)"]
    assert said[3:] == ["net 2", "peer: 1", "Sublet: 0.75"]
    widths = {rect.get("class"): float(rect.get("width").removesuffix("%")) for rect in plot.iter("rect")}  # type: ignore[union-attr]
    assert widths["ours"] / widths["peer"] == pytest.approx(0.75, abs=1e-3)
    ranges = [line for line in plot.iter("line") if line.get("class") == "range"]
    assert len(ranges) == 2
    assert plot.find("title").text == "Some: ms, divided by those of peer"  # type: ignore[union-attr]
    labels = plot.get("aria-labelledby", "").split()
    assert labels == [element.get("id") for element in plot if element.tag in ("title", "desc")]
    assert text.count("<tr>") == 1 + len(rows)
    assert "<td>net 3</td>" in text  # without a ratio, but in the table
    assert "A & B." in text
    assert "quick run" not in text
    assert "quick run" in benchmark_plots.caption(result(rows, quick=True))


def test_curves_show_each_point() -> None:
    points = ((100_000_000, 1.0), (50_000_000, 1.1), (25_000_000, 1.4))
    rows = [exact_row("net", "Sublet", value, "of the time", at) for at, value in points]
    rows.append(exact_row("net", "segments", 1.2, "of the time", 60_000_000))
    (plot,) = drawn("\n".join(benchmark_plots.result_parts(result(rows, peer=""))))
    circles = Counter(circle.find("title").text for circle in plot.iter("circle"))  # type: ignore[union-attr]
    wanted = [f"{row.series}: {row.at:,} bytes, {benchmark_plots.short(row.value)}" for row in rows]
    assert circles == Counter(wanted)
    ours = [circle for circle in plot.iter("circle") if circle.get("class") == "ours"]
    across = [float(circle.get("cx", "").removesuffix("%")) for circle in ours]
    assert across == sorted(across)
    assert [float(circle.get("cy", "")) for circle in ours] == sorted(float(circle.get("cy", "")) for circle in ours)
    assert 0 < across[0] < across[-1] <= 100


def test_the_page_has_plots_with_and_without_results(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert page.count(benchmark_plots.MARKER) == 1
    assert benchmark_plots.plots_markdown(tmp_path) == "This site was built without result files."
    head = {key: value for key, value in result([]).items() if key != "rows"}
    write_result(tmp_path / "some.json", head, round_rows("net", {"peer": [2.0], "Sublet": [1.0]}, "ms"))
    assert len(drawn(benchmark_plots.plots_markdown(tmp_path))) == 1
    committed = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    text = benchmark_plots.plots_markdown()
    assert len(drawn(text)) >= len(committed)
    assert [each["name"] for each in committed if f"#plots-{each['name']} " not in text] == []


def test_best_fit_with_reuse_takes_the_smallest_hole_and_grows_at_the_end() -> None:
    sizes_and_lives = [(40, 0, 2), (8, 0, 9), (16, 0, 3), (8, 0, 9), (12, 4, 6), (30, 4, 6), (50, 6, 9)]
    problem = Problem(tuple(Buffer(str(i), *each) for i, each in enumerate(sizes_and_lives)))
    packing = best_fit_with_reuse(problem)
    check_packing(problem, packing)
    assert packing.offsets == (0, 40, 48, 64, 48, 0, 72)
    assert packing.arena_bytes == 122


def test_best_fit_with_reuse_grows_the_free_bytes_at_the_end() -> None:
    problem = Problem((Buffer("a", 8, 0, 9), Buffer("b", 8, 0, 2), Buffer("c", 20, 3, 9)))
    packing = best_fit_with_reuse(problem)
    assert (packing.offsets, packing.arena_bytes) == ((0, 8, 8), 28)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_problems_depend_on_the_seed_alone(kind: str) -> None:
    first, second = KINDS[kind](1), KINDS[kind](1)
    assert first == second
    assert first != KINDS[kind](2)
    check_packing(first, best_fit_with_reuse(first))


def test_cut_rectangles_fill_the_arena_without_a_hole() -> None:
    problem = cut_rectangles(20, 3)
    assert pack(problem).packing.arena_bytes == 1 << 20
    used = sum(buffer.size * (buffer.upper - buffer.lower) for buffer in problem.buffers)
    assert used == (1 << 20) * 800
