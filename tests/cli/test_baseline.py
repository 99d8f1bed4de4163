"""`--baseline` and `--format github` of `sublet plan`, the GitHub action and the assertions for tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sublet
from sublet.base.errors import PlanError
from sublet.plan.file import from_json, load, save, to_json
from sublet.plan.records import FORMAT_VERSION
from sublet.plan.statistics import growth
from tests.support.command_line import Cli

ROOT = Path(__file__).parent.parent.parent


def chain(hidden: int) -> str:
    """Return a network whose peak has the tensors %a and %b of `hidden` elements."""
    return f"""graph @net(%x: f32[{hidden}]) {{
  %a: f32[{hidden}] = nn.relu(%x)
  %b: f32[{hidden}] = nn.flip(%a) {{axes = [0]}}
  %y: f32[{hidden}] = nn.relu(%b)
  return %y
}}
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.sublet"
    path.write_text(chain(128), encoding="utf-8")
    save(sublet.plan_memory(sublet.read_model(path)), tmp_path / "plan.json")
    return path


def test_an_equal_plan_has_not_grown(cli: Cli, net: Path, tmp_path: Path) -> None:
    status, out, _ = cli("plan", net, "--baseline", tmp_path / "plan.json")
    assert status == 0
    assert "Not grown over the baseline: arena 1,024 -> 1,024 bytes" in out
    net.write_text(chain(96), encoding="utf-8")
    assert cli("plan", net, "--baseline", tmp_path / "plan.json")[0] == 0


def test_other_patches_are_an_option_that_differs(net: Path) -> None:
    plan = sublet.plan_memory(sublet.read_model(net))
    patched = replace(plan, recipe=replace(plan.recipe, changed="simplify, patches 4x1@c"))
    assert growth(plan, patched).options == (("--patches", "none", "4x1@c"),)


def test_a_grown_plan_exits_1_and_names_the_values(cli: Cli, net: Path, tmp_path: Path) -> None:
    net.write_text(chain(192), encoding="utf-8")
    status, out, _ = cli("plan", net, "--baseline", tmp_path / "plan.json")
    assert status == 1
    assert "Grown over the baseline: arena 1,024 -> 1,536 bytes, peak 1,024 -> 1,536 bytes" in out
    assert re.search("a: 768 bytes at the peak, 512 in the baseline", out)
    status, out, _ = cli("plan", net, "--baseline", tmp_path / "plan.json", "--json")
    found = json.loads(out)["growth"]
    assert (status, found["is_grown"], found["arena_bytes"] - found["arena_bytes_before"]) == (1, True, 512)
    assert [value["value"] for value in found["values"]] == ["a", "b"]


def test_grown_state_outside_the_arena_fails(cli: Cli, tmp_path: Path) -> None:
    """Both states are outside the arena, which does not grow."""
    net, plan = tmp_path / "net.sublet", tmp_path / "plan.json"

    def save_net(width: int) -> None:
        types = f"f32[{width}]"
        net.write_text(
            f"""graph @net(%x: f32[256], %h: {types}) {{
  %y: f32[256] = nn.relu(%x)
  %hn: {types} = nn.relu(%h)
  return %y, %hn
}}
""",
            encoding="utf-8",
        )

    save_net(16)
    words = ("plan", net, "--state", "h=hn", "--io", "bound")
    assert cli(*words, "--out", plan)[0] == 0
    assert "state 64 -> 64 bytes" in cli(*words, "--baseline", plan)[1]
    save_net(32)
    status, out, _ = cli(*words, "--baseline", plan)
    assert status == 1
    assert out.startswith("Grown over the baseline: state 64 -> 128 bytes, arena ")
    assert "h: 128 bytes of state, 64 in the baseline" in out
    assert "no value grew" not in out
    found = json.loads(cli(*words, "--baseline", plan, "--json")[1])["growth"]
    assert (found["is_grown"], found["state_bytes"], found["state"][0]["value"]) == (True, 128, "h")


def test_growth_by_packing_alone_names_no_value(net: Path, tmp_path: Path) -> None:
    plan = load(tmp_path / "plan.json")
    found = growth(replace(plan, arena_bytes=plan.arena_bytes + 64), plan)
    assert found.is_grown
    assert not found.values
    assert "only the packing needs more bytes" in found.description
    found = growth(replace(plan, peak=replace(plan.peak, nbytes=plan.peak.nbytes + 64)), plan)
    assert not found.values
    assert "no value grew at the peak: sharing or alignment needs more bytes" in found.description


