"""A walk through README and docs: every command and snippet runs, in an environment that has nothing else.

python tests/walk.py [DOCUMENT ...]        with the Python of that environment; `make walk` makes one for each version

README.md, docs/commands.md and ci.md are for all readers; docs/export.md, tflite.md and executorch.md for devices;
docs/foreign.md and packing.md for other tools; docs/loops.md, serving.md, state.md, memory.md and text_form.md for
servers; docs/training.md, budget.md and dynamic.md for training.
Needs Sublet with the extras onnxruntime and png, and nothing of the tests.
"""

from __future__ import annotations

import json
import pickle
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper

from sublet.base.optional_imports import is_installed
from sublet.base.tensor import DType
from sublet.integrations.paddle.format.encoding import encode_program
from sublet.integrations.paddle.format.program import PaddleBlock, PaddleProgram, new_op, new_var
from sublet.integrations.tflite.offline_plan import (
    ItemVector,
    NumberField,
    TableRecord,
    Text,
    Vector,
    encode_flatbuffer,
)
from sublet.integrations.tflite.program import IDENTIFIER, OPERATORS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "README.md", "docs/commands.md", "docs/ci.md", "docs/export.md", "docs/tflite.md", "docs/executorch.md",
    "docs/foreign.md", "docs/loops.md", "docs/serving.md", "docs/state.md", "docs/memory.md", "docs/text_form.md",
    "docs/training.md", "docs/budget.md", "docs/dynamic.md", "docs/packing.md",
)  # fmt: skip
BLOCK = re.compile(r"^```(python|sublet)\n(.*?)^```$|^ {4}(sublet [^\n]*)$", re.MULTILINE | re.DOTALL)
NEEDS = {
    "torch": re.compile(r"import torch|, torch$|\.pt2", re.MULTILINE),
    "executorch": re.compile("import executorch|from executorch"),
}
"""What a step says that needs a package; the suite runs PyTorch's, see `tests/integrations/torch/test_documents.py`."""
ANSWERS = (0, 1, 3)
"""What a command may exit with: it fits, it does not, or nobody can know."""


def main() -> None:
    """Walk through the documents, and exit with the number of steps that failed."""
    failed = sum(_walk(name) for name in sys.argv[1:] or DOCUMENTS)
    print("every step runs" if not failed else f"{failed} steps fail")
    sys.exit(min(failed, 100))


def _walk(name: str) -> int:
    text = (ROOT / name).read_text(encoding="utf-8")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        _furnish(Path(folder))
        known: dict[str, Any] = {"Path": Path, "numpy": np, "np": np, **_arrays()}
        for kind, step in _steps(text):
            missing = [package for package, says in NEEDS.items() if says.search(step) and not is_installed(package)]
            if missing:
                print(f"{name}: needs {missing[0]}, which is not here: {step.splitlines()[0][:60]}", flush=True)
                continue
            said = _run(kind, step, Path(folder), known)
            failed += bool(said)
            print(f"{name}: {'FAILS' if said else 'runs'}: {step.splitlines()[0][:90]}{said}", flush=True)
    return failed


def _steps(text: str) -> Iterator[tuple[str, str]]:
    """The commands and snippets in order, as (kind, text)."""
    for match in BLOCK.finditer(text):
        yield (match[1], match[2]) if match[1] else ("command", match[3])


def _run(kind: str, step: str, folder: Path, known: dict[str, Any]) -> str:
    """What is wrong; "" when it runs."""
    if kind == "sublet":
        (folder / "net.sublet").write_text(step, encoding="utf-8")
        return _command(["sublet", "plan", "net.sublet"], folder, allowed=()) if "graph @" in step else ""
    if kind == "command":
        return _command(shlex.split(step, comments=True), folder, allowed=(2,) if "exit 2" in step else ())
    (folder / "model.onnx").write_bytes(_model("batch").SerializeToString())
    # Snippets know what those before them defined, so they run in this process.
    script = f"import os, sublet\nos.chdir({str(folder)!r})\n{step}"
    try:
        exec(compile(script, "snippet", "exec"), known)
    except Exception as error:  # whatever a reader would see
        return f"\n    {type(error).__name__}: {error}"
    return ""


