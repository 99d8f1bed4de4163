"""The command line as its users meet it: outputs, files, exit statuses, and errors without tracebacks."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import onnx
import pytest
import typer
from onnx import TensorProto, helper

from sublet.base.errors import MissingExtraError, ProblemError
from sublet.base.optional_imports import require
from sublet.cli.options import command_from
from sublet.plan.file import load, save
from tests.support.command_line import Cli

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
GRAPH = """
graph @net(%x: f32[16]) {
  %a: f32[16] = onnx.MatMul(%x, %x)
  %b: f32[16] = onnx.MatMul(%a, %a)
  %c: f32[16] = onnx.MatMul(%b, %b)
  return %c
}
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("COLUMNS", "100")
    return Cli(monkeypatch, capsys)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "net.sublet"
    path.write_text(GRAPH)
    return path


def relu_model(path: Path, shape: list[object], name: str = "x") -> Path:
    """A model of one Relu, with whatever dimensions are asked for."""
    spec = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "relu", [spec], [result])
    path.write_bytes(helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    return path


def test_plan_check_show_of_a_real_network(cli: Cli, tmp_path: Path) -> None:
    model, plan, page = LIGHT / "light_squeezenet.onnx", tmp_path / "plan.json", tmp_path / "plan.html"
    status, out, err = cli("plan", model, "--out", plan, "--html", page)
    assert status == 0, err
    assert "arena" in out
    assert "lower bound" in out
    assert page.read_text().startswith("<!")
    assert cli("check", model, plan)[:2] == (0, cli("check", model, plan)[1])
    assert cli("show", plan)[0] == 0


def test_json_is_one_object_with_the_promised_keys(cli: Cli) -> None:
    status, out, _ = cli("plan", LIGHT / "light_squeezenet.onnx", "--json")
    content = json.loads(out)
    assert status == 0
    promised = {"arena_bytes", "lower_bound_bytes", "gap", "total_bytes", "strategy", "seconds", "peak", "tensors"}
    assert promised <= content.keys()
    assert {"name", "offset", "nbytes", "begin", "end", "shares"} <= content["tensors"][0].keys()
    assert content["lower_bound_bytes"] <= content["arena_bytes"] < content["total_bytes"]


def test_arena_of_a_chain_is_two_tensors(cli: Cli, graph: Path) -> None:
    content = json.loads(cli("plan", graph, "--json")[1])
    assert content["arena_bytes"] == 128
    assert content["gap"] == 0
    bound = json.loads(cli("plan", graph, "--json", "--io", "bound")[1])
    assert bound["bound_bytes"] == 128
    assert bound["arena_bytes"] == 128


def test_budget_decides_the_exit_status_and_is_proven(cli: Cli, graph: Path) -> None:
    assert cli("plan", graph, "--budget", "128")[0] == 0
    status, out, _ = cli("plan", graph, "--budget", "127", "--json")
    content = json.loads(out)
    assert status == 1
    assert content["fits"] is False
    assert sum(live["nbytes"] for live in content["proof"]) > 127
    status, out, _ = cli("plan", graph, "--budget", "100B")
    assert status == 1
    assert "Cannot fit" in out


def test_pack_capacity(cli: Cli, tmp_path: Path) -> None:
    problem, packed = tmp_path / "p.csv", tmp_path / "packed.csv"
    problem.write_text("id,lower,upper,size\na,0,2,10\nb,1,3,20\nc,2,4,10\n")
    status, out, _ = cli("pack", problem, "--capacity", "30", "--out", packed, "--json")
    content = json.loads(out)
    assert status == 0
    assert content["arena_bytes"] == content["lower_bound_bytes"] == 30
    assert packed.read_text().splitlines()[0] == "id,lower,upper,size,offset"
    assert (content["fits"], content["proven"]) == (True, True)
    status, out, _ = cli("pack", problem, "--capacity", "29")
    assert (status, out.splitlines()[0]) == (1, "Cannot fit the capacity of 29 B: no packing takes less than 30 B.")
    assert cli("pack", problem, "--capacity", "31")[1].startswith("Fits the capacity of 31 B: 1 B to spare.")


def test_pack_says_cannot_only_where_that_is_proven(cli: Cli, tmp_path: Path) -> None:
    """Without reuse the packing takes 40 bytes; others fit 30, and nobody looked for them."""
    problem = tmp_path / "p.csv"
    problem.write_text("id,lower,upper,size\na,0,2,10\nb,1,3,20\nc,2,4,10\n")
    words = ("pack", problem, "--strategy", "no_reuse", "--capacity")
    status, out, _ = cli(*words, "35")
    assert (status, "does not fit" in out, "A smaller packing is not excluded: the lower bound is 30 B." in out) == (
        1,
        True,
        True,
    )
    for capacity, proven in (("29", True), ("30", False), ("35", False), ("40", True)):
        status, out, _ = cli(*words, capacity, "--json")
        content = json.loads(out)
        assert (status, content["fits"], content["proven"]) == (int(capacity != "40"), capacity == "40", proven)


def test_violations_are_told_with_exit_status_1(cli: Cli, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    cli("plan", graph, "--out", path)
    plan = load(path)
    broken = tuple(
        replace(p, region=replace(p.region, offset=0)) if p.value in ("a", "b") else p for p in plan.placements
    )
    save(replace(plan, placements=broken), path)
    status, out, _ = cli("check", graph, path)
    assert status == 1
    assert "violation" in out
    assert "%b" in out


def test_bad_models_are_errors_of_the_user(cli: Cli, tmp_path: Path, graph: Path) -> None:
    plan = tmp_path / "plan.json"
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes((LIGHT / "light_squeezenet.onnx").read_bytes()[:1000])
    cases = {
        "no such file": (tmp_path / "nowhere.onnx",),
        "truncated": (truncated,),
        "an unbound dimension": (relu_model(tmp_path / "sym.onnx", ["batch", 3]),),
        "a dimension that is none": (relu_model(tmp_path / "sym2.onnx", ["batch", 3]), "--dim", "bach=3"),
        "a negative dimension": (relu_model(tmp_path / "neg.onnx", [-2, 3]),),
        "a huge dimension": (relu_model(tmp_path / "huge.onnx", [2**62, 3]),),
        "a huge binding": (relu_model(tmp_path / "sym3.onnx", ["batch"]), "--dim", f"batch={2**62}"),
        "a negative binding": (relu_model(tmp_path / "sym4.onnx", ["batch"]), "--dim", "batch=-1"),
        "no integer": (relu_model(tmp_path / "sym5.onnx", ["batch"]), "--dim", "batch=two"),
        "an unknown strategy": (graph, "--strategy", "magic"),
        "an impossible alignment": (graph, "--align", "0"),
        "an unreadable budget": (graph, "--budget", "lots"),
        "an unknown format": (tmp_path / "plan.xyz",),
        "an unwritable place": (graph, "--out", tmp_path / "no" / "such" / "folder.json"),
    }
    for what, words in cases.items():
        status, out, err = cli("plan", *words, "--out", plan) if "--out" not in words else cli("plan", *words)
        assert status == 2, (what, out, err)
        assert "error:" in err or "Invalid value" in err or "Usage" in err, what
        assert not plan.exists(), what
    unbound = cli("plan", tmp_path / "sym.onnx")[2]
    assert "--dim batch=" in unbound


def test_a_plan_of_another_model_is_refused(cli: Cli, graph: Path, tmp_path: Path) -> None:
    other, plan = tmp_path / "other.sublet", tmp_path / "plan.json"
    other.write_text(GRAPH.replace("[16]", "[32]"))
    assert cli("plan", graph, "--out", plan)[0] == 0
    status, _, err = cli("check", other, plan)
    assert status == 2
    assert "not a plan of" in err


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_plan_that_is_given_for_a_model_is_told(cli: Cli, graph: Path, tmp_path: Path, command: str) -> None:
    assert cli("plan", graph, "--out", tmp_path / "plan.json")[0] == 0
    status, _, err = cli(command, tmp_path / "plan.json")
    assert status == 2
    assert "plan.json is a plan by Sublet, not a model" in " ".join(err.split())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1}', '{"version": 1, "graph": 3}'],
)
def test_files_that_are_no_plan(cli: Cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    status, _, err = cli("show", path)
    assert status == 2
    assert "plan.json" in err


def test_a_plan_with_wrong_types_is_refused(cli: Cli, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    cli("plan", graph, "--out", path)
    raw = asdict(load(path))
    for field, value in (("arena_bytes", "many"), ("placements", {}), ("peak", None), ("alignment", True)):
        path.write_text(json.dumps({**raw, field: value}))
        status, _, err = cli("show", path)
        assert status == 2
        assert field in err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("id,lower,upper,size\na,2,2,1\n", "lower"),
        ("id,lower,upper,size\na,0,2,-1\n", "size"),
        ("id,lower,upper,size\na,0,2,x\n", "size"),
        ("id,lower,size\na,0,2\n", "upper"),
        ("id,lower,upper,size\na,0,2,1\na,0,2,1\n", "a"),
        ("", "header"),
    ],
)
def test_bad_problems_are_errors_of_the_user(cli: Cli, tmp_path: Path, text: str, word: str) -> None:
    path, out = tmp_path / "p.csv", tmp_path / "out.csv"
    path.write_text(text)
    status, _, err = cli("pack", path, "--out", out)
    assert status == 2
    assert "p.csv" in err
    assert word in err
    assert not out.exists()


