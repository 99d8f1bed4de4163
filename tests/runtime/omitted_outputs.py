"""Every operator with several outputs, in every subset of them: left out in the file, and asked for by nobody.

    python -m tests.runtime.omitted_outputs [--few]

prints a line before each run, so that whoever started it knows which one ended it. The outputs are compared with those
of ONNX Runtime, which is given all of them: its own kernels end the process where some are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import sublet

CONTRIB = "com.microsoft"
CLASSICAL = "ai.onnx.ml"
WRITTEN = {"": 22, CONTRIB: 1, CLASSICAL: 3}
F32, I64, I32 = np.float32, np.int64, np.int32


@dataclass(frozen=True)
class Example:
    """One node: `inputs` are arrays, None for one that is left out; `outputs` says how many it has.

    They are of type float where it has to be `declared`, since ONNX Runtime does not find out.
    """

    op: str
    inputs: Sequence[Any]
    outputs: int
    attrs: dict[str, Any]
    domain: str = ""
    opset: int = 22
    declared: bool = False

    @property
    def name(self) -> str:
        marks = "".join(f",{key}={attr}" for key, attr in self.attrs.items() if isinstance(attr, int | str))
        return f"{self.domain}{'.' if self.domain else ''}{self.op}-{self.opset}({len(self.inputs)}{marks})"

    def model(self, written: Sequence[bool], asked: Sequence[bool]) -> onnx.ModelProto:
        """The node with the `written` outputs, of which the `asked` ones are outputs of the model."""
        names = [f"y{i}" if kept else "" for i, kept in enumerate(written)]
        while names and not names[-1]:
            names.pop()
        inputs = [f"x{i}" if array is not None else "" for i, array in enumerate(self.inputs)]
        node = helper.make_node(self.op, inputs, names, domain=self.domain, **self.attrs)
        graph = helper.make_graph(
            [node],
            "omitted",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in self.feeds.items()
            ],
            [self._output(f"y{i}") for i, kept in enumerate(asked) if kept],
            value_info=[self._output(name) for name in names if name and self.declared],
        )
        opsets = {**WRITTEN, "": self.opset}
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def _output(self, name: str) -> onnx.ValueInfoProto:
        if self.declared:
            return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        return helper.make_empty_tensor_value_info(name)

    @property
    def feeds(self) -> dict[str, Any]:
        return {f"x{i}": array for i, array in enumerate(self.inputs) if array is not None}

    def subsets(self) -> Iterator[tuple[bool, ...]]:
        """Every choice of outputs but none."""
        return (kept for kept in product((True, False), repeat=self.outputs) if any(kept))

    def few(self) -> Iterator[tuple[bool, ...]]:
        """Every choice of up to three outputs; of more all, all but one, and one."""
        return (kept for kept in self.subsets() if self.outputs < 4 or sum(kept) in (1, self.outputs - 1, self.outputs))


def _numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(F32)


def _quantized(*shape: int) -> Any:
    return np.random.default_rng(shape).integers(0, 255, shape).astype(np.uint8)


def _recurrent(op: str, gates: int, outputs: int, opset: int, **attrs: Any) -> Example:
    weights = [_numbers(1, gates * 3, 2), _numbers(1, gates * 3, 3)]
    return Example(op, [_numbers(4, 2, 2), *weights], outputs, {"hidden_size": 3, **attrs}, opset=opset)


def _batch_normalization(opset: int, *shape: int, **attrs: Any) -> Example:
    inputs = [_numbers(*shape), *(np.abs(_numbers(shape[1], seed=i)) for i in range(4))]
    return Example("BatchNormalization", inputs, 3 if opset >= 14 else 5, attrs, opset=opset)


def _standard() -> Iterator[Example]:
    square = _numbers(2, 4, 6)
    for opset in (7, 9):
        yield _batch_normalization(opset, 2, 8, 3)
    for opset in (14, 15, 22):
        yield _batch_normalization(opset, 2, 8, 3, training_mode=1)
        yield _batch_normalization(opset, 4, 8, training_mode=1)
    for opset in (7, 10, 12, 13, 22):
        yield Example("Dropout", [square], 2, {}, opset=opset)
    never = [square, np.array(0, F32), np.array(True)]
    for opset in (12, 13, 22):
        yield Example("Dropout", never, 2, {"seed": 3}, opset=opset)
    for opset in (7, 14, 22):
        yield _recurrent("RNN", 1, 2, opset)
        yield _recurrent("GRU", 3, 2, opset)
        yield _recurrent("GRU", 3, 2, opset, linear_before_reset=1)
        yield _recurrent("LSTM", 4, 3, opset)
    both = [_numbers(2, 12, 2), _numbers(2, 12, 3)]
    yield Example("LSTM", [_numbers(4, 2, 2), *both], 3, {"hidden_size": 3, "direction": "bidirectional"})
    for opset in (8, 10, 11, 12, 22):
        yield Example("MaxPool", [_numbers(1, 2, 6, 6)], 2, {"kernel_shape": [2, 2]}, opset=opset)
        yield Example("MaxPool", [_numbers(1, 16, 6, 6)], 2, {"kernel_shape": [3, 3]}, opset=opset)
    yield Example("MaxPool", [_quantized(1, 2, 6)], 2, {"kernel_shape": [2]})
    holes = _numbers(1, 2, 6, 6)
    holes[:, :, ::2, 1::2] = holes[:, 0, :3] = np.nan  # kernels with and without indices take it for other numbers
    yield Example("MaxPool", [holes], 2, {"kernel_shape": [2, 2]})
    for opset in (17, 22):
        yield Example("LayerNormalization", [square, _numbers(6), _numbers(6)], 3, {}, opset=opset)
    yield Example("LayerNormalization", [square, _numbers(4, 6)], 3, {"axis": 1}, opset=17)
    yield Example("SimplifiedLayerNormalization", [square, _numbers(6)], 2, {}, opset=17)
    entries = np.array([3, 1, 1, 2, 3], F32)
    for in_order in (0, 1):
        yield Example("Unique", [entries], 4, {"sorted": in_order})
    yield Example("Unique", [np.array([[1, 0], [1, 0], [2, 3]], I64)], 4, {"axis": 0})
    for opset in (23, 24):
        heads = [_numbers(1, 2, 3, 4, seed=i) for i in range(3)]
        yield Example("Attention", heads, 4, {}, opset=opset)
        past = [_numbers(1, 2, 5, 4, seed=i) for i in range(2)]
        yield Example("Attention", [*heads, None, *past], 4, {}, opset=opset)
        flat = [_numbers(1, 3, 8, seed=i) for i in range(3)]
        yield Example("Attention", flat, 4, {"q_num_heads": 2, "kv_num_heads": 2}, opset=opset)
    yield from _required(square)


def _required(square: Any) -> Iterator[Example]:
    """Outputs that the schema does not let go; a file may leave them out all the same."""
    yield Example("DynamicQuantizeLinear", [square], 3, {})
    for opset in (2, 11):
        yield Example("Split", [square], 3, {"axis": 2}, opset=opset)
    yield Example("Split", [square, np.array([1, 3], I64)], 2, {"axis": 1}, opset=13)
    yield Example("Split", [square], 3, {"axis": 2, "num_outputs": 3}, opset=18)
    for opset in (10, 11, 24):
        yield Example("TopK", [square, np.array([2], I64)], 2, {}, opset=opset)
    linear = {"coefficients": [0.1, 0.2, 0.3, 0.4], "intercepts": [0.0, 0.1], "classlabels_ints": [0, 1]}
    yield Example("LinearClassifier", [_numbers(3, 2)], 2, linear, CLASSICAL)


def _contributed() -> Iterator[Example]:
    """Operators of ONNX Runtime's own."""
    rows, width = _numbers(1, 3, 8), _numbers(8)
    skip = [rows, _numbers(1, 3, 8, seed=1), width]
    for op, inputs in (
        ("SkipLayerNormalization", [*skip, width, width]),
        ("SkipLayerNormalization", skip),
        ("SkipSimplifiedLayerNormalization", [*skip, width]),
        ("SkipSimplifiedLayerNormalization", skip),
    ):
        yield Example(op, inputs, 4, {}, CONTRIB)
    project = [rows, _numbers(8, 24), _numbers(24)]
    past = _numbers(2, 1, 2, 5, 4)
    for inputs in (project, [*project, None, past]):
        yield Example("Attention", inputs, 2, {"num_heads": 2, "unidirectional": 1}, CONTRIB)
    one = np.array(0.1, F32)
    quantized = [_quantized(1, 3, 8), _quantized(8, 24), _numbers(24), one, one, None]
    for inputs in (quantized, [*quantized, np.array(3, np.uint8), np.array(3, np.uint8), past]):
        yield Example("QAttention", inputs, 2, {"num_heads": 2, "unidirectional": 1}, CONTRIB)
    three = [_numbers(1, 3, 8, seed=i) for i in range(3)]
    before = [_numbers(1, 2, 5, 4, seed=i) for i in range(2)]
    for inputs in (three, [*three, None, None, None, *before]):
        yield Example("MultiHeadAttention", inputs, 4, {"num_heads": 2}, CONTRIB, declared=True)
    yield from _generating()
    yield from _embedding(width)
    yield Example("EngramGate", _gate(), 2, {}, CONTRIB)
    gates = [_numbers(1, 3, 2), _numbers(2), _numbers(2, seed=1)]
    yield Example("LinearAttentionGate", [*gates, _numbers(1, 3, 2, seed=1)], 2, {}, CONTRIB)
    yield from _hashed()
    yield Example("AttnLSTM", _attended(), 3, {"hidden_size": 3}, CONTRIB)
    scale, zero = np.full((1, 12), 0.01, F32), np.full((1, 12), 3, np.uint8)
    lstm = [_numbers(4, 2, 2), _quantized(1, 2, 12), _quantized(1, 3, 12), *[None] * 5, scale, zero, scale, zero]
    yield Example("DynamicQuantizeLSTM", lstm, 3, {"hidden_size": 3}, CONTRIB)


