"""Plans and packings that are spread over memory regions, from the command line to the checker."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sublet import Options, check, parse, plan_memory, verdict
from sublet.base.errors import CapacityError, ProblemError, SubletError
from sublet.cli.app import main
from sublet.cli.options import parse_regions
from sublet.packing import Lifetimes, MemoryRegion, Problem, check_packing, read_csv, read_problem
from sublet.packing.problem import Packing, select_buffers
from sublet.plan.file import load, save
from sublet.viz.view_model import picture_of_plan

NET = """
graph @net(%x: f32[16]) {
  %a: f32[64] = onnx.MatMul(%x, %x)
  %b: f32[16] = onnx.MatMul(%x, %a)
  %c: f32[16] = onnx.MatMul(%b, %x)
  %d: f32[16] = onnx.MatMul(%b, %c)
  return %d
}
"""
REGIONS = (MemoryRegion("fast", 192, 1), MemoryRegion("slow", 512, 10))


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["sublet", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_a_plan_has_one_arena_a_region_and_is_valid(tmp_path: Path) -> None:
    graph = parse(NET)
    plan = plan_memory(graph, Options(regions=REGIONS))
    assert [(s.name, s.kind, s.nbytes) for s in plan.arenas] == [("fast", "arena", 192), ("slow", "arena", 256)]
    assert plan.arena_bytes == 448
    where = {place.value: place.region.storage for place in plan.placements}
    assert where == {"x": "fast", "a": "slow", "b": "fast", "c": "fast", "d": "fast"}
    assert not check(graph, plan.schedule, plan)
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert len(plan.in_arenas) == 5
    assert plan.lower_bound_bytes <= plan.arena_bytes


@pytest.mark.parametrize(("often", "seldom"), [("a", "b"), ("b", "a")])
def test_what_is_read_often_lies_in_the_fast_region(often: str, seldom: str) -> None:
    graph = parse(
        f"""graph @net(%x: f32[16]) {{
          %a: f32[16] = onnx.MatMul(%x, %x)
          %b: f32[16] = onnx.MatMul(%x, %x)
          %c: f32[] = onnx.MatMul(%{often}, %x)
          %d: f32[] = onnx.MatMul(%{often}, %x)
          %e: f32[] = onnx.MatMul(%a, %b)
          return %c, %d, %e
        }}"""
    )
    plan = plan_memory(graph, Options(regions=(MemoryRegion("fast", 64, 1), MemoryRegion("slow", 512, 10)), io="bound"))
    where = {place.value: place.region.storage for place in plan.placements}
    assert (where[often], where[seldom]) == ("fast", "slow")


def test_the_checker_refuses_a_broken_plan_of_regions() -> None:
    graph = parse(NET)
    plan = plan_memory(graph, Options(regions=REGIONS))
    smaller = tuple(replace(s, nbytes=128) if s.name == "slow" else s for s in plan.storages)
    rules = {finding.rule for finding in check(graph, plan.schedule, replace(plan, storages=smaller))}
    assert rules == {"arena-size", "out-of-storage"}
    moved = tuple(
        replace(p, region=replace(p.region, storage="fast", offset=0)) if p.value == "a" else p for p in plan.placements
    )
    assert check(graph, plan.schedule, replace(plan, placements=moved))


def test_arenas_are_drawn_one_above_the_other_with_addresses_of_their_own() -> None:
    picture = picture_of_plan(plan_memory(parse(NET), Options(regions=REGIONS)))
    offsets = {place.value: place.region.offset for place in picture.placements}
    fast, slow = picture.arenas
    assert (fast.begin, fast.nbytes, fast.capacity) == (0, 192, 192)
    assert slow.begin > fast.end, "there is room between them"
    assert (offsets["a"] - slow.begin, slow.nbytes) == (0, 256)
    assert picture.top_address == slow.end
    for arena in picture.arenas:
        inside = [piece for piece in picture.rectangles if arena.begin <= piece.offset < arena.end]
        assert arena.bound == max(
            sum(piece.nbytes for piece in inside if piece.begin <= point < piece.end) for point in range(picture.end)
        )


def test_a_budget_of_several_arenas_is_held_against_their_sum() -> None:
    plan = plan_memory(parse(NET), Options(regions=REGIONS))
    assert verdict(plan, 448).fits
    refused = verdict(plan, plan.lower_bound_bytes - 1)
    assert not refused.fits
    assert sum(live.nbytes for live in refused.proof) > plan.lower_bound_bytes - 1


def test_too_small_regions() -> None:
    """A message names tensors, what they need, and what there is."""
    one = r"the buffer of .*%a.*: needs 256 bytes, 1 more than the largest region has \(only: 255\)"
    with pytest.raises(CapacityError, match=one):
        plan_memory(parse(NET), Options(regions=(MemoryRegion("only", 255), MemoryRegion("less", 100))))
    together = r"bytes are live at the same time.*: the buffer of .*%a.* of 256, the buffer of %"
    with pytest.raises(CapacityError, match=together):
        plan_memory(parse(NET), Options(regions=(MemoryRegion("only", 256),)))


def test_plan_and_check_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "net.sublet", tmp_path / "plan.json"
    model.write_text(NET)
    words = ("plan", model, "--region", "fast=192@1", "--region", "slow=512@10", "--out", out)
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "fast" in shown
    assert "256 bytes" in shown
    assert run(monkeypatch, *words, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["arenas"] == {"fast": 192, "slow": 256}
    assert content["bound_bytes"] == 0
    assert run(monkeypatch, "check", model, out) == 0
    assert run(monkeypatch, "show", out, "--html", tmp_path / "page.html") == 0
    capsys.readouterr()
    assert run(monkeypatch, "plan", model, "--region", "only=255") == 1
    assert "1 more than the largest region has" in " ".join(capsys.readouterr().err.split())


ROWS = "id,lower,upper,size,accesses\na,0,4,8,1\nb,0,4,8,9\nc,1,3,4,\n"


def test_pack_into_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "p.csv", tmp_path / "out.csv"
    source.write_text(ROWS)
    regions = ("--region", "sram=12", "--region", "dram=1KiB")
    assert run(monkeypatch, "pack", source, *regions, "--out", out, "--png", tmp_path / "p.png") == 0
    shown = capsys.readouterr().out
    assert ["sram", "12", "B", "12", "B", "100.0%", "2", "1", "76"] in [line.split() for line in shown.splitlines()]
    assert "gap 0 %" in shown
    assert out.read_text().splitlines()[0] == "id,lower,upper,size,accesses,offset,region"
    assert [line.rpartition(",")[2] for line in out.read_text().splitlines()[1:]] == ["dram", "sram", "sram"]
    assert run(monkeypatch, "pack", out, *regions, "--json") == 0, "the answer is a problem again"
    content = json.loads(capsys.readouterr().out)
    assert content["region_of"] == ["dram", "sram", "sram"]
    assert (content["cost"], content["lower_bound_cost"], content["gap"]) == (156, 156, 0.0)
    assert [region["cost_per_byte"] for region in content["regions"]] == [1, 10]
    for position, name in enumerate(("sram", "dram")):
        members = [i for i, region in enumerate(content["region_of"]) if region == name]
        part: Problem = select_buffers(read_problem(source), members)
        offsets = tuple(content["offsets"][i] for i in members)
        check_packing(part, Packing(offsets, content["regions"][position]["arena_bytes"], "test"))


def test_pack_refuses_what_makes_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "p.csv"
    source.write_text(ROWS)
    cases = {
        ("--region", "sram"): (2, "write NAME=BYTES"),
        ("--region", "sram=1@x"): (2, "write NAME=BYTES"),
        ("--region", "a=99@1", "--region", "b=99"): (2, "pass a cost (@COST) for every region, or for none"),
        ("--region", "a=99", "--region", "a=99"): (2, "region a occurs twice"),
        ("--region", "a=99", "--capacity", "9"): (2, "--capacity is for a single arena"),
        ("--region", "a=lots"): (2, "is not a number of bytes"),
        ("--region", "a=10", "--region", "b=9"): (1, "20 bytes are live at the same time, 1 more than all regions"),
    }
    for words, (status, message) in cases.items():
        assert run(monkeypatch, "pack", source, *words) == status
        assert message in " ".join(capsys.readouterr().err.split())


def test_costs_of_regions() -> None:
    assert [r.cost for r in parse_regions(["a=1KiB", "b=1MB", "c=8"])] == [1, 10, 100]
    assert parse_regions(["a=3@7"]) == (MemoryRegion("a", 3, 7),)
    for text, error in (("=3", ProblemError), ("a=b=3", SubletError), ("a=3@", ProblemError)):
        with pytest.raises(error):
            parse_regions([text])


def test_lifetimes_of_idealloc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "p.csv", tmp_path / "out.csv"
    source.write_text("id,lower,upper,size\n1,0,2,8\n0,1,3,8\n")
    for lifetimes, arena in (("in-ex", 16), ("ex-ex", 8), ("in-in", 16)):
        assert run(monkeypatch, "pack", source, "--lifetimes", lifetimes, "--out", out, "--json") == 0
        assert json.loads(capsys.readouterr().out)["arena_bytes"] == arena
        problem, packing = read_csv(out, Lifetimes(lifetimes))
        assert packing is not None
        check_packing(problem, packing)
        assert [line.rpartition(",")[0] for line in out.read_text().splitlines()] == source.read_text().splitlines()
