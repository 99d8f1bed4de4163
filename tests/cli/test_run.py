"""`sublet run` as its users meet it: inputs from files and chance, outputs, verdicts, figures, and errors."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from benchmarks.models.builder import Builder
from sublet.base.formatting import human
from sublet.plan.file import load, save
from tests.integrations.onnx.models import ARMS, parsed
from tests.runtime.networks import inception
from tests.support.command_line import Cli

GRAPH = """
graph @net(%x: f32[16], %k: i64[1]) {
  weights %w: f32[16], %two: f32[] = [2.0]
  %a: f32[16] = onnx.Mul(%x, %w)
  %b: f32[16] = onnx.Sub(%a, %x)
  %c: f32[16] = onnx.Mul(%b, %two)
  %d: f32[1] = onnx.Gather(%c, %k)
  return %c, %d
}
"""
LOOP = """
graph @loop(%h0: f32[3], %xs: f32[9,3], %limit: i64[]) {
  %h: f32[3], %ys: f32[9,3] = while(%i: i64[]; %p: f32[3] = %h0; %x: f32[3] in %xs axis 0) @loop body @step {
    %c: bool[] = onnx.Less(%i, %limit)
    continue if %c
    %q: f32[3] = onnx.Sub(%x, %p)
    %r: f32[3] = onnx.Add(%q, %p)
    next %q; %r axis 0
  }
  return %h, %ys
}
"""
X = np.arange(16, dtype=np.float32)
W = np.full(16, 3, np.float32)
K = np.array([5])


def contents(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which is closed again."""
    with np.load(path) as found:
        return dict(found)


class OneLine(Cli):
    """Error messages as one line, however wide the terminal."""

    def __call__(self, *words: object) -> tuple[int, str, str]:
        status, out, err = super().__call__(*words)
        return status, out, " ".join(err.split())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("COLUMNS", "200")
    return OneLine(monkeypatch, capsys)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "net.sublet"
    path.write_text(GRAPH)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "inception.onnx"
    path.write_bytes(inception(modules=1, size=6).SerializeToString())
    return path


def test_a_network_runs_and_tells_what_it_took(cli: Cli, model: Path) -> None:
    status, out, err = cli("run", model, "--random", 0, "--backend", "reference", "--repeat", 3, "--json")
    content = json.loads(out)
    assert (status, err) == (0, "")
    promised = {"arena_bytes", "workspace_bytes", "seconds", "copied_bytes", "weight_bytes", "scratch_bytes", "steps"}
    assert promised <= content.keys()
    assert "equal" not in content
    assert content["arena_bytes"] == json.loads(cli("plan", model, "--json")[1])["arena_bytes"]
    assert 0 < content["least_seconds"] <= content["seconds"]
    assert content["runs"] == 3
    assert content["nodes"]["reference"] >= 12
    assert {"sublet", "onnx", "numpy"} <= content["versions"].keys()


def test_outputs_are_those_of_the_inputs_given(cli: Cli, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "rest.npz", w=W, k=K)
    words = ("run", graph, "--input", f"x={tmp_path}/x.npy", "--input", tmp_path / "rest.npz", "--out", out)
    assert cli(*words)[0] == 0
    found = contents(out)
    assert sorted(found) == ["c", "d"]
    assert np.array_equal(found["c"], (X * W - X) * 2)
    assert np.array_equal(found["d"], found["c"][5:6])
    first = out.read_bytes()
    assert cli(*words)[0] == 0
    assert out.read_bytes() == first, "the same outputs are the same bytes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.sublet", "out.npz", "rest.npz", "x.npy"]


def test_one_entry_of_an_archive(cli: Cli, graph: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "several.npz", x=X, w=W)
    np.savez(tmp_path / "one.npz", whatever=K)
    given = [f"x={tmp_path}/several.npz", f"w={tmp_path}/several.npz", f"k={tmp_path}/one.npz"]
    status, _, err = cli("run", graph, *(word for text in given for word in ("--input", text)))
    assert (status, err) == (0, "")


def test_missing_inputs_are_listed_with_their_specs(cli: Cli, graph: Path, model: Path) -> None:
    status, _, err = cli("run", graph)
    assert status == 2
    assert "3 of 3 inputs are missing" in err
    assert "x: f32[16] k: i64[1] w: f32[16]" in err
    assert "--random SEED" in err
    assert "x: f32[1,4,6,6]" in cli("run", model)[2]


