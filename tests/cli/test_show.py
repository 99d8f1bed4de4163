"""`sublet show` of two plans: on one axis, and what the second needs more or less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sublet.analysis.options import Options
from sublet.base.formatting import human
from sublet.ir.text import parse
from sublet.plan.file import save
from sublet.planning.pipeline import plan_memory
from tests.planning.test_regions import NET
from tests.support.command_line import Cli


def plans(folder: Path) -> tuple[Path, Path]:
    paths = folder / "a.json", folder / "b.json"
    save(plan_memory(parse(NET)), paths[0])
    save(plan_memory(parse(NET), Options(strategy="no_reuse", share=False)), paths[1])
    return paths


def test_two_plans_side_by_side(cli: Cli, tmp_path: Path) -> None:
    first, second = plans(tmp_path)
    one, two = (json.loads(path.read_text())["arena_bytes"] for path in (first, second))
    status, out, _ = cli("show", first, second, "--html", tmp_path / "both.html", "--png", tmp_path / "both.png")
    assert status == 0
    (row,) = [line.split("  ") for line in out.splitlines() if line.strip().startswith("arena ") and "+" in line]
    assert [cell.strip() for cell in row if cell.strip()] == ["arena", human(one), human(two), f"+{human(two - one)}"]
    assert "gap" not in out
    assert "<title>" in (tmp_path / "both.html").read_text()
    assert (tmp_path / "both.png").stat().st_size


def test_two_plans_for_programs(cli: Cli, tmp_path: Path) -> None:
    first, second = plans(tmp_path)
    status, out, _ = cli("show", first, second, "--json")
    assert status == 0
    shown = json.loads(out)
    assert shown["other"]["arena_bytes"] == json.loads(second.read_text())["arena_bytes"]


def test_a_picture_does_not_replace_a_plan(cli: Cli, tmp_path: Path) -> None:
    first, second = plans(tmp_path)
    status, _, err = cli("show", first, second, "--html", second)
    assert (status, "would overwrite" in err) == (2, True)


def test_of_regions_no_gap_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.sublet").write_text(NET)
    regions = ("--region", "fast=192@1", "--region", "slow=512@10")
    status, out, _ = cli("plan", tmp_path / "net.sublet", *regions)
    assert status == 0
    assert "optimal" not in out
    assert "gap" not in out
    status, out, _ = cli("plan", tmp_path / "net.sublet", *regions, "--json")
    assert json.loads(out)["gap"] is None


def test_a_picture_is_headed_by_the_name_of_the_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []
    for module in ("plan", "show"):
        monkeypatch.setattr(f"sublet.cli.{module}.write_pictures", lambda picture, *_: titles.append(picture.title))
    (tmp_path / "net.sublet").write_text(NET, encoding="utf-8")
    cli("plan", tmp_path / "net.sublet", "--out", tmp_path / "plan.json")
    cli("show", tmp_path / "plan.json")
    assert titles == ["net.sublet", "plan.json"]
