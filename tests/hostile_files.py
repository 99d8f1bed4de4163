"""Damaged files of the formats that have no fuzzer of their own, thousands of times: `make fuzz`.

    python -m tests.hostile_files [--flips 10000] [--only onnx]

Each file is read in bounded memory, or is one error of Sublet's that names it; reading it causes nothing else.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import sublet
from sublet.base.safetensors import Tensors, write_tensors
from sublet.checker.external.files import judge_plan_file, packing_problem, read_plan_file
from sublet.ir.text import parse
from sublet.plan.file import from_json, to_json
from tests.integrations.onnx.damage import NAME, Format, arguments, tell

PROGRAMS = Path(__file__).parent / "programs"
PADDLE = Path(__file__).parent / "integrations" / "paddle" / "programs"


def onnx_files() -> list[bytes]:
    """A network with a loop, an If, a local function and constants."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    inner = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    arms = [helper.make_graph([helper.make_node(op, ["t"], ["b"])], op, [], [inner]) for op in ("Neg", "Exp")]
    function = helper.make_function(
        "local", "Twice", ["a"], ["c"], [helper.make_node("Add", ["a", "a"], ["c"])], [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], doc_string="first"),
        helper.make_node("Twice", ["m"], ["t"], domain="local"),
        helper.make_node("ReduceSum", ["t"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["i"], then_branch=arms[0], else_branch=arms[1]),
        helper.make_node("Concat", ["rows", "columns"], ["shape"], axis=0),
        helper.make_node("Reshape", ["i", "shape"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((4, 4), np.float32), "w"),
        numpy_helper.from_array(np.array([-1]), "rows"),
        numpy_helper.from_array(np.array([4]), "columns"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)
    return [bytes(model.SerializeToString())]


def text_files() -> list[bytes]:
    call = json.dumps(json.dumps({"args": [{"use": 0}, {"dtype": "float32"}], "kwargs": {}, "outputs": [None]}))
    aten = f"graph @a(%x: f32[2]) {{\n  %y: f32[2] = aten.to.dtype(%x) {{call = {call}}}\n  return %y\n}}\n"
    return [aten.encode(), *(path.read_bytes() for path in sorted(PROGRAMS.glob("*.sublet"))[:3])]


def plan_files() -> list[bytes]:
    return [to_json(sublet.plan_memory(parse(text_files()[0].decode()))).encode()]


def placed_files() -> list[bytes]:
    tensor = {"name": "a", "offset": 0, "bytes": 64, "lifetimes": [[0, 2], [4, 5]], "region": "arena"}
    head = {"format": "sublet-placed", "version": 1, "tool": "x", "alignment": 16, "regions": {"arena": 128}}
    tensors = [tensor, {**tensor, "name": "b", "offset": 64, "shares": "a"}]
    return [json.dumps({**head, "steps": ["one", "two"], "tensors": tensors}).encode()]


def problem_files() -> list[bytes]:
    blocks = [{"id": i, "size": 8 * i + 8, "head": [i], "tail": [i + 1], "companion": -1} for i in range(4)]
    record = {"alignment": 8, "order": [0, 1, 2, 3, 4], "deps": [[i, i + 1] for i in range(4)], "blocks": blocks}
    return [json.dumps(record).encode()]


def csv_files() -> list[bytes]:
    return [b"id,lower,upper,size,offset\n" + b"".join(f"{i},{i},{i + 3},{8 * i + 8},0\n".encode() for i in range(6))]


def snapshot_files() -> list[bytes]:
    frames = [{"name": "f", "filename": "x.py", "line": 3}]
    events = [
        {"action": action, "addr": 512 * i, "size": 512, "stream": 0, "time_us": i, "frames": frames}
        for action in ("alloc", "free_requested", "free_completed") for i in range(1, 4)
    ]  # fmt: skip
    return [pickle.dumps({"segments": [], "device_traces": [events], "allocator_settings": {}}, protocol=4)]


def safetensors_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        write_tensors(path, {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.int64)})
        return [path.read_bytes()]


def from_file(suffix: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A reader of bytes, by way of a file called `damaged`."""

    def read_bytes(raw: bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{NAME}{suffix}"
            path.write_bytes(raw)
            return read(path)

    return read_bytes


def _read(raw: bytes, found: Any, deep: bool) -> str:
    return "read"


def _format(files: Callable[[], list[bytes]], suffix: str, read: Callable[[Path], Any]) -> Format[Any]:
    return Format(files, from_file(suffix, read), _read, 4000)


def _plan(path: Path) -> Any:
    return from_json(path.read_text(encoding="utf-8", errors="replace"), path.name)


FORMATS: dict[str, Format[Any]] = {
    "onnx": _format(onnx_files, ".onnx", lambda path: sublet.read_model(path, {"n": 2})),
    "text": _format(text_files, ".sublet", sublet.read_model),
    "plan": _format(plan_files, ".json", _plan),
    "placed": _format(placed_files, ".json", read_plan_file),
    "problem": _format(problem_files, ".json", packing_problem),
    "csv": _format(csv_files, ".csv", judge_plan_file),
    "snapshot": _format(snapshot_files, ".pickle", packing_problem),
    "pir": _format(
        lambda: [(PADDLE / "pir_loop_and_branch.json").read_bytes()],
        ".json",
        lambda path: sublet.read_model(path, {"x.0": 2}),
    ),
    "safetensors": _format(safetensors_files, ".safetensors", Tensors),
}
"""What is damaged, by name."""

if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=FORMATS)
    asked = parser.parse_args()
    for name, form in FORMATS.items():
        if asked.only in (None, name):
            print(name)
            tell(form, asked)
