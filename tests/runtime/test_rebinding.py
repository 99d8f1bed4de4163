"""Other memory for an input, output or state: programs find it without being bound anew as a whole."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sublet
from sublet import Executable, Graph, Options, compile, nn
from sublet.base.errors import RunError
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import While
from tests.runtime.test_generated import BEYOND, Mixing, feeds_of
from tests.support.programs import program
from tests.support.update_programs import exchanging

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def copied(array: np.ndarray) -> np.ndarray:
    """At an address of its own, of any alignment that its elements allow."""
    raw = sublet.aligned_bytes(array.nbytes + 64, 64)[array.itemsize : array.itemsize + array.nbytes]
    found = raw.view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def rebound(executable: Executable, feeds: dict[str, np.ndarray], rng: random.Random) -> None:
    """Lets some inputs and outputs be other memory, and spoils what they were."""
    for name, value in {**executable.inputs, **executable.outputs}.items():
        kinds = {storage.name: storage.kind for storage in executable.plan.storages}
        if kinds.get(f"%{value.name}") not in ("input", "output") or rng.random() < 0.3:
            continue
        old = executable.bytes_of(value)
        content = feeds[name] if name in feeds else np.zeros(value.spec.shape, NUMPY[value.spec.dtype])
        executable.bind(name, copied(content))
        if value not in executable.graph.updated_values and old.flags.writeable:
            old[:] = 0xA5


def check_program(seed: int, make: Any = program) -> int:
    rng = random.Random(seed)
    graph = make(rng, 24)
    if any(isinstance(node, While) and node.rows for node in graph.walk()):
        return 0
    fed = feeds_of(graph, rng)
    weights = {value.name: fed.pop(value.name) for value in graph.weights}
    options = Options(io="bound")
    one = compile(graph, backend=Mixing([b""]), weights=weights, options=options)
    done = 0
    for _ in range(4):
        fed = {name: array for name, array in feeds_of(graph, rng).items() if name in one.inputs}
        state = {name: one.state(name) for name in one.updated if done}
        try:
            rebound(one, fed, rng)
            for name, content in state.items():
                one.set_state(name, content)
            found = one({name: array for name, array in fed.items() if name not in state})
            fresh = compile(graph, backend=Mixing([b""]), weights=weights, options=options)
            for name, content in state.items():
                fresh.set_state(name, content)
            right = fresh({name: array for name, array in fed.items() if name not in state})
        except RunError as error:
            if BEYOND not in str(error):
                raise
            return done
        assert all(np.array_equal(found[name], right[name]) for name in right), f"seed {seed}"
        assert all(np.array_equal(one.state(name), fresh.state(name)) for name in one.updated), f"seed {seed}"
        done += 1
    return done


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_generated_programs_run_in_whatever_memory_is_bound(first: int) -> None:
    assert sum(check_program(seed) for seed in range(first, first + 20)) >= 8


def test_memory_that_is_exchanged_may_be_bound_anew() -> None:
    assert sum(check_program(seed, exchanging) for seed in range(20)) >= 10


ONNX = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,4] x) => (float[3,4] y, float[4,3] z) {
  a = Relu(x) b = Exp(a) c = Sigmoid(b) d = Mul(c, x) e = Transpose(d) f = Tanh(e) z = Neg(f) y = Softmax(d)
}"""
SCALARS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1] x) => (float[1] y) { a = Abs(x) b = Add(a, x) c = Mul(b, x) y = Neg(c) }"""


def written() -> Any:
    g = Graph()
    x = g.input("x", (3, 4))
    y = nn.tanh(nn.matmul(x, g.parameter("w", (4, 4), initial=np.eye(4))) + x)
    g.output("y", y)
    g.output("z", nn.relu(y).T)
    return g


@pytest.mark.parametrize("backend", ["torch", "reference", "onnxruntime", "numpy"])
def test_calls_are_bound_anew_one_by_one(backend: str) -> None:
    """All programs stay: nothing but what holds the address is bound again."""
    models = [written()] if backend == "torch" else [onnx.parser.parse_model(text) for text in (ONNX, SCALARS)]
    for model in models:
        chain = [backend, "reference"] if backend == "numpy" else backend
        one = compile(model, backend=chain, options=Options(io="bound"))
        spec = one.inputs["x"].spec
        assert isinstance(spec, TensorSpec)
        x = np.linspace(0.5, 2, spec.size, dtype=np.float32).reshape(spec.shape)
        first = one(x=x)
        bound = one._program
        memory = {name: copied(np.zeros_like(first[name])) for name in one.outputs}
        for turn in range(3):
            fed = copied(x + turn)
            one.bind("x", fed)
            for name in one.outputs:
                memory[name] = copied(np.zeros_like(first[name]))
                one.bind(name, memory[name])
            found = one.views()
            fresh = compile(model, backend=chain, options=Options(io="bound"))
            for name, right in fresh(x=fed).items():
                assert np.array_equal(found[name], right)
                assert np.array_equal(memory[name], right)
            fed *= 2  # read where it is
            assert np.array_equal(one()["y"], fresh(x=fed)["y"])
        assert one._program is bound


def many_commands() -> Any:
    """Kernels that are one call of what they are given, that see it in another shape, and that make several calls."""
    g = Graph()
    x, y, i = g.input("x", (3, 4)), g.input("y", (3, 4)), g.input("i", (3,), "i64")
    joined = nn.concat([x, nn.sigmoid(y), x], axis=1)
    g.output("a", nn.softmax(nn.matmul(joined, joined, transpose_b=True) + x.sum(), axis=0))
    g.output("b", nn.where(x > y, x.T.reshape(3, 4), nn.exp(y[:, ::2]).sum() - y))
    g.output("c", nn.embedding(x, i) * nn.layer_norm(y, None, None)[0])
    g.output("d", nn.relu(nn.tanh(nn.relu(x))))
    return g


def test_calls_are_told_of_other_memory_as_their_kernels_would_be() -> None:
    one, rng = compile(many_commands(), options=Options(io="bound")), np.random.default_rng(0)
    memory: dict[str, np.ndarray] = {}
    for turn in range(6):
        fed = {name: copied(rng.normal(size=(3, 4)).astype(np.float32)) for name in "xy"}
        fed["i"] = copied(rng.integers(0, 3, 3))
        if turn == 3:
            fed["x"].flags.writeable = False
        for name in rng.permutation([*one.inputs, *one.outputs]):
            if name in one.outputs:
                fed[name] = copied(np.zeros(one.outputs[name].spec.shape, np.float32))
            one.bind(name, fed[name])
        memory |= fed
        if turn % 2:
            continue  # bound once more before it runs
        one.views()
        right = compile(many_commands())({name: memory[name] for name in one.inputs})
        for name, array in right.items():
            assert np.array_equal(memory[name], array), (turn, name)
    known = one._programs._programs[()].holders._patches
    assert "d" in known, "its kernel is one call"


def test_what_cannot_be_bound_leaves_the_memory_there_was() -> None:
    one = compile(written(), options=Options(io="bound"))
    mine = copied(X)
    one.bind("x", mine)
    right = one()["y"]
    one.bind("x", copied(X))
    one.bind("x", mine)
    for bad in (X[::-1], X.astype(np.float64), one.views()["y"].T, "no memory"):
        with pytest.raises(RunError):
            one.bind("x", bad)
    arena = sublet.aligned_bytes(one.arena_bytes + 4096, 64)
    one.bind("arena", arena)
    with pytest.raises(RunError, match="shares memory with 'arena', and the network writes"):
        one.bind("x", arena[: X.nbytes])
    assert np.array_equal(one()["y"], right)
    assert np.array_equal(mine, X)
