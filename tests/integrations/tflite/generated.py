"""Random networks that TensorFlow Lite Micro runs: straight lines of many kinds of operators, and state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from sublet.integrations.tflite.offline_plan import NumberField, Text
from tests.integrations.tflite.kernels import slice_options
from tests.integrations.tflite.written import ADD, MUL, G, O, T, byte, integer, tflite

SCALES = {"f32": None, "i8": 0.05}


@dataclass
class Network:
    """A subgraph in the making. `open` are the tensors that later operators may read."""

    rng: random.Random
    dtype: str
    tensors: list[T] = field(default_factory=list)
    operators: list[O] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def tensor(
        self, shape: tuple[int, ...], content: object = None, dtype: str = "", scale: float | None = None
    ) -> int:
        kind = dtype or self.dtype
        quantised = scale or SCALES.get(kind)
        zero = -128 if scale == 1 / 256 else 0
        self.tensors.append(T(shape, kind, content, quantised, zero, name=f"t{len(self.tensors)}"))
        return len(self.tensors) - 1

    def given(self, shape: tuple[int, ...]) -> int:
        index = self.tensor(shape)
        self.inputs.append(index)
        self.open.append(index)
        return index

    def numbers(self, *values: int) -> int:
        return self.tensor((len(values),), values, "i32")

    def shape(self, index: int) -> tuple[int, ...]:
        return self.tensors[index].shape

    def add(self, operator: O) -> None:
        self.operators.append(operator)
        self.open += list(operator.outputs)

    def any(self) -> int:
        """One of the last tensors rather than of the first."""
        return self.rng.choice(self.open[-6:])


def unary(net: Network) -> None:
    x = net.any()
    name = net.rng.choice(["RELU", "ABS", "LOGISTIC", "NEG", "SOFTMAX", "LEAKY_RELU", "TANH", "HARD_SWISH"])
    if net.dtype == "i8" and name in ("LOGISTIC", "NEG", "SOFTMAX", "TANH"):
        name = "RELU"
    options = {"SOFTMAX": (9, {0: NumberField("f", 1.0)}), "LEAKY_RELU": (75, {0: NumberField("f", 0.2)})}.get(name)
    net.add(O(name, (x,), (net.tensor(net.shape(x)),), options))


def binary(net: Network) -> None:
    x = net.any()
    same = [index for index in net.open[-12:] if net.shape(index) == net.shape(x)]
    y = net.rng.choice([*same, net.tensor(net.shape(x)[-1:], net.rng.choice([1, 2, 3]))])
    name, options = net.rng.choice([("ADD", ADD), ("MUL", MUL), ("MAXIMUM", None)])
    net.add(O(name, (x, y) if net.rng.random() < 0.8 else (y, x), (net.tensor(net.shape(x)),), options))


def reshape(net: Network) -> None:
    x = net.any()
    size = prod(net.shape(x))
    rows = net.rng.choice([n for n in (1, 2, 3, 4, 6, 8) if size % n == 0])
    shape = (rows, size // rows)
    net.add(O("RESHAPE", (x, net.numbers(*shape)), (net.tensor(shape),), (17, {})))


def concatenation(net: Network) -> None:
    x = net.any()
    if len(net.shape(x)) != 2 or prod(net.shape(x)) > 2000:
        return
    others = [i for i in net.open[-12:] if len(net.shape(i)) == 2 and net.shape(i)[1] == net.shape(x)[1]]
    operands = [x, *(net.rng.choice(others) for _ in range(net.rng.randrange(1, 3)))]
    shape = (sum(net.shape(i)[0] for i in operands), net.shape(x)[1])
    net.add(O("CONCATENATION", operands, (net.tensor(shape),), (10, {0: integer(0), 1: byte(0)})))


def split(net: Network) -> None:
    x = net.any()
    if net.shape(x)[0] % 2:
        return
    half = (net.shape(x)[0] // 2, *net.shape(x)[1:])
    axis = net.tensor((), 0, "i32")
    net.add(O("SPLIT", (axis, x), (net.tensor(half), net.tensor(half)), (35, {0: integer(2)})))


def cut(net: Network) -> None:
    x = net.any()
    if len(net.shape(x)) != 2 or net.shape(x)[0] < 2:
        return
    rows, width = net.shape(x)
    first = net.rng.randrange(rows - 1)
    told = net.numbers(first, 0), net.numbers(rows, width), net.numbers(1, 1)
    net.add(O("STRIDED_SLICE", (x, *told), (net.tensor((rows - first, width)),), slice_options()))


def dense(net: Network) -> None:
    x = net.any()
    if len(net.shape(x)) != 2:
        return
    width = net.rng.choice([4, 8, 12, 24])
    weight = [[net.rng.randrange(-3, 4) for _ in range(net.shape(x)[1])] for _ in range(width)]
    operands = (x, net.tensor((width, net.shape(x)[1]), weight), -1)
    net.add(O("FULLY_CONNECTED", operands, (net.tensor((net.shape(x)[0], width)),), (8, {0: byte(0)})))


def several(net: Network) -> None:
    """An operator whose kernel asks for scratch memory when it is quantised."""
    x = net.any()
    net.add(O("ADD_N", (x, x, x), (net.tensor(net.shape(x)),)))


def mean(net: Network) -> None:
    x = net.any()
    if len(net.shape(x)) != 2:
        return
    along = net.numbers(0)
    net.add(O("MEAN", (x, along), (net.tensor((1, net.shape(x)[1])),), (27, {0: NumberField("B", 1)})))


KINDS: tuple[Callable[[Network], None], ...] = (
    unary, unary, binary, binary, binary, reshape, concatenation, split, cut, dense, several, mean,
)  # fmt: skip


def straight(seed: int, steps: int = 14, dtype: str = "") -> bytes:
    """A network without control flow; what nobody reads is given back."""
    rng = random.Random(seed)
    net = Network(rng, dtype or rng.choice(["f32", "f32", "i8"]))
    for _ in range(rng.choice([1, 1, 2])):
        net.given((rng.choice([1, 2, 4, 6]), rng.choice([4, 8, 24, 48])))
    while len(net.operators) < steps:
        rng.choice(KINDS)(net)
    return tflite(closed(net))


def closed(net: Network) -> G:
    read = {index for operator in net.operators for index in operator.inputs}
    outputs = [index for index in net.open if index not in read and index not in net.inputs]
    return G(net.tensors, net.operators, net.inputs, outputs)


def residual(blocks: int = 6, width: int = 64, dtype: str = "f32") -> bytes:
    """Element-wise chains around additions, as in a residual network."""
    net = Network(random.Random(0), dtype)
    x = net.given((8, width))
    for _ in range(blocks):
        h = net.tensor((8, width))
        net.add(O("RELU", (x,), (h,)))
        bias = net.tensor((width,), 2)
        scaled, y = net.tensor((8, width)), net.tensor((8, width))
        net.add(O("MUL", (h, bias), (scaled,), MUL))
        net.add(O("ADD", (scaled, x), (y,), ADD))
        x = y
    return tflite(closed(net))


def streaming(layers: int = 3, dtype: str = "i8") -> bytes:
    """Layers that keep their last rows in resources, as wake-word models do."""
    net = Network(random.Random(1), dtype)
    x = net.given((2, 24))
    init = Network(random.Random(2), dtype)
    net.operators.append(O("CALL_ONCE", (), (), (103, {0: integer(1)})))
    for layer in range(layers):
        named = (111, {0: Text(""), 1: Text(f"rows{layer}")})
        rows, handle = (6, 24), net.tensor((), None, "resource")
        net.operators.append(O("VAR_HANDLE", (), (handle,), named))
        before, joined, kept = net.tensor(rows), net.tensor((8, 24)), net.tensor(rows)
        net.operators.append(O("READ_VARIABLE", (handle,), (before,)))
        net.operators.append(O("CONCATENATION", (before, x), (joined,), (10, {0: integer(0), 1: byte(0)})))
        told = net.numbers(2, 0), net.numbers(8, 24), net.numbers(1, 1)
        net.operators.append(O("STRIDED_SLICE", (joined, *told), (kept,), slice_options()))
        net.operators.append(O("ASSIGN_VARIABLE", (handle, kept), ()))
        weight = net.tensor((24, 24), [[(i * j) % 5 - 2 for i in range(24)] for j in range(24)])
        mixed, y = net.tensor((8, 24)), net.tensor((2, 24))
        net.operators.append(O("FULLY_CONNECTED", (joined, weight, -1), (mixed,), (8, {0: byte(1)})))
        told = net.numbers(6, 0), net.numbers(8, 24), net.numbers(1, 1)
        net.operators.append(O("STRIDED_SLICE", (mixed, *told), (y,), slice_options()))
        x = y
        start = init.tensor((), None, "resource")
        init.operators.append(O("VAR_HANDLE", (), (start,), named))
        init.operators.append(O("ASSIGN_VARIABLE", (start, init.tensor(rows, 0)), ()))
    return tflite(G(net.tensors, net.operators, net.inputs, [x]), G(init.tensors, init.operators, [], [], "init"))


def calling(seed: int, steps: int = 8) -> bytes:
    """A straight line with a branch or a loop in its middle, and what was made before read after it."""
    rng = random.Random(seed)
    net = Network(rng, "f32")
    net.given((4, 24))
    while len(net.operators) < steps:
        rng.choice(KINDS)(net)
    x = net.any()
    shape, again = net.shape(x), net.tensor(net.shape(x))
    if rng.random() < 0.5:
        which = net.tensor((), None, "bool")
        net.inputs.append(which)
        net.add(O("IF", (which, x), (again,), (92, {0: integer(1), 1: integer(2)})))
        arms = [Network(random.Random(seed + i), "f32") for i in (1, 2)]
        called = [_body(arm, shape) for arm in arms]
    else:
        count, left = net.tensor((1,), None, "i32"), net.tensor((1,), None, "i32")
        net.inputs.append(count)
        net.add(O("WHILE", (count, x), (left, again), (93, {0: integer(1), 1: integer(2)})))
        check = [T((1,), "i32"), T(shape), T((1,), "i32", 5), T((1,), "bool")]
        turn = Network(random.Random(seed + 3), "f32")
        first, one, more = turn.tensor((1,), None, "i32"), turn.numbers(3), turn.tensor((1,), None, "i32")
        turn.operators.append(O("ADD", (first, one), (more,), ADD))
        body = _body(turn, shape)
        called = [
            G(check, [O("LESS", (0, 2), (3,))], [0, 1], [3], "check"),
            G(body.tensors, body.operators, [first, *body.inputs], [more, *body.outputs], "body"),
        ]
        net.open.remove(left)
    while len(net.operators) < 2 * steps:
        rng.choice(KINDS)(net)
    return tflite(closed(net), *called)


def _body(net: Network, shape: tuple[int, ...]) -> G:
    """A chain that keeps a shape."""
    x = y = net.given(shape)
    for name in net.rng.sample(["RELU", "ABS", "TANH", "LOGISTIC"], 2):
        z = net.tensor(shape)
        net.add(O(name, (y,), (z,)))
        y = z
    out = net.tensor(shape)
    net.add(O("ADD", (x, y), (out,), ADD))
    return G(net.tensors, net.operators, [x], [out], "called")