def _generating() -> Iterator[Example]:
    """One token after five."""
    token, before = [_numbers(1, 1, 16, seed=i) for i in range(3)], [_numbers(1, 2, 5, 8, seed=i) for i in range(2)]
    lengths = [np.array([5], I32), np.array(6, I32)]
    heads = {"num_heads": 2, "kv_num_heads": 2}
    yield Example("GroupQueryAttention", [*token, *before, *lengths], 3, heads, CONTRIB)
    yield Example("GroupQueryAttention", [*token, *before, *lengths], 4, {**heads, "qk_output": 1}, CONTRIB)
    kept = [np.concatenate([array, np.zeros((1, 2, 3, 8), F32)], 2) for array in before]
    masked = [*token, None, None, *kept, np.array([5], I32)]
    shared = {"num_heads": 2, "past_present_share_buffer": 1}
    yield Example("DecoderMaskedMultiHeadAttention", masked, 3, shared, CONTRIB)
    told = {**shared, "output_qk": 1}
    yield Example("DecoderMaskedMultiHeadAttention", masked, 4, told, CONTRIB, declared=True)


def _embedding(width: Any) -> Iterator[Example]:
    ids = np.array([[1, 2, 0]], I32)
    tables = [_numbers(4, 8), _numbers(5, 8), _numbers(2, 8), width, width]
    for mask in (None, np.array([[1, 1, 0]], I32)):
        yield Example("EmbedLayerNormalization", [ids, np.zeros_like(ids), *tables, mask], 3, {}, CONTRIB)


