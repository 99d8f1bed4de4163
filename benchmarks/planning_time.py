"""How planning scales: random ONNX models of nested, rotating, branching loops in files of up to 1 MiB.

make bench-plan        (or: python -m benchmarks.planning_time [--programs 2000] [--most 1048576] [--png FILE])
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

import sublet
from sublet.integrations.onnx.reader.model import from_proto

FLAGS = 8
DEEPEST = 4
CARRIES = 12

Nodes = list[onnx.NodeProto]
Scalar = tuple[str, int]


@dataclass
class Writer:
    """Writes nodes of one program; every value is a vector of 16 floats but for the flags and the trip count."""

    rng: random.Random
    budget: int
    named: int = 0

    def name(self) -> str:
        self.named += 1
        return f"v{self.named}"

    def nodes(self, scope: list[str], depth: int, share: float = 1.0) -> Nodes:
        """Nodes that extend the scope, until the budget or a share of it is used up."""
        made: Nodes = []
        end = self.budget - max(1, int(self.budget * share))
        while self.budget > end:
            made += self.statement(scope, depth)
        return made

    def statement(self, scope: list[str], depth: int) -> Nodes:
        self.budget -= 1
        kinds: list[Callable[[list[str], int], Nodes]] = [self.op, self.op, self.join]
        if depth < DEEPEST and self.budget > 4:
            kinds += [self.loop, self.branch, self.branch]
        return self.rng.choice(kinds)(scope, depth)

    def op(self, scope: list[str], depth: int) -> Nodes:
        op, count = self.rng.choice([("Sigmoid", 1), ("Softmax", 1), ("Add", 2), ("Mul", 2), ("Neg", 1)])
        node = helper.make_node(op, [self.pick(scope) for _ in range(count)], [self.name()])
        scope.append(node.output[0])
        return [node]

    def join(self, scope: list[str], depth: int) -> Nodes:
        """A concatenation, taken apart again."""
        count = self.rng.choice([2, 2, 3, 8])
        whole, parts = self.name(), [self.name() for _ in range(count)]
        concat = helper.make_node("Concat", [self.pick(scope) for _ in parts], [whole], axis=0)
        scope += parts
        return [concat, helper.make_node("Split", [whole], parts, axis=0)]

    def pick(self, scope: list[str]) -> str:
        """One of the values, mostly a late one."""
        return scope[-1 - min(int(self.rng.expovariate(0.2)), len(scope) - 1)]

    def branch(self, scope: list[str], depth: int) -> Nodes:
        """Two values in one order or the other, or computed anew."""
        one, other = self.pick(scope), self.pick(scope)
        arms = []
        for pair in ((one, other), (other, one)):
            inner = list(scope)
            made = self.nodes(inner, depth + 1, 0.1) if self.rng.random() < 0.3 else []
            ends = [self.pick(inner), self.pick(inner)] if made else list(pair)
            arms.append(self.graph(made, [], ends))
        outs = [self.name(), self.name()]
        scope += outs
        flag = f"flag{self.rng.randrange(FLAGS)}"
        return [helper.make_node("If", [flag], outs, then_branch=arms[0], else_branch=arms[1])]

    def loop(self, scope: list[str], depth: int) -> Nodes:
        """Carried values that are rotated, some of them computed anew."""
        count = self.rng.randint(1, CARRIES)
        carried = [self.name() for _ in range(count)]
        inner = [*scope, *carried]
        made = self.nodes(inner, depth + 1, self.rng.choice([0.02, 0.1, 0.4]))
        updates = self.rng.sample(carried, count)
        updates = [self.pick(inner) if self.rng.random() < 0.2 else update for update in updates]
        i, go = self.name(), self.name()
        body = self.graph(made, [(i, TensorProto.INT64), (go, TensorProto.BOOL), *carried], updates, go)
        outs = [self.name() for _ in range(count)]
        inits = [self.pick(scope) for _ in range(count)]
        scope += outs
        return [helper.make_node("Loop", ["trips", "", *inits], outs, body=body)]

    def graph(
        self, nodes: Nodes, inputs: list[str | tuple[str, int]], outputs: list[str], go: str = ""
    ) -> onnx.GraphProto:
        """A sub-graph; its outputs get names of their own."""
        copies = [helper.make_node("Identity", [output], [self.name()]) for output in outputs]
        results = [info(copy.output[0]) for copy in copies]
        if go:
            copies.insert(0, helper.make_node("Identity", [go], [self.name()]))
            results.insert(0, info((copies[0].output[0], TensorProto.BOOL)))
        return helper.make_graph([*nodes, *copies], self.name(), [info(value) for value in inputs], results)


def info(value: str | Scalar) -> onnx.ValueInfoProto:
    """The type of a value: a vector of floats, or a scalar."""
    if isinstance(value, str):
        return helper.make_tensor_value_info(value, TensorProto.FLOAT, [16])
    return helper.make_tensor_value_info(value[0], value[1], [])


def model(seed: int, budget: int) -> onnx.ModelProto:
    """A random program of about so many nodes."""
    rng = random.Random(seed)
    writer, scope = Writer(rng, budget), [f"x{i}" for i in range(4)]
    inputs = [*map(info, scope), info(("trips", TensorProto.INT64))]
    inputs += [info((f"flag{i}", TensorProto.BOOL)) for i in range(FLAGS)]
    nodes = writer.nodes(scope, 0)
    ends = list(dict.fromkeys(writer.pick(scope) for _ in range(4)))
    outputs = [f"y{i}" for i in range(len(ends))]
    nodes += [helper.make_node("Neg", [end], [output]) for end, output in zip(ends, outputs, strict=True)]
    graph = helper.make_graph(nodes, "random", inputs, [info(output) for output in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


@dataclass(frozen=True)
class Cost:
    """What one program cost to plan."""

    seed: int
    file_bytes: int
    nodes: int
    points: int
    seconds: float
    moves: int


def measured(seed: int, most: int) -> Cost | None:
    """Plan one random program whose file is at most so large; None when it came out larger."""
    budget = int(2 ** random.Random(seed).uniform(3, np.log2(most / 60)))
    proto = model(seed, budget)
    file_bytes = proto.ByteSize()
    if file_bytes > most:
        return None
    graph = from_proto(proto).graph
    start = time.process_time()
    plan = sublet.plan_memory(graph)
    seconds = time.process_time() - start
    return Cost(seed, file_bytes, sum(1 for _ in graph.walk()), len(plan.points), seconds, len(plan.moves))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--programs", type=int, default=2000)
    arguments.add_argument("--most", type=int, default=1 << 20, help="bytes of a file")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--png", default="")
    chosen = arguments.parse_args()
    costs: list[Cost] = []
    seed = chosen.seed
    while len(costs) < chosen.programs:
        cost = measured(seed, chosen.most)
        costs += [] if cost is None else [cost]
        seed += 1
    report(costs)
    if chosen.png:
        draw(costs, chosen.png)


def report(costs: list[Cost]) -> None:
    """A table by size, the slowest program, and how seconds grow with nodes."""
    table = Table("nodes", "programs", "median s", "worst s", "points", "copied", title="planning and checking")
    for power in range(2, 18):
        some = [cost for cost in costs if 1 << power <= cost.nodes < 2 << power]
        if some:
            seconds = [cost.seconds for cost in some]
            points, copied = (sum(values) for values in zip(*((cost.points, cost.moves) for cost in some), strict=True))
            row = (len(some), f"{np.median(seconds):.3f}", f"{max(seconds):.3f}", points // len(some), copied)
            table.add_row(f"{1 << power}..", *map(str, row))
    Console().print(table)
    worst = max(costs, key=lambda cost: cost.seconds)
    print(f"worst: seed {worst.seed}, {worst.file_bytes} bytes, {worst.nodes} nodes, {worst.seconds:.2f} s")
    large = [cost for cost in costs if cost.nodes >= 256]
    if len(large) > 2:
        slope = np.polyfit(np.log([c.nodes for c in large]), np.log([c.seconds for c in large]), 1)[0]
        print(f"seconds grow as nodes^{slope:.2f}, of {len(large)} programs of 256 nodes or more")


def draw(costs: list[Cost], path: str) -> None:
    """Nodes against seconds, both logarithmic, and n log n through the median."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    nodes = np.array([cost.nodes for cost in costs], dtype=float)
    seconds = np.array([cost.seconds for cost in costs])
    scale = float(np.median(seconds / (nodes * np.log2(nodes + 2))))
    line = np.geomspace(nodes.min(), nodes.max(), 50)
    pyplot.loglog(nodes, seconds, ".", markersize=3)
    pyplot.loglog(line, scale * line * np.log2(line + 2), "-", label="n log n")
    pyplot.xlabel("nodes")
    pyplot.ylabel("seconds to plan and check")
    pyplot.legend()
    pyplot.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
