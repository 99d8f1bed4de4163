"""Files that are malformed, unsafe or leave something open: a ModelError that says what and where."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sublet.api.model_files import read_model
from sublet.base.errors import ModelError
from sublet.integrations.onnx.reader.model import from_proto
from tests.integrations.onnx.models import parsed

GOOD = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


def _saved(folder: Path, content: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def test_truncated_file_at_every_length(tmp_path: Path) -> None:
    content = parsed(GOOD).SerializeToString()
    for length in range(len(content)):
        with pytest.raises(ModelError):
            read_model(_saved(tmp_path, content[:length]))
    assert read_model(_saved(tmp_path, content)).outputs == ("y",)


def test_flipped_bytes_give_no_other_error(tmp_path: Path) -> None:
    model = parsed("g (float[2,3] x) => (y) { s = Shape(x) t = Relu(x) y = Reshape(t, s) }")
    content = bytearray(model.SerializeToString())
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(600):
        broken = bytearray(content)
        for position in rng.integers(0, len(broken), 3):
            broken[position] = rng.integers(0, 256)
        try:
            read_model(_saved(tmp_path, bytes(broken)))
            outcomes.add("fine")
        except ModelError:
            outcomes.add("refused")
    assert outcomes == {"fine", "refused"}


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 1000, b"PK\x03\x04", b"id,lower,upper,size\n1,2,3,4\n"])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelError, match=r"model\.onnx"):
        read_model(_saved(tmp_path, content))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_model(tmp_path / "absent.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        read_model(tmp_path / "folder.onnx")


def test_cycle_names_its_nodes() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, c) a = Relu(x) b = Add(a, c) c = Neg(b) }")
    with pytest.raises(ModelError, match=r"Add 'b' <- Neg 'c' <- Add 'b' form a cycle|Neg 'c' <- Add 'b' <- Neg 'c'"):
        from_proto(model)


def test_unsorted_nodes_are_sorted() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Neg(b) b = Relu(a) a = Abs(x) }")
    assert [node.op for node in from_proto(model).graph.nodes] == ["onnx.Abs", "onnx.Relu", "onnx.Neg"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[2] x) => (float[2] y) { y = Add(x, z) }", "reads 'z', which nothing defines"),
        ("g (float[2] x) => (float[2] z) { y = Neg(x) }", "output 'z'"),
        ("g (float[2] x) => (float[2] y) { y = Neg(x) y = Abs(x) }", "'y' is defined twice"),
        ("g (float[2] x) => (float[2] y) { x = Neg(x) y = Abs(x) }", "'x' is defined twice"),
        ("g (float[2] x) => (float[2] y) { y = Neg(x, x, x) }", "Neg 'y'.*input size 3"),
        ('g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = "a"> (x) }', "Mismatched attribute type"),
        (
            "g (float[1,1,2] x, float[1,1,9] w) => (y) { y = Conv <pads = [1, 1]> (x, w) }",
            "9 is larger than 2 and its pads",
        ),
        ("g (float[1,1,2] x, float[1,1,1] w) => (y) { y = ConvTranspose <pads = [3, 3]> (x, w) }", "is too small"),
        ("g (bool x) => (float[2] y) { y = If(x) }", "If 'y' has no graph 'else_branch'"),
    ],
)
def test_broken_graph(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_proto(parsed(text))


def test_newer_and_missing_operator_sets() -> None:
    model = parsed(GOOD)
    model.opset_import[0].version = 1000
    with pytest.raises(ModelError, match="upgrade"):
        from_proto(model)
    model.opset_import[0].domain = "custom"
    with pytest.raises(ModelError, match="imports no operator set ''"):
        from_proto(model)


def test_functions_that_call_themselves_or_explode() -> None:
    header = '<ir_version: 9, opset_import: ["" : 17, "l" : 1]>\n'
    graph = "g (float[2] x) => (float[2] y) { y = l.f0(x) }\n"
    function = '<domain: "l", opset_import: ["" : 17, "l" : 1]> f%d (x) => (y) { a = l.f%d(x) y = l.f%d(a) }\n'
    loop = onnx.parser.parse_model(header + graph + function % (0, 0, 0))
    with pytest.raises(ModelError, match="calls itself"):
        from_proto(loop)
    bomb = "".join(function % (i, i + 1, i + 1) for i in range(40))
    last = '<domain: "l", opset_import: ["" : 17]> f40 (x) => (y) { y = Neg(x) }'
    with pytest.raises(ModelError, match="unfold to"):
        from_proto(onnx.parser.parse_model(header + graph + bomb + last))


def test_functions_are_inlined() -> None:
    header = '<ir_version: 9, opset_import: ["" : 17, "l" : 1]>\n'
    function = '<domain: "l", opset_import: ["" : 17]> f (a) => (b) { c = Neg(a) b = Abs(c) }'
    graph = from_proto(parsed(f"g (float[2] x) => (float[2] y) {{ y = l.f(x) }}\n{function}", header)).graph
    assert [node.op for node in graph.nodes] == ["onnx.Neg", "onnx.Abs"]


# ---- dimensions ----

OPEN = "g (float[batch,3,h] x, float[batch,N] z) => (y) { y = Relu(x) }"


def test_open_dimensions_are_all_told_with_what_to_add() -> None:
    model = parsed(OPEN)
    model.graph.input[0].type.tensor_type.shape.dim[2].Clear()
    with pytest.raises(ModelError) as caught:
        from_proto(model, {"N": 4})
    assert "input x axis 0: --dim batch=1" in str(caught.value)
    assert "input x axis 2: --dim x:2=N" in str(caught.value)
    assert "2 dimension(s)" in str(caught.value)


def test_names_bind_every_occurrence_and_axes_only_one() -> None:
    inputs = from_proto(parsed(OPEN), {"batch": 2, "h": 5, "N": 7, "z:0": 9}).graph.inputs
    assert [str(value.spec) for value in inputs] == ["f32[2,3,5]", "f32[9,7]"]


@pytest.mark.parametrize("extent", [-1, -(1 << 62), 1 << 62, (1 << 62) + 1, True, 1.5])
def test_absurd_extents(extent: int) -> None:
    with pytest.raises(ModelError, match="a whole number from 0 to"):
        from_proto(parsed(OPEN), {"batch": extent, "h": 1, "N": 1})


def test_sizes_that_overflow_only_together() -> None:
    with pytest.raises(ModelError, match="too large"):
        from_proto(parsed(OPEN), {"batch": 1 << 50, "h": 1 << 50, "N": 1})


def test_unknown_dimension_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="has the name bach; open dimensions: batch, x:0, h, x:2, z:0, N, z:1"):
        from_proto(parsed(OPEN), {"bach": 2})
    with pytest.raises(ModelError, match="none; all are fixed"):
        from_proto(parsed(GOOD), {"batch": 2})


def test_declared_negative_dimensions() -> None:
    model = parsed(GOOD)
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.dim_value = -5
    with pytest.raises(ModelError, match="extent -5"):
        from_proto(model)
    dim.dim_value = -1
    assert str(from_proto(model, {"x:0": 4}).graph.outputs[0].spec) == "f32[4,3]"


def test_weights_with_impossible_shapes_or_too_few_bytes() -> None:
    for dims, raw, message in (
        ((-2, 3), b"\0" * 24, "negative"),
        ((1 << 40, 1 << 40), b"", "too large"),
        ((2, 3), b"\0" * 23, "holds 23"),
        ((2, 3), None, "holds no data"),
    ):
        weight = TensorProto(name="w", data_type=1, dims=dims, raw_data=raw)
        model = parsed("g (float[2,3] x) => (y) { y = Add(x, w) }", '<ir_version: 9, opset_import: ["" : 17]>\n')
        model.graph.initializer.append(weight)
        with pytest.raises(ModelError, match=message):
            from_proto(model)


# ---- external data ----


def _external(location: str, **entries: str) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 3])],
        [helper.make_tensor_value_info("y", 1, [2, 3])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _load_external(tmp_path: Path, location: str, **entries: str) -> np.ndarray:
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    return read_model(_saved(folder, _external(location, **entries).SerializeToString())).weights["w"].array()


def test_external_data_is_read_on_demand(tmp_path: Path) -> None:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    content = np.arange(10, dtype=np.float32)
    (tmp_path / "model" / "sub" / "w.bin").write_bytes(content.tobytes())
    array = _load_external(tmp_path, "sub/w.bin", offset="8", length="24")
    assert array.tolist() == content[2:8].reshape(2, 3).tolist()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "20"}, "which is shorter"),
        ({"length": "25"}, "has length 25"),
        ({"offset": "-4"}, "not a count"),
        ({"offset": "9" * 30}, "not a count"),
        ({"length": "x"}, "not a count"),
    ],
)
def test_external_data_of_the_wrong_size(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_bytes(bytes(40))
    with pytest.raises(ModelError, match=message):
        _load_external(tmp_path, "w.bin", **entries)


def test_external_data_must_lie_in_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    outside = tmp_path / "secret.bin"
    outside.write_bytes(bytes(24))
    os.symlink(outside, tmp_path / "model" / "link.bin")
    os.symlink(tmp_path, tmp_path / "model" / "up")
    for location in ("../secret.bin", str(outside), "link.bin", "up/secret.bin"):
        with pytest.raises(ModelError, match="outside the model's folder"):
            _load_external(tmp_path, location)
    for location in ("absent.bin", "a\0b", "x" * 5000):
        with pytest.raises(ModelError, match="cannot be found"):
            _load_external(tmp_path, location)
    with pytest.raises(ModelError, match="is not a file"):
        _load_external(tmp_path, ".")
    with pytest.raises(ModelError, match="without a location"):
        _load_external(tmp_path, "")