def test_a_failing_node_that_contradicts_the_file_is_named_with_the_contradiction(cli: Cli, tmp_path: Path) -> None:
    model, chosen = tmp_path / "arms.onnx", tmp_path / "c.npy"
    onnx.save(parsed(ARMS), model)
    for is_reached, expected in ((True, 2), (False, 0)):
        np.save(chosen, np.array(is_reached))
        status, _, err = cli("run", model, "--input", f"c={chosen}", "--random", "0", "--optimize", "none")
        assert status == expected
        assert ("known before the run: " in err and "[contradiction]" in err) == is_reached


def test_chance_is_the_same_for_the_same_seed(cli: Cli, graph: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"{i}.npz" for i in range(3)]
    for seed, out in zip((7, 7, 8), outs, strict=True):
        assert cli("run", graph, "--random", seed, "--out", out)[0] == 0
    assert outs[0].read_bytes() == outs[1].read_bytes() != outs[2].read_bytes()


@pytest.mark.parametrize("streams", [1, 2])
def test_compare_and_poison(cli: Cli, model: Path, streams: int) -> None:
    words = ("--random", 1, "--compare", "--poison", "--streams", streams, "--backend", "reference")
    status, out, err = cli("run", model, *words, "--json")
    content = json.loads(out)
    assert (status, err) == (0, "")
    assert content["equal"] is True
    assert (content["compare"], content["poison"], content["streams"]) == ([], [], streams)
    assert "compare: equal" in cli("run", model, *words)[1]


def test_a_run_that_differs_exits_1(cli: Cli, tmp_path: Path) -> None:
    """A network that draws random numbers differs from itself."""
    path = tmp_path / "random.sublet"
    path.write_text(
        "graph @net(%x: f32[64]) {\n  %r: f32[64] = onnx.RandomNormalLike(%x) @dice\n"
        "  %y: f32[64] = onnx.Add(%r, %x)\n  return %y\n}\n"
    )
    status, out, _ = cli("run", path, "--random", 1, "--compare", "--backend", "reference", "--json")
    assert status == 1
    assert json.loads(out)["equal"] is False
    status, out, _ = cli("run", path, "--random", 1, "--compare", "--backend", "reference")
    assert status == 1
    assert "differs from the unplanned run" in out