@pytest.mark.parametrize(
    ("hidden", "options", "kind", "words"),
    [
        (128, ["--baseline", "plan.json"], "notice", "arena 1,024 bytes"),
        (192, ["--baseline", "plan.json"], "error", "a: 768 bytes at the peak, 512 in the baseline"),
        (128, ["--budget", "1K"], "notice", "fits the budget of 1,024 bytes"),
        (192, ["--budget", "1K"], "error", "does not fit the budget of 1,024 bytes"),
    ],
)
def test_an_annotation_is_one_line(
    cli: Cli, net: Path, tmp_path: Path, hidden: int, options: list[str], kind: str, words: str
) -> None:
    net.write_text(chain(hidden), encoding="utf-8")
    options = [str(tmp_path / text) if text == "plan.json" else text for text in options]
    status, out, _ = cli("plan", net, *options, "--format", "github")
    [line] = [line for line in out.splitlines() if line.startswith("::")]
    assert line.startswith(f"::{kind} file={net},title=Sublet::arena ")
    assert words in line
    assert status == (kind == "error")


def test_json_and_annotations_exclude_each_other(cli: Cli, net: Path) -> None:
    status, _, error = cli("plan", net, "--json", "--format", "github")
    assert status == 2
    assert "drop --json or --format github" in error


def test_the_baseline_is_no_output(cli: Cli, net: Path, tmp_path: Path) -> None:
    status, _, error = cli("plan", net, "--baseline", tmp_path / "plan.json", "--out", tmp_path / "plan.json")
    assert status == 2
    assert "would overwrite" in error


def test_plans_of_the_version_before_can_be_read(tmp_path: Path, net: Path) -> None:
    plan = load(tmp_path / "plan.json")
    raw = json.loads(to_json(plan))
    for version, absent in ((FORMAT_VERSION - 1, ("carried",)), (FORMAT_VERSION - 3, ("const", "state"))):
        raw["version"] = version
        for name in absent:
            del raw["recipe"][name]
        assert from_json(json.dumps(raw)) == plan
    with pytest.raises(PlanError, match="recipe"):
        from_json(json.dumps({**raw, "recipe": 3}))
    raw["version"] = FORMAT_VERSION - 4
    with pytest.raises(PlanError, match="reads versions"):
        from_json(json.dumps(raw))


def test_assertions_pass_and_fail_with_the_table(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sublet.assert_fits(net, "1 KiB").arena_bytes == 1024
    assert sublet.assert_no_growth(net, tmp_path / "plan.json").arena_bytes == 1024
    with pytest.raises(AssertionError, match=r"(?s)Cannot fit the budget of 1000 B .*lower bound"):
        sublet.assert_fits(net, 1000)
    net.write_text(chain(192), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"(?s)grown over .*a: 768 bytes at the peak.*SUBLET_UPDATE_PLANS=1"):
        sublet.assert_no_growth(net, tmp_path / "plan.json")
    monkeypatch.setenv("SUBLET_UPDATE_PLANS", "1")
    sublet.assert_no_growth(net, tmp_path / "plan.json")
    monkeypatch.delenv("SUBLET_UPDATE_PLANS")
    assert sublet.assert_no_growth(net, tmp_path / "plan.json").arena_bytes == 1536


@pytest.mark.parametrize(("hidden", "failed"), [(128, 0), (192, 1)])
def test_the_steps_of_the_action_run(net: Path, tmp_path: Path, hidden: int, failed: int) -> None:
    """The steps are read from action.yml and run by bash, with the inputs as a workflow passes them."""
    net.write_text(chain(hidden), encoding="utf-8")
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    names = re.findall(r"^  (\w+):\n    description", text, re.MULTILINE)
    given = {"model": "net.sublet", "baseline": "plan.json", "arguments": "--align 64"}
    assert given.keys() <= set(names)
    step = text.split("    - shell: bash\n")[-1]
    inputs = dict(re.findall(r"^        (\w+): \$\{\{ inputs\.(\w+) \}\}", step, re.MULTILINE))
    script = "\n".join(line.strip() for line in step.split("run: |\n")[1].splitlines())
    env = {name: given.get(key, "") for name, key in inputs.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env={**os.environ, **env, "PATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == failed, ran.stderr
    assert ("::error file=net.sublet" in ran.stdout) == bool(failed)
    assert ("%0A  a: 768 bytes" in ran.stdout) == bool(failed)


def test_a_baseline_decides_the_options_of_an_assertion(net: Path, tmp_path: Path, cli: Cli) -> None:
    options = sublet.Options(alignment=256, io="bound", order="less")
    sublet.save(sublet.plan_memory(sublet.read_model(net), options), tmp_path / "wide.json")
    assert sublet.assert_no_growth(net, tmp_path / "wide.json").alignment == 256
    with pytest.raises(AssertionError, match="planned with other options: --io arena, in the baseline bound"):
        sublet.assert_no_growth(net, tmp_path / "wide.json", options=sublet.Options())
    status, out, _ = cli("plan", net, "--baseline", tmp_path / "wide.json")
    assert status == 1
    assert out.startswith("Grown over the baseline")
    assert "planned with other options: --align 64, in the baseline 256" in out


def test_a_tflite_model_is_asserted_with_the_alignment_of_the_command() -> None:
    model = Path("../shared/programs/tflm/micro_speech_quantized.tflite")
    if not model.exists():
        pytest.skip("the shared files are not here")
    assert sublet.assert_fits(model, "1 MiB").alignment == 16