def _command(words: list[str], folder: Path, allowed: tuple[int, ...]) -> str:
    batch = "batch" if "--dim" in words else 1
    (folder / "model.onnx").write_bytes(_model(batch).SerializeToString())
    ran = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode in (*ANSWERS, *allowed) and "Traceback" not in ran.stderr:
        for copy in ("a.json", "b.json"):
            if (folder / "plan.json").exists():
                (folder / copy).write_bytes((folder / "plan.json").read_bytes())
        return ""
    return f"\n    exit {ran.returncode}: {ran.stderr.strip()}"


def _furnish(folder: Path) -> None:
    """The files that the documents speak of."""
    np.save(folder / "x.npy", np.ones((1, 3, 32, 32), np.float32))
    (folder / "problem.csv").write_text("id,lower,upper,size\na,0,4,64\nb,2,6,128\nc,5,9,64\n", encoding="utf-8")
    (folder / "packed.csv").write_text("id,lower,upper,size,offset\na,0,4,64,0\nb,2,6,128,64\n", encoding="utf-8")
    tensors = [{"name": name, "offset": at} for name, at in {"x": 0, "c": 12288, "r": 12288, "y": 0}.items()]
    placed = {"format": "sublet-placed", "version": 1, "tool": "TVM", "tensors": tensors}
    (folder / "tvm.json").write_text(json.dumps(placed), encoding="utf-8")
    events = [{"action": "alloc", "addr": 512 * i, "size": 512, "frames": []} for i in range(3)]
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    planned = _model(1)
    for value, at in zip((*planned.graph.input, *planned.graph.output), (0, 12288, 16384), strict=True):
        value.metadata_props.add(key="onnxsim.mem_offset", value=str(at))
    (folder / "planned.onnx").write_bytes(planned.SerializeToString())
    program = Path(__file__).parent / "integrations" / "executorch" / "programs" / "two_conds.planned.pte"
    for name in ("program.pte", "model.pte"):
        (folder / name).write_bytes(program.read_bytes())
    for name, text in TEXTS.items():
        (folder / name).write_bytes(onnx.parser.parse_model(text).SerializeToString())
    (folder / "model.tflite").write_bytes(_tflite())
    for name in ("inference.pdmodel", "train.pb"):
        (folder / name).write_bytes(encode_program(_paddle()))


CELL = """<ir_version: 9, opset_import: ["" : 17]>
cell (float[1,4] x, float[1,4] h, float[1,4] c) => (y, hn, cn)
{
  s = Add (x, h)
  t = Tanh (s)
  cn = Add (c, t)
  hn = Sigmoid (cn)
  y = ReduceSum (hn)
}"""
"""A recurrent cell with two states."""

ENCODER = """<ir_version: 9, opset_import: ["" : 17]>
encoder (float[batch, seq, 16] x) => (y)
{
  m = ReduceMean <axes = [1]> (x)
  c = Sub (x, m)
  y = Softmax <axis = -1> (c)
}"""
"""A network of any batch and length."""

DECODER = """<ir_version: 9, opset_import: ["" : 17]>
decoder (float[batch, new, 16] x, float[batch, past, 16] past) => (y, present)
{
  present = Concat <axis = 1> (past, x)
  m = ReduceMean <axes = [1]> (present)
  y = Add (x, m)
}"""

"""A network whose cache grows by the new rows."""