def test_copied_bytes_of_a_loop(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "loop.sublet"
    path.write_text(LOOP)
    np.save(tmp_path / "limit.npy", np.array(9))
    words = ("run", path, "--random", 3, "--input", f"limit={tmp_path}/limit.npy", "--json", "--compare")
    content = json.loads(cli(*words)[1])
    assert content["equal"]
    assert content["copied_bytes"] == 2 * 9 * 12, "each round a slice in and a row out, and no carry"


def test_no_reuse_takes_more(cli: Cli, model: Path) -> None:
    words = ("run", model, "--random", 1, "--backend", "reference", "--json")
    content, unplanned = (json.loads(cli(*words, *more)[1]) for more in ((), ("--no-reuse",)))
    assert unplanned["arena_bytes"] > 2 * content["arena_bytes"]


def test_a_profile_is_written_and_told(cli: Cli, model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ("run", model, "--random", 1, "--backend", "reference", "--profile", trace)
    status, out, _ = cli(*words)
    assert status == 0
    assert "onnx.Conv" in out
    content = json.loads(trace.read_text())
    names = [event["name"] for event in content["traceEvents"] if event["ph"] == "X"]
    plan = json.loads(cli("plan", model, "--json")[1])
    assert len(names) == len(set(names)) == json.loads(cli(*words, "--json")[1])["steps"]
    assert names[0] == "start"
    assert plan["arena_bytes"] == content["otherData"]["arena_bytes"]


def test_a_plan_made_before(cli: Cli, graph: Path, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert cli("plan", graph, "--out", plan, "--io", "bound", "--align", 128)[0] == 0
    status, out, _ = cli("run", graph, "--plan", plan, "--random", 1, "--json", "--poison", "--backend", "reference")
    content = json.loads(out)
    assert status == 0
    assert content["equal"]
    assert content["arena_bytes"] == load(plan).arena_bytes
    assert content["input_bytes"] == 64 + 8
    status, _, err = cli("run", model, "--plan", plan, "--random", 1, "--backend", "reference")
    assert status == 2
    assert "made for another graph" in err
    for option in (("--streams", 2), ("--no-reuse",), ("--dim", "n=1")):
        status, _, err = cli("run", graph, "--plan", plan, *option)
        assert status == 2
        assert f"{option[0]} cannot be combined with --plan" in err


def test_a_plan_that_is_wrong_is_not_run(cli: Cli, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert cli("plan", graph, "--out", path)[0] == 0
    plan = load(path)
    far = tuple(replace(p, region=replace(p.region, offset=p.region.offset + 2**40)) for p in plan.placements)
    save(replace(plan, placements=far), path)
    status, _, err = cli("run", graph, "--plan", path, "--random", 1, "--backend", "reference")
    assert status == 2
    assert "violation(s) in the memory plan" in err


def archive(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return path


def header(shape: object, descr: str = "<f4") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})  # type: ignore[arg-type]
    return stream.getvalue()


def test_files_that_are_no_inputs(cli: Cli, graph: Path, tmp_path: Path) -> None:
    files = {
        "shape.npy": np.zeros(15, np.float32),
        "type.npy": np.zeros(16),
        "swapped.npy": np.zeros(16, ">f4"),
        "fields.npy": np.zeros(16, [("a", "<f4")]),
    }
    for name, array in files.items():
        np.save(tmp_path / name, array)
    np.save(tmp_path / "objects.npy", np.array([object] * 16), allow_pickle=True)
    raw = {
        "empty.npy": b"",
        "text.npy": b"hello",
        "short.npy": header((16,)) + b"\0" * 60,
        "huge.npy": header((2**50,)),
        "negative.npy": header((-16,)),
        "code.npy": b"\x93NUMPY\x01\x00" + (100).to_bytes(2, "little") + b"__import__('os').abort()".ljust(100),
        "long.npy": b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"(" * 1000,
        "broken.npz": b"PK\x03\x04 and so on",
    }
    for name, content in raw.items():
        (tmp_path / name).write_bytes(content)
    archive(tmp_path / "bomb.npz", x=header((2**28,)) + bytes(2**24))
    archive(tmp_path / "lies.npz", x=b"hello")
    np.savez(tmp_path / "stranger.npz", y=X)
    (tmp_path / "folder.npy").mkdir()
    names = [*files, "objects.npy", *raw, "bomb.npz", "lies.npz", "stranger.npz", "folder.npy", "nowhere.npy"]
    for name in names:
        status, _, err = cli("run", graph, "--random", 1, "--input", f"x={tmp_path / name}")
        assert status == (0 if name == "stranger.npz" else 2), (name, err)
        assert name == "stranger.npz" or ("error:" in err and name in err), (name, err)
    for text, words in (
        (f"z={tmp_path}/x.npy", "the inputs are 'x', 'k', 'w'"),
        ("x", "write NAME=FILE.npy"),
        (tmp_path / "stranger.npz", "'y' is not an input"),
        (tmp_path / "nowhere.npz", "cannot be read"),
        (tmp_path / "shape.npy", "write NAME=FILE.npy"),
    ):
        status, _, err = cli("run", graph, "--random", 1, "--input", text)
        assert status == 2
        assert words in err
    np.save(tmp_path / "x.npy", X)
    status, _, err = cli("run", graph, "--random", 1, *["--input", f"x={tmp_path}/x.npy"] * 2)
    assert status == 2
    assert "given twice" in err


def test_types_that_numpy_lacks(cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "net.sublet", tmp_path / "out.npz"
    path.write_text("graph @net(%x: bf16[4], %i: i4[3]) {\n  %y: bf16[4] = onnx.Identity(%x)\n  return %y, %i\n}\n")
    x = np.array([1, 2, 3, 0.5], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", x.view("V2"))
    words = ("run", path, "--random", 1, "--input", f"x={tmp_path}/x.npy", "--out", out, "--backend", "reference")
    status, _, err = cli(*words)
    assert (status, err) == (0, "")
    found = contents(out)
    assert np.array_equal(found["y"].view(ml_dtypes.bfloat16), x)
    assert set(found["i"].view(ml_dtypes.int4).astype(int)) <= {0, 1}
    assert cli("run", path, "--input", f"y={out}", "--random", 1)[0] == 2


def test_every_type_can_be_filled_from_chance(cli: Cli, tmp_path: Path) -> None:
    types = ["bool", "i2", "i4", "i8", "u2", "u4", "u64", "f16", "bf16", "f64"]
    types += ["f8e4m3fn", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1", "c64", "c128"]
    path, out = tmp_path / "net.sublet", tmp_path / "out.npz"
    inputs = ", ".join(f"%v{kind}: {kind}[5]" for kind in types)
    outputs = ", ".join(f"%v{kind}" for kind in types)
    path.write_text(f"graph @net({inputs}) {{\n  return {outputs}\n}}\n")
    status, _, err = cli("run", path, "--random", 1, "--out", out)
    assert (status, err) == (0, "")
    assert len(contents(out)) == len(types)


def test_what_cannot_be_filled_from_chance(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.sublet"
    path.write_text('graph @net(%s: outside("seq(f32)", "a sequence")) {\n  return %s\n}\n')
    status, _, err = cli("run", path, "--random", 1)
    assert status == 2
    assert "s is seq(f32) (a sequence): --random cannot fill this type" in err
    path.write_text(f"graph @net(%x: f32[{2**50}]) {{\n  return %x\n}}\n")
    status, _, err = cli("run", path, "--random", 1)
    assert status == 2
    assert "cannot be allocated" in err


def test_no_output_replaces_an_input_and_no_half_is_written(cli: Cli, graph: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=X, w=W, k=K)
    before = (tmp_path / "in.npz").read_bytes()
    for option in ("--out", "--profile"):
        for target in (tmp_path / "in.npz", graph):
            status, _, err = cli("run", graph, "--input", tmp_path / "in.npz", option, target)
            assert status == 2
            assert "would overwrite the input" in err
        status, _, err = cli("run", graph, "--random", 1, option, tmp_path / "no" / "such" / "file")
        assert status == 2
        assert "cannot be written" in err
        status, _, err = cli("run", graph, "--random", 1, option, "/dev/full")
        assert status == 2
        assert "No space left" in err
    assert (tmp_path / "in.npz").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "net.sublet"]


def test_a_disk_that_fills_up_leaves_the_old_outputs(tmp_path: Path) -> None:
    path, out = tmp_path / "net.sublet", tmp_path / "out.npz"
    path.write_text("graph @net(%x: f32[4096]) {\n  %y: f32[4096] = onnx.Relu(%x)\n  return %y\n}\n")
    out.write_text("as it was")
    command = f"ulimit -f 8; exec {sys.executable} -m sublet run {path} --random 1 --out {out}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot be written: File too large" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert out.read_text() == "as it was"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.sublet", "out.npz"]


def test_who_optimises_and_who_computes(cli: Cli, model: Path) -> None:
    pytest.importorskip("onnxruntime")
    model.write_bytes(inception(modules=1, channels=16, size=6).SerializeToString())
    words = ("run", model, "--random", 1, "--json", "--compare", "--poison")
    found = {
        how: json.loads(cli(*words, *given)[1])
        for how, given in (
            ("auto", ()),
            ("onnxruntime", ("--optimize", "onnxruntime")),
            ("none", ("--optimize", "none")),
            ("tuned", ("--optimize", "none", "--autotune")),
        )
    }
    assert all(content["equal"] for content in found.values())
    assert all(content["remark"] == "" for how, content in found.items() if how != "auto")
    assert found["auto"]["arena_bytes"] == min(content["arena_bytes"] for content in found.values())
    assert found["onnxruntime"]["steps"] < found["none"]["steps"] == found["tuned"]["steps"]
    assert set(found["tuned"]["nodes"]) <= {"onnxruntime", "numpy", "moves bytes only"}
    status, _, err = cli("run", model, "--random", 1, "--optimize", "magic")
    assert status == 2
    assert "optimize='magic' must be one of auto, onnxruntime, onnxruntime-extended" in err


TRANSPOSES = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 64, 32] x) => (float[4, 64, 32] y) {
  a = Transpose <perm = [0, 2, 1]> (x)
  b = Transpose <perm = [0, 2, 1]> (a)
  y = Relu(b)
}"""


@pytest.mark.parametrize("smaller", ["none", "onnxruntime"])
def test_auto_runs_the_smaller_graph_and_tells_both_arenas(cli: Cli, model: Path, smaller: str) -> None:
    """Blocks of channels pad the 4 channels of the inception; ONNX Runtime removes two transpositions."""
    pytest.importorskip("onnxruntime")
    if smaller == "onnxruntime":
        model.write_bytes(onnx.parser.parse_model(TRANSPOSES).SerializeToString())

    def content(command: str, *words: object) -> Any:
        return json.loads(cli(command, model, "--json", *words)[1])

    arenas = {level: content("plan", "--optimize", level)["arena_bytes"] for level in ("none", "onnxruntime")}
    assert len({*arenas.values()}) == 2
    for report in (content("run", "--random", 1), content("plan", "--optimize", "auto")):
        assert (report["recipe"]["optimize"], report["arena_bytes"]) == (smaller, min(arenas.values()))
        assert all(human(nbytes) in report["remark"] for nbytes in arenas.values())
    assert "rewritten by onnxruntime: --optimize auto" in cli("plan", model)[1]


def narrow_channels(channels: int) -> onnx.ModelProto:
    """A network whose channels ONNX Runtime pads to whole blocks."""
    b = Builder("narrow")
    x = b.op("Relu", b.conv(b.input("image", (1, 3, 160, 160)), channels, 3, 1))
    x = b.op("Relu", b.conv(x, channels, 3, 2))
    return b.model(probabilities=b.classifier(b.conv(b.pool("MaxPool", x, 2, 2), 8, 3), 4))


@pytest.mark.parametrize(("channels", "patches"), [(12, "patches 2x2@Conv_5"), (4, "")])
def test_auto_patches_take_the_smallest_of_both_graphs(cli: Cli, model: Path, channels: int, patches: str) -> None:
    """In patches or whole, as what patches save exceeds their kernels or not."""
    pytest.importorskip("onnxruntime")
    model.write_bytes(narrow_channels(channels).SerializeToString())
    words = ("run", model, "--random", 1, "--json")
    plain, patched = (json.loads(cli(*words, *more)[1]) for more in ((), ("--patches", "auto")))
    assert (patched["recipe"]["optimize"], patched["recipe"]["changed"]) == ("none", patches)
    assert patched["arena_bytes"] <= plain["arena_bytes"]
    assert (patched["arena_bytes"] < plain["arena_bytes"]) == bool(patches)
    assert "arena and kernels of patches: " in patched["remark"]
    assert f" for the graph in the file{patches and f' in {patches}'}, " in patched["remark"]
    assert "The model stays whole" not in patched["remark"] or not patches
    assert "`sublet run` also tries the graph rewritten" in cli("plan", model, "--patches", "auto")[1]
    status, out, _ = cli("run", model, "--random", 1, "--patches", "auto", "--budget", plain["arena_bytes"])
    assert (status, "Fits the budget" in out) == (0, True)


def test_an_unknown_backend(cli: Cli, graph: Path) -> None:
    status, _, err = cli("run", graph, "--random", 1, "--backend", "magic")
    assert status == 2
    assert "no backend 'magic'; known: auto, " in err


def test_a_kernel_that_fails_is_an_error_with_its_node(cli: Cli, graph: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", np.array([99]))
    words = ("run", graph, "--random", 1, "--input", f"k={tmp_path}/k.npy", "--out", tmp_path / "out.npz")
    status, _, err = cli(*words, "--backend", "reference")
    assert status == 2
    assert "node d, onnx.Gather" in err
    assert not (tmp_path / "out.npz").exists()


NUMBERS = [
    ("i64", "", "16000", 16000),
    ("u8", "1", "255", 255),
    ("u8", "", "256", None),
    ("i32", "", "1.5", None),
    ("f32", "", "-1.5e3", -1500.0),
    ("f16", "1,1", "1e9", None),
    ("bf16", "", "2", 2.0),
    ("bool", "", "true", True),
    ("bool", "", "7", None),
    ("f32", "2", "1", None),
]


@pytest.mark.parametrize(("dtype", "shape", "text", "number"), NUMBERS)
def test_an_input_of_one_element_may_be_a_number(
    cli: Cli, tmp_path: Path, dtype: str, shape: str, text: str, number: float | None
) -> None:
    path, out = tmp_path / "net.sublet", tmp_path / "out.npz"
    path.write_text(f"graph @net(%x: {dtype}[{shape}]) {{\n  return %x\n}}\n")
    status, _, err = cli("run", path, "--input", f"x={text}", "--out", out, "--backend", "numpy")
    if number is None:
        assert (status, f"--input x={text}: " in err) == (2, True)
        return
    assert status == 0, err
    left = contents(out)["x"]
    assert (left.view(ml_dtypes.bfloat16) if left.dtype.kind == "V" else left).item() == number
