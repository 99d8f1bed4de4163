"""Generated programs of all commands that have a gradient, their gradients beside PyTorch's, at every alignment.

python -m tests.fuzz_kernels --kind gradients --seconds 600 --seed 1
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import sublet
from sublet.base.errors import SubletError
from sublet.nn.tensor import Tensor
from sublet.training.step import less_memory
from tests.nn import uses
from tests.nn.examples import FORM, spec_of_text
from tests.nn.uses import F, Use, along, binary, norm, recurrent, reduction, unary
from tests.support.kernel_layouts import ALIGNMENTS

MakeUse = Callable[[random.Random], Use]

USES: Mapping[str, MakeUse] = {
    "relu": unary(F.relu, "!"),
    "leaky_relu": unary(lambda x: F.leaky_relu(x, 0.2), "!", {"slope": 0.2}),
    "elu": unary(lambda x: F.elu(x, 0.7), "!", {"alpha": 0.7}),
    "sigmoid": unary(torch.sigmoid),
    "tanh": unary(torch.tanh),
    "softplus": unary(lambda x: F.softplus(x, threshold=1000)),
    "swish": unary(F.silu),
    "gelu": unary(F.gelu),
    "hard_swish": unary(F.hardswish, "!"),
    "erf": unary(torch.erf),
    "attention": uses.attention,
    "cast": unary(lambda x: x, "", {"dtype": "f64"}),
    "copy": unary(torch.clone),
    "to_nhwc": uses.moved(lambda rank: (0, *range(2, rank), 1)),
    "to_nchw": uses.moved(lambda rank: (0, rank - 1, *range(1, rank - 1))),
    "conv": uses.conv(False),
    "conv_transpose": uses.conv(True),
    "add": binary(torch.add),
    "sub": binary(torch.sub),
    "mul": binary(torch.mul),
    "div": binary(torch.div, " 0.5:2"),
    "pow": binary(torch.pow, " 0.5:2"),
    "maximum": binary(torch.maximum, "!"),
    "minimum": binary(torch.minimum, "!"),
    "neg": unary(torch.neg),
    "abs": unary(torch.abs, "!"),
    "sign": unary(torch.sign, "!"),
    "exp": unary(torch.exp),
    "log": unary(torch.log, " 0.1:3"),
    "sqrt": unary(torch.sqrt, " 0.1:3"),
    "reciprocal": unary(torch.reciprocal, " 0.5:3"),
    "square": unary(torch.square),
    "sin": unary(torch.sin),
    "cos": unary(torch.cos),
    "floor": unary(torch.floor, "!"),
    "clamp": unary(lambda x: x.clamp(-0.3, 0.8), "!", {"low": -0.3, "high": 0.8}),
    "where": uses.where,
    "index_select": uses.indexed("index_select"),
    "embedding": uses.indexed("embedding"),
    "gather": uses.indexed("gather"),
    "scatter_add": uses.indexed("scatter_add"),
    "masked_fill": uses.masked,
    "select": uses.indexed("select"),
    "transpose": uses.transpose,
    "slice": uses.slice_,
    "concat": uses.concat,
    "split": uses.split,
    "pad": uses.pad,
    "flip": uses.flip,
    "tile": uses.tile,
    "matmul": uses.matmul,
    "gemm": uses.gemm,
    "linear": uses.linear,
    "categorical_cross_entropy": uses.cross_entropy("categorical"),
    "softmax_cross_entropy": uses.cross_entropy("softmax"),
    "sigmoid_binary_cross_entropy": binary(
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"), " 0.1:0.9", equal=True
    ),
    "binary_cross_entropy": binary(lambda p, t: F.binary_cross_entropy(p, t, reduction="none"), " 0.1:0.9", equal=True),
    "mse": binary(lambda x, t: F.mse_loss(x, t, reduction="none"), equal=True),
    "smooth_l1": binary(lambda x, t: F.smooth_l1_loss(x, t, reduction="none"), equal=True),
    "batch_norm": uses.batch_norm(False),
    "batch_norm_inference": uses.batch_norm(True),
    "layer_norm": norm("layer_norm"),
    "group_norm": norm("group_norm"),
    "rms_norm": norm("rms_norm"),
    "max_pool": uses.pool("max"),
    "avg_pool": uses.pool("avg"),
    "dropout": uses.dropout,
    "lstm_cell": uses.lstm_cell,
    "gru_cell": uses.gru_cell,
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru"),
    "sum": reduction(lambda x, axes, keep: x.sum(axes, keep)),
    "mean": reduction(lambda x, axes, keep: x.mean(axes, keep)),
    "sum_to": uses.spread(True),
    "broadcast_to": uses.spread(False),
    "reshape": uses.reshape,
    "upsample": uses.upsample,
    "max": reduction(lambda x, axes, keep: x.amax(axes, keep), "!"),
    "min": reduction(lambda x, axes, keep: x.amin(axes, keep), "!"),
    "prod": reduction(uses.product_of),
    "norm": reduction(lambda x, axes, keep: torch.linalg.vector_norm(x, 3, axes, keep), " 0.1:1", p=3.0),
    "cumsum": along(lambda x, axis: x.cumsum(axis)),
    "softmax": along(torch.softmax),
    "log_softmax": along(torch.log_softmax),
}
MADE_BY_PASSES = ("chain", "max_pool_gather", "offload", "reload", "top_k")
"""Commands that stand in no program here: passes make them, and top_k gives integers too."""

LARGE = 8.0
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Pair:
    """A tensor of a graph, and the same in PyTorch."""

    planned: Tensor
    eager: Any


@dataclass
class Writer:
    """Writes one program twice."""

    rng: random.Random
    graph: sublet.Graph
    values: np.random.Generator
    inputs: list[Pair] = field(default_factory=list)
    pool: list[Pair] = field(default_factory=list)

    def input(self) -> None:
        shape = uses.shape(self.rng)
        content = torch.tensor(self.values.uniform(-1, 1, shape), requires_grad=True)
        self.inputs.append(Pair(self.graph.input(f"x{len(self.inputs)}", shape, "f64"), content))
        self.pool.append(self.inputs[-1])

    def constant(self, content: Any) -> Pair:
        return Pair(
            self.graph.constant(content, str(content.dtype).replace("float", "f").replace("int", "i")),
            torch.tensor(content),
        )

    def noise(self, shape: tuple[int, ...]) -> Pair:
        return self.constant(self.values.uniform(-1, 1, shape))

    def apply(self, name: str, *given: Pair, function: Callable[..., Any], **attrs: Any) -> list[Pair]:
        made = self.graph.apply(f"nn.{name}", *(pair.planned for pair in given), **attrs)
        found = function(*(pair.eager for pair in given))
        results = found if isinstance(found, tuple | list) else (found,)
        return [Pair(*pair) for pair in zip(made, results, strict=False)]

    def one(self, name: str, *given: Pair, function: Callable[..., Any], **attrs: Any) -> Pair:
        return self.apply(name, *given, function=function, **attrs)[0]

    def fitted(self, shape: tuple[int, ...]) -> Pair:
        """A value of a shape, made of one of the pool."""
        alike = [pair for pair in self.pool if pair.planned.shape == shape]
        if alike and self.rng.random() < 0.7:
            return self.rng.choice(alike)
        pair, wanted = self.rng.choice(self.pool), int(np.prod(shape))
        size = pair.planned.size
        pair = self.one("reshape", pair, function=lambda x: x.reshape(size), shape=(size,))
        if size > wanted:
            step = self.rng.randint(1, max(1, (size - 1) // max(1, wanted - 1))) if self.rng.random() < 0.5 else 1
            start = self.rng.randint(0, size - (wanted - 1) * step - 1)
            cut = slice(start, start + (wanted - 1) * step + 1, step)
            attrs = {"starts": (cut.start,), "ends": (cut.stop,), "steps": (step,)}
            pair = self.one("slice", pair, function=lambda x: x[cut], **attrs)
        elif size < wanted:
            before = self.rng.randint(0, wanted - size)
            pads = before, wanted - size - before
            pair = self.one("pad", pair, function=lambda x: F.pad(x, pads), pads=pads)
        return self.one("reshape", pair, function=lambda x: x.reshape(shape), shape=shape)

    def operand(self, text: str) -> Pair:
        """An input of a use."""
        form, corner = text.removesuffix("!"), text.endswith("!")
        spec, match = spec_of_text(form), FORM.fullmatch(form)
        assert match
        if spec.dtype.text == "bool":
            return self.constant(self.values.integers(0, 2, spec.shape).astype(bool))
        if spec.dtype.text == "i64":
            return self.constant(self.values.integers(int(match["low"]), int(match["high"]), spec.shape))
        if self.rng.random() < 0.15:
            return self.noise(spec.shape) if match["low"] is None else self.between(self.noise(spec.shape), match)
        pair = self.fitted(spec.shape)
        if corner:
            pair = self.one("add", pair, self.noise(spec.shape), function=torch.add)
        return pair if match["low"] is None else self.between(pair, match)

    def between(self, pair: Pair, match: Any) -> Pair:
        """Its numbers mapped to a range."""
        low, high = float(match["low"]), float(match["high"])
        bent = self.one("sigmoid", pair, function=torch.sigmoid)
        width, start = self.constant(np.array(high - low)), self.constant(np.array(low))
        wide = self.one("mul", bent, width, function=torch.mul)
        return self.one("add", wide, start, function=torch.add)

    def use(self, name: str) -> None:
        use = USES[name](self.rng)
        given = [self.operand(text) for text in use.inputs]
        for pair in self.apply(name, *given, function=use.function, **use.attrs):
            if float(pair.eager.detach().abs().max()) > LARGE:
                pair = self.one("tanh", pair, function=torch.tanh)
            self.pool.append(pair)

    def weighted(self, pairs: list[Pair]) -> Pair:
        """A number: the sum of all elements, weighted at random."""
        total: Pair | None = None
        for pair in pairs:
            weight = self.noise(pair.planned.shape)
            product = self.one("mul", pair, weight, function=torch.mul)
            term = self.one("sum", product, function=torch.sum)
            total = term if total is None else self.one("add", total, term, function=torch.add)
        assert total is not None
        return total

    def gradients(self, of: Pair) -> list[Pair]:
        tensors = [pair.eager for pair in self.inputs]
        found = torch.autograd.grad(of.eager, tensors, create_graph=True, allow_unused=True)
        right = [torch.zeros_like(t) if grad is None else grad for t, grad in zip(tensors, found, strict=True)]
        planned = sublet.gradients(of.planned, [pair.planned for pair in self.inputs])
        return [Pair(*pair) for pair in zip(planned, right, strict=True)]


def program(seed: int) -> tuple[Writer, list[str], dict[str, Any]]:
    """A program, the commands it uses, and the gradients it should give by name."""
    rng = random.Random(seed)
    writer = Writer(rng, sublet.Graph(f"program {seed}"), np.random.default_rng(seed))
    for _ in range(rng.randint(1, 3)):
        writer.input()
    names = [rng.choice(list(USES)) for _ in range(rng.randint(1, 6))]
    for name in names:
        writer.use(name)
    others = rng.sample(writer.pool, rng.randint(0, min(3, len(writer.pool))))
    loss = writer.weighted([writer.inputs[0], *others, writer.pool[-1]])
    grads = writer.gradients(loss)
    if rng.random() < 0.3 and all(grad.eager.requires_grad for grad in grads):
        grads += writer.gradients(writer.weighted(grads))
    right = {}
    for i, grad in enumerate(grads):
        writer.graph.output(f"grad{i}", grad.planned)
        right[f"grad{i}"] = grad.eager.detach().numpy()
    return writer, names, right


def check_program(seed: int, seen: Counter[str]) -> None:
    """Write, plan and run one program. Raises AssertionError where a gradient is not PyTorch's."""
    writer, names, right = program(seed)
    if not all(np.isfinite(content).all() and np.abs(content).max(initial=0) < 1e6 for content in right.values()):
        seen["not finite"] += 1
        return
    rng, feeds = writer.rng, {pair.planned.name: pair.eager.detach().numpy() for pair in writer.inputs}
    model = less_memory(writer.graph) if rng.random() < 0.6 else writer.graph
    options = sublet.Options(alignment=rng.choice(ALIGNMENTS), io=rng.choice(("arena", "arena", "bound")))
    backend = rng.choice(("auto", "auto", "auto", "reference"))
    what = f"seed {seed}: {', '.join(names)}, {backend}, {options}"
    try:
        executable = sublet.compile(model, backend=backend, options=options)
        found = sublet.run_poisoned(executable, feeds) if rng.random() < 0.3 else executable(feeds)
    except SubletError as error:
        raise AssertionError(f"{what}: {error}") from error
    for name, expected in right.items():
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=TOLERANCE * scale, err_msg=f"{what}: {name}")
    seen["programs"] += 1
    seen.update(f"nn.{name}" for name in names)
    seen.update(placement.how for placement in executable.plan.placements)