LLAMA = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
llama (int64[batch,new] input_ids, int64[batch,total] attention_mask, float[batch,2,past,8] past_key,
       float[batch,2,past,8] past_value) => (float[batch,new,16] logits, float[batch,2,past,8] present_key,
       float[batch,2,past,8] present_value)
{
  one = Constant <value_ints: ints = [1]> ()
  sums = ReduceSum <keepdims: int = 0> (attention_mask, one)
  less = Sub (sums, one)
  lengths = Cast <to: int = 6> (less)
  shape = Shape (attention_mask)
  index = Constant <value_int: int = 1> ()
  longest = Gather (shape, index)
  whole = Cast <to: int = 6> (longest)
  sizes = Constant <value_ints: ints = [100, 16]> ()
  table = ConstantOfShape <value: tensor = float[1] {0.5}> (sizes)
  x = Gather (table, input_ids)
  logits, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads: int = 2, kv_num_heads: int = 2>
    (x, x, x, past_key, past_value, lengths, whole)
}
"""
"""A network that appends to caches of a fixed number of rows."""

PLAIN = """<ir_version: 9, opset_import: ["" : 17]>
plain (int64[batch,new] input_ids, float[batch,2,past,8] past_key, float[batch,2,past,8] past_value)
  => (logits, present_key, present_value)
{
  sizes = Constant <value_ints: ints = [100, 16]> ()
  table = ConstantOfShape <value: tensor = float[1] {0.5}> (sizes)
  x = Gather (table, input_ids)
  heads = Constant <value_ints: ints = [0, 0, 2, 8]> ()
  split = Reshape (x, heads)
  rows = Transpose <perm = [0, 2, 1, 3]> (split)
  present_key = Concat <axis = 2> (past_key, rows)
  present_value = Concat <axis = 2> (past_value, rows)
  columns = Transpose <perm = [0, 1, 3, 2]> (present_key)
  scores = MatMul (rows, columns)
  weights = Softmax <axis = -1> (scores)
  mixed = MatMul (weights, present_value)
  joined = Transpose <perm = [0, 2, 1, 3]> (mixed)
  whole = Constant <value_ints: ints = [0, 0, 16]> ()
  logits = Reshape (joined, whole)
}"""
"""A network with an attention over caches that grow by the new rows."""

GREEDY = """<ir_version: 9, opset_import: ["" : 17]>
greedy (int64[1,1] first, float[1,2,past,8] key, float[1,2,past,8] value, int64 count) => (tokens)
{
  sizes = Constant <value_ints: ints = [100, 16]> ()
  table = ConstantOfShape <value: tensor = float[1] {0.5}> (sizes)
  heads = Constant <value_ints: ints = [0, 0, 2, 8]> ()
  whole = Constant <value_ints: ints = [0, 0, 16]> ()
  last, keys, values, tokens = Loop (count, , first, key, value) <
    body = step (int64 i, bool c, int64[1,1] token, float[1,2,p,8] past_key, float[1,2,p,8] past_value)
      => (bool goes_on, int64[1,1] next, float[1,2,q,8] present_key, float[1,2,q,8] present_value, int64[1,1] chosen)
    {
      x = Gather (table, token)
      split = Reshape (x, heads)
      rows = Transpose <perm = [0, 2, 1, 3]> (split)
      present_key = Concat <axis = 2> (past_key, rows)
      present_value = Concat <axis = 2> (past_value, rows)
      columns = Transpose <perm = [0, 1, 3, 2]> (present_key)
      scores = MatMul (rows, columns)
      weights = Softmax <axis = -1> (scores)
      mixed = MatMul (weights, present_value)
      joined = Transpose <perm = [0, 2, 1, 3]> (mixed)
      logits = Reshape (joined, whole)
      next = ArgMax <axis = -1, keepdims = 0> (logits)
      chosen = Identity (next)
      goes_on = Identity (c)
    }
  >
}"""
"""Greedy decoding in one Loop, with caches that grow by a row in each iteration."""

VAD = """<ir_version: 9, opset_import: ["" : 17]>
vad (float[1,64] x, int64 sr) => (y) <int64 wide = {16000}>
{
  fast = Equal (sr, wide)
  y = If (fast) <
    then_branch = wide_band () => (a) { a = Relu (x) },
    else_branch = narrow_band () => (b) { b = Tanh (x) }
  >
}"""
"""A network with a branch for each of two sampling rates."""

VOICE = """<ir_version: 8, opset_import: ["" : 17]>
voice (float[batch, samples] x, int64 rate) => (y)
{
  slow = Constant <value_int = 8000> ()
  is_slow = Equal (rate, slow)
  y = If (is_slow) <
    then_branch = low () => (l) { l = Relu (x) },
    else_branch = high () => (h) { t = Tanh (x) h = Softmax <axis = -1> (t) }
  >
}"""
"""A network for two sampling rates."""

DETECTOR = """<ir_version: 9, opset_import: ["" : 18]>
detector (float[batch, cells, 4] boxes, float[batch, 3, cells] scores) => (kept)
{
  most = Constant <value_ints = [50]> ()
  overlap = Constant <value_floats = [0.5]> ()
  least = Constant <value_floats = [0.25]> ()
  chosen = NonMaxSuppression (boxes, scores, most, overlap, least)
  first = Constant <value_ints = [0, 2]> ()
  places = Gather <axis = 1> (chosen, first)
  kept = GatherND (boxes, places)
}"""
"""A network that returns as many boxes as its scores choose."""

SPEECH = """<ir_version: 9, opset_import: ["" : 18]>
speech (float[1, letters] durations) => (wave)
{
  whole = Ceil (durations)
  sum = ReduceSum <keepdims = 0> (whole)
  frames = Cast <to = 7> (sum)
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  numbers = Range (zero, frames, one)
  times = Cast <to = 1> (numbers)
  wave = Sin (times)
}"""
"""A network whose durations decide the number of frames."""

TEXTS = {
    "detector.onnx": DETECTOR,
    "speech.onnx": SPEECH,
    "cell.onnx": CELL,
    "vad.onnx": VAD,
    "voice.onnx": VOICE,
    "sentences.onnx": ENCODER,
    "decoder.onnx": DECODER,
    "llama.onnx": LLAMA,
    "plain.onnx": PLAIN,
    "greedy.onnx": GREEDY,
}
"""The models in the text form of ONNX, by file."""


def _tflite() -> bytes:
    """Two operators of TensorFlow Lite's, one after the other."""
    tensors = [TableRecord({0: Vector("i", (1, 64)), 3: Text(name), 2: NumberField("I", 0)}) for name in "xhy"]
    operators = [
        TableRecord({0: NumberField("I", 0), 1: Vector("i", (i,)), 2: Vector("i", (i + 1,))})
        for i in range(len(tensors) - 1)
    ]
    fields = {
        0: ItemVector(tensors),
        1: Vector("i", (0,)),
        2: Vector("i", (2,)),
        3: ItemVector(operators),
        4: Text("main"),
    }
    relu = TableRecord({0: NumberField("b", OPERATORS.index("RELU"))})
    model = {
        0: NumberField("I", 3),
        1: ItemVector([relu]),
        2: ItemVector([TableRecord(fields)]),
        4: ItemVector([TableRecord({})]),
    }
    return encode_flatbuffer(TableRecord(model), IDENTIFIER)


