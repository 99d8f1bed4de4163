"""Random Paddle programs with loops, branches and names that are assigned again, and what they compute.

Contents are numbers: an operator makes one of its type and of what it reads. So a program can be followed as Paddle
would run it, and a graph as its nodes say, and both must give the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import (
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
    new_var,
)
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

MOST_ROUNDS = 3


def mixed(*parts: object) -> int:
    return crc32(repr(parts).encode())


@dataclass
class Writer:
    """Writes one program; `sure` are the variables that surely have content at a point, by name."""

    random: random.Random
    blocks: list[tuple[int, dict[str, PaddleVar], list[PaddleOp]]] = field(default_factory=list)
    count: int = 0

    def block(self, parent: int) -> int:
        self.blocks.append((parent, {}, []))
        return len(self.blocks) - 1

    def var(self, block: int, dtype: DType = DType.F32, dims: tuple[int, ...] = (4,), **more: bool) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.blocks[block][1][name] = new_var(name, dtype, dims, **more)
        return name

    def op(self, block: int, *op: object) -> None:
        self.blocks[block][2].append(new_op(*op))  # type: ignore[arg-type]

    def flag(self, block: int, of: str) -> str:
        name = self.var(block, DType.BOOL, ())
        self.op(block, "reduce_any", {"X": [of]}, {"Out": [name]})
        return name

    def fill(self, block: int, sure: list[str], depth: int) -> None:
        """Operators of a block; `sure` gains what is written whatever happens."""
        for _ in range(self.random.randint(2, 6)):
            kind = self.random.random()
            if depth and kind < 0.15:
                self.loop(block, sure, depth)
            elif depth and kind < 0.3:
                self.pair(block, sure, depth)
            elif depth and kind < 0.4:
                self.branch(block, sure, depth)
            else:
                self.leaf(block, sure)

    def leaf(self, block: int, sure: list[str]) -> None:
        again = self.random.random() < 0.4
        out = self.random.choice(sure) if again else self.var(block)
        x, y = (self.random.choice(sure) for _ in range(2))
        if self.random.random() < 0.5:
            self.op(block, self.random.choice(["relu", "scale", "assign"]), {"X": [x]}, {"Out": [out]})
        else:
            self.op(block, "elementwise_add", {"X": [x], "Y": [y]}, {"Out": [out]}, {"axis": -1})
        if not again:
            sure.append(out)

    def loop(self, block: int, sure: list[str], depth: int) -> None:
        flag = self.flag(block, self.random.choice(sure))
        body = self.block(block)
        inner = list(sure)
        self.fill(body, inner, depth - 1)
        again = self.flag(body, self.random.choice(inner))
        self.op(body, "assign", {"X": [again]}, {"Out": [flag]})
        scopes = new_var(f"{flag}.scopes", None, kind="STEP_SCOPES")
        self.blocks[block][1][scopes.name] = scopes
        slots = {"Condition": [flag], "X": list(sure)}
        self.op(
            block,
            "while",
            slots,
            {"Out": [flag], "StepScopes": [scopes.name]},
            {"sub_block": PaddleAttr("BLOCK", body)},
        )

    def branch(self, block: int, sure: list[str], depth: int) -> None:
        flag = self.flag(block, self.random.choice(sure))
        self.arm(block, flag, sure, depth, None)

    def pair(self, block: int, sure: list[str], depth: int) -> None:
        """If and else, as `paddle.static.nn.cond` writes them."""
        flag, negated, mask = self.flag(block, self.random.choice(sure)), self.var(block, DType.BOOL, ()), ""
        outs = [self.var(block), self.var(block), self.var(block)]
        self.arm(block, flag, sure, depth, outs[0])
        self.op(block, "logical_not", {"X": [flag]}, {"Out": [negated]})
        self.arm(block, negated, sure, depth, outs[1])
        mask = self.var(block, DType.I32, ())
        self.op(block, "cast", {"X": [flag]}, {"Out": [mask]})
        self.op(block, "select_input", {"Mask": [mask], "X": [outs[1], outs[0]]}, {"Out": [outs[2]]})
        sure.append(outs[2])

    def arm(self, block: int, flag: str, sure: list[str], depth: int, out: str | None) -> None:
        body, inner = self.block(block), list(sure)
        self.fill(body, inner, depth - 1)
        if out is not None:
            self.op(body, "assign", {"X": [self.random.choice(inner)]}, {"Out": [out]})
        outs = {"Out": [out] if out else []}
        more = {"sub_block": PaddleAttr("BLOCK", body), "is_scalar_condition": True}
        self.op(block, "conditional_block", {"Cond": [flag], "Input": list(sure)}, outs, more)


def generated(seed: int, depth: int = 3) -> PaddleProgram:
    """A program with one feed, a persistable variable that a run may change, and up to three fetches."""
    writer = Writer(random.Random(seed))
    writer.block(-1)
    x, state = writer.var(0), writer.var(0, persistable=True)
    writer.blocks[0][1]["feed"] = new_var("feed", None, kind="FEED_MINIBATCH", persistable=True)
    writer.blocks[0][1]["fetch"] = new_var("fetch", None, kind="FETCH_LIST", persistable=True)
    writer.op(0, "feed", {"X": ["feed"]}, {"Out": [x]}, {"col": 0})
    sure = [x, state]
    writer.fill(0, sure, depth)
    for column in range(writer.random.randint(1, 3)):
        writer.op(0, "fetch", {"X": [writer.random.choice(sure)]}, {"Out": ["fetch"]}, {"col": column})
    blocks = [PaddleBlock(i, parent, -1, vars_, tuple(ops)) for i, (parent, vars_, ops) in enumerate(writer.blocks)]
    return PaddleProgram(tuple(blocks))


def truth(content: int) -> bool:
    return bool(content & 1)


def computed(kind: str, inputs: Mapping[str, list[int]]) -> int:
    """What an operator makes of what it reads."""
    x = inputs["X"]
    if kind == "logical_not":
        return x[0] ^ 1
    if kind in ("assign", "cast"):
        return x[0]
    if kind == "select_input":
        return x[truth(inputs["Mask"][0])]
    return mixed(kind, sorted(inputs.items()))


@dataclass
class Executor:
    """Runs a program as Paddle does: a scope for each block, for each time that it runs."""

    program: PaddleProgram
    outputs: list[int] = field(default_factory=list)

    def run(self, block: int, scopes: dict[int, dict[str, int]]) -> None:
        scopes = {**scopes, block: {}} if block else scopes
        for op in self.program.blocks[block].ops:
            inner = op.block_index()
            if op.type == "feed":
                continue
            if op.type == "fetch":
                self.outputs.append(self.at(block, op.reads[0], scopes))
            elif op.type == "while":
                rounds = 0
                while truth(self.at(block, op.inputs["Condition"][0], scopes)) and rounds < MOST_ROUNDS:
                    self.run(inner or 0, scopes)
                    rounds += 1
            elif op.type == "conditional_block":
                if truth(self.at(block, op.inputs["Cond"][0], scopes)):
                    self.run(inner or 0, scopes)
            else:
                ready = {s: [self.at(block, name, scopes) for name in names] for s, names in op.inputs.items()}
                home = self.program.declaring_block(block, op.writes[0])
                scopes[home or 0][op.writes[0]] = computed(op.type, ready)

    def at(self, block: int, name: str, scopes: dict[int, dict[str, int]]) -> int:
        """What a variable holds; what nobody wrote must not matter."""
        return scopes[self.program.declaring_block(block, name) or 0].get(name, -2)


def follow(graph: Graph, known: dict[Value, int]) -> None:
    """Runs the nodes of a graph."""
    for node in graph.nodes:
        if isinstance(node, While):
            state, rounds = [known[value] for value in node.inits], 0
            while True:
                inner = {**known, **dict(zip(node.parameters, state, strict=True))}
                if rounds == MOST_ROUNDS or not truth(inner[node.condition]):
                    break
                follow(node.body, inner)
                state, rounds = [inner[value] for value in node.updates], rounds + 1
            known.update((value, new) for value, new in zip(node.finals, state, strict=True) if value is not None)
        elif isinstance(node, CaseOf):
            arm, inner = node.arms[truth(known[node.index])], dict(known)
            follow(arm, inner)
            outs = zip(node.outputs, arm.outputs, strict=True)
            known.update((value, inner[new]) for value, new in outs if value is not None)
        else:
            known[node.defs[0]] = _node(node, known)


def _node(node: Node, known: dict[Value, int]) -> int:
    if node.op == "paddle.undefined":
        return -2
    inputs: dict[str, list[int]] = {}
    slots = node.attrs["inputs"]
    assert isinstance(slots, tuple)
    for slot, value in zip(slots, node.uses, strict=True):
        inputs.setdefault(str(slot), []).append(known[value])
    return computed(node.op.removeprefix("paddle."), inputs)