def _gate() -> list[Any]:
    four, scale = (1, 3, 2, 4), (2, 4)
    return [_numbers(*four), _numbers(*four, seed=1), _numbers(1, 3, 4), *(_numbers(*scale, seed=i) for i in range(3))]


def _hashed() -> Iterator[Example]:
    ids, factors, sizes = np.array([[1, 2, 3, 4]], I64), np.array([3, 5, 7], I64), np.array([11, 13, 17, 19], I64)
    attrs = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 0}
    yield Example("NGramHashMapping", [ids, factors, sizes], 2, attrs, CONTRIB)
    ends, segments = np.array([0, 4], I32), np.array([0, 0, 1, 1], I32)
    varlen = [ids[0], factors, sizes, ends, *[None] * 3, segments, np.zeros((1, 2), I32), np.array([2], I32)]
    yield Example("VarlenNGramHashMapping", varlen, 4, {**attrs, "state_update_capacity": 2}, CONTRIB)


def _attended() -> list[Any]:
    """(X, W, R, B, lengths, h, c, P, QW, MW, V, M, memory lengths, AW)."""
    depth, memory = 4, 5
    lengths = [np.full(2, 4, I32), np.full(2, 3, I32)]
    weights = [_numbers(1, 12, 2 + memory), _numbers(1, 12, 3), _numbers(1, 24)]
    attention = [_numbers(1, 3, depth), _numbers(1, memory, depth), _numbers(1, depth), _numbers(2, 3, memory)]
    return [_numbers(4, 2, 2), *weights, lengths[0], None, None, None, *attention, lengths[1]]


def examples() -> list[Example]:
    """One or more of every operator of several outputs that ONNX Runtime has a kernel for on a CPU."""
    return [*_standard(), *_contributed()]


def newest() -> list[Example]:
    """Of examples that differ in the version of their operators only, the last one."""
    return list({(e.domain, e.op, len(e.inputs), str(e.attrs)): e for e in examples()}.values())


def expected(example: Example) -> list[Any] | None:
    """What ONNX Runtime gives for the whole node; None where it does not take it."""
    whole = [True] * example.outputs
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(example.model(whole, whole).SerializeToString(), options)
        return list(session.run(None, example.feeds))
    except Exception as error:
        print(f"REFUSED {example.name}: {str(error).splitlines()[0][:300]}")
        return None


def differs(example: Example, whole: Sequence[Any], kept: Sequence[bool], *, written: bool) -> str:
    """What is wrong with running the example with only the outputs `kept` written or asked for; "" if nothing.

    A file that writes fewer outputs may be another model, or none.
    """
    every = [True] * example.outputs
    model = example.model(kept if written else every, kept)
    try:
        found = list(sublet.compile(model, optimize="none")(example.feeds).values())
    except sublet.SubletError as error:
        return "" if written else f"{type(error).__name__}: {str(error)[:300]}"
    wanted = [array for array, there in zip(whole, kept, strict=True) if there]
    same = all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True))
    return "" if same or written else "it is not what ONNX Runtime gives"


def main(few: bool) -> int:
    """1 when something is wrong."""
    status = 0
    for example in newest() if few else examples():
        print(example.name, flush=True)
        whole = expected(example)
        for kept in (example.few() if few else example.subsets()) if whole is not None else ():
            marks = "".join(".x"[there] for there in kept)
            for written in (True, False):
                print(f"{example.name} {marks} {'written' if written else 'asked for'}", flush=True)
                wrong = differs(example, whole or [], kept, written=written)
                if wrong:
                    status = 1
                    print(f"WRONG {example.name} {marks}: {wrong}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main("--few" in sys.argv))
