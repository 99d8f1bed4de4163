"""GroupQueryAttention with past and present in one buffer: the same attention, and an append in place."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sublet.integrations.onnx.dialect import onnx_op
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ops import Share

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
helper = onnx.helper

HEADS, GROUPS, SIZE, ROWS = 4, 2, 16, 24
INPUTS = ("query", "key", "value", "past_key", "past_value", "lengths", "total")
Arrays = dict[str, np.ndarray]


def attention(arrays: Arrays, rows: int = ROWS, **attrs: int) -> onnx.ModelProto:
    """The node alone, with inputs of the shapes of `arrays`."""
    names = [name if name in arrays else "" for name in INPUTS]
    rotary = [name for name in ("cos", "sin") if name in arrays]
    outputs = ["attended", "present_key", "present_value"]
    node = helper.make_node(
        "GroupQueryAttention", [*names, *rotary], outputs, domain="com.microsoft", num_heads=HEADS,
        kv_num_heads=GROUPS, **attrs,
    )  # fmt: skip
    batch, length = arrays["query"].shape[:2]
    element = helper.np_dtype_to_tensor_dtype
    infos = [helper.make_tensor_value_info(name, element(a.dtype), a.shape) for name, a in arrays.items()]
    shapes = [(batch, length, HEADS * SIZE), *[(batch, GROUPS, rows, SIZE)] * 2]
    float_type = element(arrays["query"].dtype)
    results = [helper.make_tensor_value_info(name, float_type, s) for name, s in zip(outputs, shapes, strict=True)]
    total = helper.make_tensor("total", 6, [], arrays["total"].tolist())
    infos = [info for info in infos if info.name != "total"]
    graph = helper.make_graph([node], "attention", infos, results, [total])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model.SerializeToString(), options)


def draw(batch: int, new: int, lengths: list[int], *, packed: bool = False, dtype: str = "f4") -> Arrays:
    """Inputs of a step that appends `new` rows to pasts of `lengths` rows, with garbage beyond the lengths."""
    rng = np.random.default_rng(new + sum(lengths))

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    whole = [length + new for length in lengths]
    arrays = {"query": random(batch, new, (HEADS + 2 * GROUPS * packed) * SIZE)}
    if not packed:
        arrays |= {name: random(batch, new, GROUPS * SIZE) for name in ("key", "value")}
    arrays |= {name: random(batch, GROUPS, ROWS, SIZE) for name in ("past_key", "past_value")}
    return arrays | {"lengths": np.array(whole, "i4") - 1, "total": np.array(max(whole), "i4")}


def run(session: ort.InferenceSession, arrays: Arrays, shared: tuple[str, ...]) -> list[np.ndarray]:
    """The outputs, with the present of each of `shared` over its past."""
    binding, feeds = session.io_binding(), {name: array.copy() for name, array in arrays.items() if name != "total"}
    for name, feed in feeds.items():
        binding.bind_input(name, "cpu", 0, feed.dtype, feed.shape, feed.ctypes.data)
    batch, new = arrays["query"].shape[:2]
    found = [np.full((batch, new, HEADS * SIZE), 7, arrays["query"].dtype)]
    for part in ("key", "value"):
        past = feeds[f"past_{part}"]
        found.append(past if part in shared else np.full_like(past, 7))
    for name, array in zip(("attended", "present_key", "present_value"), found, strict=True):
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    return found


STEPS = [
    *[(1, 1, [past]) for past in (0, 1, 7, ROWS - 1)],  # a token
    *[(1, new, [0]) for new in (2, 9, ROWS)],  # a prompt
    *[(1, 3, [past]) for past in (5, ROWS - 3)],  # a part of a prompt
    (2, 1, [4, 11]),
    (3, 1, [0, 23, 2]),
]


@pytest.mark.parametrize("window", [-1, 8])
@pytest.mark.parametrize("shared", [("key", "value"), ("key",), ("value",)])
@pytest.mark.parametrize(("packed", "rotary", "dtype"), [*product((False, True), (False, True), ("f4",)), (0, 0, "f2")])
def test_an_append_in_place_equals_an_append_elsewhere(
    packed: bool, rotary: bool, dtype: str, shared: tuple[str, ...], window: int
) -> None:
    for batch, new, lengths in STEPS:
        arrays, attrs = draw(batch, new, lengths, packed=packed, dtype=dtype), {"local_window_size": window}
        if rotary:
            angles = np.outer(np.arange(ROWS), 0.7 ** np.arange(SIZE // 2))
            arrays |= {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}
            attrs["do_rotary"] = 1
        session = session_of(attention(arrays, **attrs))
        apart, together = run(session, arrays, ()), run(session, arrays, shared)
        assert together[0].tobytes() == apart[0].tobytes()
        for part, elsewhere, found in zip(("key", "value"), apart[1:], together[1:], strict=True):
            for row, length in enumerate(lengths):
                end = length + new
                assert found[row, :, :end].tobytes() == elsewhere[row, :, :end].tobytes()
                if part in shared:
                    beyond = arrays[f"past_{part}"][row, :, end:]
                    assert found[row, :, end:].tobytes() == beyond.tobytes()
                else:
                    assert not found[row, :, end:].any()


def test_a_present_lies_over_a_past_of_as_many_rows() -> None:
    graph = from_proto(attention(draw(1, 1, [3]))).graph
    (node,) = graph.nodes
    assert onnx_op(node.op).inplace(node) == (Share(1, 3), Share(2, 4))


def test_a_present_with_more_rows_lies_apart() -> None:
    arrays = draw(1, 1, [3])
    arrays["total"] = np.array(ROWS + 1, "i4")
    (node,) = from_proto(attention(arrays, ROWS + 1)).graph.nodes
    assert onnx_op(node.op).inplace(node) == ()