def _paddle() -> PaddleProgram:
    """A program of Paddle's with an open batch and open extents of pictures."""
    vars_ = {name: new_var(name, DType.F32, (-1, 3, -1, -1)) for name in ("x", "a", "y")}
    ends = {
        name: new_var(name, None, kind=kind) for name, kind in (("feed", "FEED_MINIBATCH"), ("fetch", "FETCH_LIST"))
    }
    ops = (
        new_op("feed", {"X": ["feed"]}, {"Out": ["x"]}, {"col": 0}),
        new_op("relu", {"X": ["x"]}, {"Out": ["a"]}),
        new_op("sigmoid", {"X": ["a"]}, {"Out": ["y"]}),
        new_op("fetch", {"X": ["y"]}, {"Out": ["fetch"]}, {"col": 0}),
    )
    vars_ |= ends
    return PaddleProgram((PaddleBlock(0, -1, -1, vars_, ops),), 3_000_000)


def _arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    network: dict[str, Any] = {}
    if is_installed("executorch"):
        import torch

        network = {"model": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), "inputs": (torch.ones(2, 8),)}
    return {
        **network,
        "array": np.ones((1, 3, 32, 32), np.float32),
        "chunks": [np.ones((1, 4), np.float32)] * 3,
        "clients": ["ann", "bob"],
        "client": "ann",
        "images": random.normal(size=(64, 1, 8, 8)).astype(np.float32),
        "digits": random.integers(0, 10, 64),
    }


def _model(batch: str | int) -> onnx.ModelProto:
    """A small network over sound-like pictures, with a scalar input and a loop."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, (8, 3, 3, 3), np.full(216, 0.01, np.float32))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Cast", ["rate"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["r", "f"], ["m"]),
        helper.make_node("Loop", ["three", "", "m"], ["z"], body=_body(batch)),
        helper.make_node("GlobalAveragePool", ["z"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, 32, 32)),
        helper.make_tensor_value_info("rate", TensorProto.INT64, ()),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, 8, 1, 1))]
    three = helper.make_tensor("three", TensorProto.INT64, (), [3])
    graph = helper.make_graph(nodes, "walk", inputs, outputs, [weight, three])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _body(batch: str | int) -> onnx.GraphProto:
    """A round: softmax, which cannot be done in place."""
    shape = (batch, 8, 32, 32)
    nodes = [
        helper.make_node("Softmax", ["h"], ["s"], axis=1),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    inputs = [
        helper.make_tensor_value_info("k", TensorProto.INT64, ()),
        helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("h", TensorProto.FLOAT, shape),
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, shape),
    ]
    return helper.make_graph(nodes, "round", inputs, outputs)


if __name__ == "__main__":
    main()