def test_no_output_replaces_an_input_or_another_output(cli: Cli, graph: Path, tmp_path: Path) -> None:
    before = graph.read_text()
    for words in (("plan", graph, "--out", graph), ("plan", graph, "--html", tmp_path / "." / graph.name)):
        status, _, err = cli(*words)
        assert status == 2
        assert "would overwrite the input" in " ".join(err.split())
    assert graph.read_text() == before
    status, _, err = cli("plan", graph, "--out", tmp_path / "a", "--html", tmp_path / "a")
    assert status == 2
    assert "another output" in " ".join(err.split())
    assert not (tmp_path / "a").exists()


def test_a_value_called_arena_is_not_the_arena(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text(
        "graph @net(%arena: f32[16]) {\n  weights %w: f32[16]\n"
        "  %y: f32[16] = onnx.MatMul(%arena, %w)\n  return %y\n}\n"
    )
    assert cli("plan", path, "--io", "bound")[0] == 0
    path.write_text(path.read_text().replace("%arena", "%x").replace("%w", "%arena"))
    assert cli("plan", path)[0] == 0


def test_padding_counts_in_a_proof(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text("graph @net(%x: u8[65], %y: u8[65]) {\n  %z: u8[1] = onnx.Foo(%x, %y)\n  return %z\n}\n")
    content = json.loads(cli("plan", path, "--json", "--budget", "190")[1])
    assert content["arena_bytes"] == content["lower_bound_bytes"] == 65 + 63 + 65 + 64 - 63 + 63
    assert sum(live["nbytes"] for live in content["proof"]) > 190


def test_equal_rounded_sizes_in_a_verdict_are_told_in_bytes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text("graph @net(%x: u8[1792]) {\n  %z: u8[1792] = onnx.Foo(%x)\n  return %z\n}\n")
    first = cli("plan", path, "--budget", "3583")[1].splitlines()[0]
    assert "budget of 3.5 KiB" in first
    assert "take 3,584 bytes, 1 too many, with their padding" in first


def test_recomputation_is_proposed_only_where_no_bound_excludes_the_budget(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text(
        "graph @net(%x: f32[64]) {\n  %a: f32[64] = nn.tanh(%x)\n  %b: f32[64] = nn.exp(%a)\n"
        "  %c: f32[64] = nn.add(%x, %b)\n  %d: f32[64] = nn.sin(%c)\n  %e: f32[64] = nn.add(%a, %d)\n  return %e\n}\n"
    )
    for budget, expected in ((511, "No recomputation of whole nodes can help"), (512, "Recomputed values may make")):
        status, out, _ = cli("plan", path, "--budget", budget)
        assert (status, expected in out) == (1, True), out


def test_what_is_not_counted_is_told_with_the_verdict(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text(
        'graph @net(%x: f32[4]) {\n  %n: outside("i64[1,?]", "depends on data") = onnx.NonZero(%x)\n'
        "  %y: f32[4] = onnx.Relu(%x)\n  return %n, %y\n}\n"
    )
    status, out, _ = cli("plan", path, "--budget", "1K")
    first = out.splitlines()[0]
    assert status == 3
    assert first.startswith("Unknown whether the plan fits the budget of 1 KiB")
    assert "1 value outside not counted: n i64[1,?]" in first
    assert "2 of 3 tensors planned; 1 outside, not counted: n i64[1,?]" in out
    status, out, _ = cli("plan", path, "--budget", "1K", "--max-dim", "n=4")
    told = "Fits the budget of 1 KiB if no open extent of n is above 4: 976 B to spare"
    assert (status, out.splitlines()[0]) == (0, f"{told}, with 1 value outside at its largest.")
    assert cli("plan", path, "--budget", "1K", "--max-dim", "1000")[0] == 3
    assert cli("plan", path, "--budget", "1", "--max-dim", "1000")[0] == 1
    closed = tmp_path / "closed.sublet"
    closed.write_text(path.read_text().replace("[1,?]", "[1,4]"))  # 32 bytes outside, at most
    for budget, expected in ((15, 1), (30, 3), (48, 0)):
        assert cli("plan", closed, "--budget", budget)[0] == expected
        status, out, _ = cli("export", closed, "--to", "csv", "--out", tmp_path / "csv", "--budget", budget)
        assert (status, "16 B, and values outside at most 32 B" in out) == (expected, True)
    for words, told in (
        (("--budget", "1K", "--max-dim", "y=4"), "no value outside the plan has the name 'y'; known: 'n'"),
        (("--budget", "1K", "--max-dim", "-4"), "write N or VALUE=N"),
        (("--max-dim", "4"), "add --budget"),
        (("--assume", "n=i64[1,4]"), "declares the type of every value"),
    ):
        status, _, err = cli("plan", path, *words)
        assert (status, told in err) == (2, True), (words, err)


def test_names_cannot_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text('graph @net(%"a\\u001b[31mred": f32[4]) {\n  return %"a\\u001b[31mred"\n}\n')
    status, out, err = cli("plan", path)
    assert status == 0
    assert "\x1b[31m" not in out + err
    assert "\\x1b[31mred" in out


def test_numbers_that_are_none(cli: Cli, graph: Path) -> None:
    for words in (("--timeout", "nan"), ("--timeout", "-1"), ("--dim", "batch=²"), ("--dim", "b=" + "9" * 5000)):
        assert cli("plan", graph, *words)[0] == 2


def test_plans_with_absurd_numbers_are_refused(cli: Cli, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    cli("plan", graph, "--out", path)
    raw = json.loads(path.read_text())
    for change in (
        {"arena_bytes": 10**400},
        {"alignment": -5},
        {"points": [], "peak": {**raw["peak"], "point": 10**30}},
    ):
        path.write_text(json.dumps({**raw, **change}))
        assert cli("show", path)[0] == 2


def test_false_claims_are_violations(cli: Cli, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    cli("plan", graph, "--out", path)
    raw = json.loads(path.read_text())
    for change in (
        {"lower_bound_bytes": 10**9},
        {"proof": [99]},
        {"outside": [{"value": "a", "type": "", "reason": "", "dtype": "", "dims": [], "bound": False}]},
    ):
        path.write_text(json.dumps({**raw, **change}))
        assert cli("check", graph, path)[0] == 1


def test_a_reader_that_leaves_early_is_no_failure_of_the_model(graph: Path) -> None:
    for how in ("--json", "--budget 16K"):
        command = f"{sys.executable} -m sublet plan {graph} {how} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] in ("0", "141"), "no status that is an answer"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("plan", "nowhere.onnx"), "ModelError"),
        (("plan", "GRAPH", "--budget", "lots"), "SubletError"),
        (("plan", "GRAPH", "--strategy", "magic"), "ProblemError"),
        (("plan", "GRAPH", "--magic"), "NoSuchOption"),
        (("plan", "GRAPH", "--streams", "many"), "BadParameter"),
        (("plan",), "MissingParameter"),
        (("check", "GRAPH", "GRAPH"), "PlanError"),
        (("show", "GRAPH"), "PlanError"),
        (("pack", "nowhere.csv"), "ProblemError"),
        (("run", "GRAPH", "--input", "z=1"), "RunError"),
    ],
)
def test_with_json_every_error_is_an_object(cli: Cli, graph: Path, words: tuple[str, ...], kind: str) -> None:
    status, out, err = cli(*(str(graph) if word == "GRAPH" else word for word in words), "--json")
    told = json.loads(out)
    assert status == told["exit_status"] == 2
    assert told["kind"] == kind
    assert told["error"]
    assert "error:" in err


def test_an_answer_that_no_terminal_shows_breaks_no_name(cli: Cli, tmp_path: Path) -> None:
    name = "a_name_of_an_encoder/layer." * 12 + "end"
    status, out, _ = cli("plan", relu_model(tmp_path / "long.onnx", [64], name))
    assert status == 0
    assert name in out


@dataclass(frozen=True)
class Greeting:
    """Options of a command for tests."""

    name: str
    times: Annotated[int, typer.Option("--times", min=1)] = 1
    in_json: bool = False


def test_a_command_has_an_option_for_each_field_of_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    received: list[Greeting] = []

    @command_from(Greeting)
    def greet(options: Greeting) -> None:
        """Greet somebody."""
        received.append(options)
        if options.times > 2:
            raise ProblemError("too many greetings")

    assert list(inspect.signature(greet).parameters) == [field.name for field in fields(Greeting)]
    assert (greet.__name__, greet.__doc__) == ("greet", "Greet somebody.")
    app = typer.Typer()
    app.command()(greet)
    with pytest.raises(SystemExit, match="0"):
        app(["Ada", "--times", "2"])
    assert received == [Greeting("Ada", 2)]
    with pytest.raises(SystemExit, match="2"):
        app(["Ada", "--times", "3", "--in-json"])
    assert json.loads(capsys.readouterr().out)["error"] == "too many greetings"


def test_the_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"sublet {version('sublet')}\n", "")


def test_suffixes_in_capitals(cli: Cli, tmp_path: Path, graph: Path) -> None:
    loud = tmp_path / "NET.SUBLET"
    loud.write_text(graph.read_text())
    assert cli("plan", relu_model(tmp_path / "MODEL.ONNX", [4]))[0] == 0
    assert cli("plan", loud)[0] == 0


def test_a_missing_extra_is_told_by_the_package_it_brings() -> None:
    for module, extra, package in (("google.nothing", "onnx", "onnx"), ("matplotlib.nothing", "png", "matplotlib")):
        with pytest.raises(MissingExtraError, match=rf"needs the package '{package}': pip install 'sublet\[{extra}\]'"):
            require(module, extra)
