"""Random valid programs over the "test" dialect. They are built legal; nothing is thrown away.

`program(random.Random(seed), size)` is the same graph for the same seed. `size` counts the nodes
roughly; bodies of loops and branches are taken from the same budget.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from sublet.base.tensor import DType, Spec, TensorSpec, Unplannable
from sublet.ir.dataflow import max_trip_count
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from tests.support import dialect
from tests.support.interpreter import ROUNDS

assert dialect.OPS

DEEPEST = 3
COUNTER = TensorSpec(DType.I64)
FLAG = TensorSpec(DType.BOOL)
INDEX = TensorSpec(DType.I32)

Scope = list[Value]
"""The values that may be read, in order of definition; a sub-graph starts with a copy."""


def program(rng: random.Random, size: int, unit: int = 4, control: bool = True, *, recurrent: bool = False) -> Graph:
    """A graph of about `size` nodes. Sizes and offsets inside tensors are multiples of `unit` bytes.

    Most steps of a `recurrent` one are loops, whose rows are also carried to the next round, and what such a loop
    leaves is read together with what it stacked.
    """
    return _Writer(rng, size, unit, control, recurrent).root()


class _Writer:
    def __init__(self, rng: random.Random, size: int, unit: int, control: bool, recurrent: bool) -> None:
        self.rng = rng
        self.budget = size
        self.unit = unit
        self.control = control
        self.recurrent = recurrent
        self.named = 0

    # Names, specs and choices

    def name(self, prefix: str) -> str:
        self.named += 1
        return f"{prefix}{self.named}"

    def new(self, spec: Spec) -> Value:
        return Value(self.name("v"), spec)

    def flat(self, nbytes: int) -> TensorSpec:
        return TensorSpec(DType.U8, (nbytes,))

    def spec(self) -> TensorSpec:
        """Mostly flat, sometimes a sequence of rows, now and then without a byte."""
        length = self.unit * self.rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 8))
        if self.rng.random() < 0.2:
            return TensorSpec(DType.U8, (self.rng.randint(1, 3), length))
        return self.flat(length)

    def some(self, scope: Scope) -> Value:
        """A value to read: often a recent one, so that chains form."""
        plannable = [value for value in scope if value.plannable]
        return self.rng.choice(plannable[-4:] if self.rng.random() < 0.6 else plannable)

    def like(self, scope: Scope, spec: Spec) -> list[Value]:
        return [value for value in scope if value.spec == spec]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Graphs

    def root(self) -> Graph:
        inputs = tuple(self.new(self.spec()) for _ in range(self.rng.randint(1, 3)))
        weights = tuple(self.new(self.spec()) for _ in range(self.rng.randint(0, 3)))
        scope = [*inputs, *weights]
        nodes: list[Node] = []
        while self.budget > 0:
            nodes += self.step(scope, 0)
        made = [value for node in nodes for value in node.defs]
        outputs = [value for value in made if value.plannable and self.chance(0.15)] + made[-1:]
        if self.chance(0.1):
            outputs.append(self.rng.choice(scope))
        updates = self.updates([*inputs, *weights], scope, outputs, nodes) if self.chance(0.3) else ()
        return Graph("program", inputs, tuple(nodes), tuple(outputs), weights, updates)

    def updates(
        self, lasting: list[Value], scope: Scope, outputs: list[Value], nodes: list[Node]
    ) -> tuple[tuple[Value, Value], ...]:
        """Updates of some inputs and weights: from one another, from what there is, from a last step on them."""
        found: list[tuple[Value, Value]] = []
        for target in lasting:
            if target in outputs or self.chance(0.4):
                continue
            ends = [value for value in outputs if value.spec == target.spec]
            if ends and self.chance(0.3):
                found.append((target, self.rng.choice(ends)))
            elif self.chance(0.3):
                nodes.append(self.node("sub", [target, self.some(scope)], [target.spec], scope))
                found.append((target, nodes[-1].defs[0]))
            else:
                found.append((target, self.exactly(scope, target.spec, nodes)))
        return tuple(found)

    def step(self, scope: Scope, depth: int) -> list[Node]:
        """One more op, branch or loop, with what it needs; its results join the scope."""
        self.budget -= 1
        if self.control and depth < DEEPEST and self.budget > 2 and self.chance(0.45 if self.recurrent else 0.2):
            return self.case(scope, depth) if self.chance(0.2 if self.recurrent else 0.5) else self.loop(scope, depth)
        return [self.rng.choice(_COMPUTING if self.recurrent and self.chance(0.6) else _OPS)(self, scope)]

    def steps(self, scope: Scope, depth: int) -> list[Node]:
        """The nodes of a sub-graph: none, or a few."""
        nodes: list[Node] = []
        for _ in range(self.rng.randint(0, 4)):
            if self.budget > 0:
                nodes += self.step(scope, depth)
        return nodes

    def node(
        self, op: str, inputs: Sequence[Value | None], outs: Sequence[Spec | None], scope: Scope, **attrs: Attr
    ) -> Node:
        results = tuple(None if spec is None else self.new(spec) for spec in outs)
        scope.extend(value for value in results if value is not None)
        return Node(self.name("n"), f"test.{op}", tuple(inputs), results, attrs)

    # Ops

    def relu(self, scope: Scope) -> Node:
        x = self.some(scope)
        return self.node("relu", [x], [x.spec], scope)

    def add(self, scope: Scope) -> Node:
        x = self.some(scope)
        others = [self.operand_like(scope, x) for _ in range(self.rng.randint(1, 2))]
        operands = [x, *others]
        self.rng.shuffle(operands)
        return self.node(self.rng.choice(("add", "sub")), operands, [x.spec], scope)

    def operand_like(self, scope: Scope, x: Value) -> Value:
        same = [value for value in scope if value.plannable and value.nbytes == x.nbytes]
        return self.rng.choice(same) if self.chance(0.7) else self.some(scope)

    def norm(self, scope: Scope) -> Node:
        x = self.some(scope)
        second = None if self.chance(0.3) else self.spec()
        return self.node("norm", [x, self.some(scope)], [x.spec, second], scope)

    def matmul(self, scope: Scope) -> Node:
        operands = [self.some(scope) for _ in range(self.rng.randint(1, 3))]
        return self.node("matmul", operands, [self.spec()], scope)

    def two(self, scope: Scope) -> Node:
        return self.node("two", [self.some(scope)], [self.spec(), self.spec()], scope)

    def const(self, scope: Scope) -> Node:
        return self.node("const", [], [self.spec()], scope)

    def reshape(self, scope: Scope) -> Node:
        x = self.some(scope)
        shape = self.some(scope) if self.chance(0.2) else None
        return self.node("reshape", [x, shape], [self.flat(x.nbytes)], scope)

    def slice(self, scope: Scope) -> Node:
        x = self.some(scope)
        begin, end = sorted((self.cut(x), self.cut(x)))
        return self.node("slice", [x], [self.flat(end - begin)], scope, offset=begin)

    def cut(self, x: Value) -> int:
        return self.unit * self.rng.randint(0, x.nbytes // self.unit)

    def split(self, scope: Scope) -> Node:
        x = self.some(scope)
        cuts = sorted(self.cut(x) for _ in range(self.rng.randint(1, 2)))
        sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, x.nbytes], strict=True)]
        return self.node("split", [x], [self.flat(size) for size in sizes], scope)

    def drop(self, scope: Scope) -> Node:
        x = self.some(scope)
        return self.node("drop", [x], [x.spec, None if self.chance(0.5) else self.flat(x.nbytes)], scope)

    def concat(self, scope: Scope) -> Node:
        operands = [self.some(scope) for _ in range(self.rng.choice((1, 2, 2, 3, 4)))]
        return self.node("concat", operands, [self.flat(sum(value.nbytes for value in operands))], scope)

    def pad(self, scope: Scope) -> Node:
        x, before, after = self.some(scope), self.rng.randint(0, 2), self.rng.randint(0, 2)
        size = x.nbytes + self.unit * (before + after)
        return self.node("pad", [x], [self.flat(size)], scope, offset=self.unit * before)

    def copy(self, scope: Scope) -> Node:
        x = self.some(scope)
        return self.node("copy", [x], [x.spec], scope)

    def wrap(self, scope: Scope) -> Node:
        outside = [value for value in scope if not value.plannable]
        if outside and self.chance(0.7):
            return self.node("unwrap", [self.rng.choice(outside)], [self.spec()], scope)
        return self.node("wrap", [self.some(scope)], [Unplannable("a test", other="seq")], scope)

    # Branches and loops

    def exactly(self, scope: Scope, spec: Spec, nodes: list[Node]) -> Value:
        """A value of this spec: one that is there already, or the result of one more node."""
        there = self.like(scope, spec)
        if there and self.chance(0.5):
            return self.rng.choice(there)
        assert isinstance(spec, TensorSpec)
        wide = [value for value in scope if value.plannable and value.nbytes >= spec.nbytes]
        if wide and self.chance(0.3):
            nodes.append(self.node("slice", [self.rng.choice(wide)], [spec], scope))
        elif there and self.chance(0.5):
            nodes.append(self.node("relu", [self.rng.choice(there)], [spec], scope))
        else:
            nodes.append(self.node("matmul", [self.some(scope)], [spec], scope))
        return nodes[-1].defs[0]

    def case(self, scope: Scope, depth: int) -> list[Node]:
        with_fallbacks, count = self.chance(0.4), self.rng.randint(1, 3)
        models = [self.some(scope) for _ in range(self.rng.randint(1, 3))]
        low = -1 if with_fallbacks else 0
        choose = self.node("choose", [self.some(scope)], [INDEX], scope, low=low, count=count - low)
        fallbacks = [self.rng.choice(self.like(scope, model.spec)) for model in models] if with_fallbacks else []
        arms = tuple(self.arm(list(scope), depth, [model.spec for model in models]) for _ in range(count))
        outputs = tuple(None if self.chance(0.1) else self.new(model.spec) for model in models)
        scope.extend(value for value in outputs if value is not None)
        return [choose, CaseOf(self.name("n"), "case", (choose.defs[0], *fallbacks), outputs, arms=arms)]

    def arm(self, scope: Scope, depth: int, specs: Sequence[Spec]) -> Graph:
        nodes = self.steps(scope, depth + 1)
        outputs = tuple(self.exactly(scope, spec, nodes) for spec in specs)
        return Graph(self.name("arm"), (), tuple(nodes), outputs)

    def loop(self, scope: Scope, depth: int) -> list[Node]:
        setup: list[Node] = []
        inits, sequences = self.carries(scope), self.sequences(scope)
        captured = self.chosen_flag(scope, setup) if self.chance(0.15) else None
        carries_condition = captured is None and self.chance(0.3)
        if carries_condition:
            setup.append(self.below(scope, self.some(scope)))
            inits.append(setup[-1].defs[0])
        counter, parameters = self.new(COUNTER), [self.new(init.spec) for init in inits]
        axes = [self.rng.choice((0, 0, self.rng.randrange(len(_shape(value)) - 1))) for value in sequences]
        slices = [self.new(_without(sequence, axis)) for sequence, axis in zip(sequences, axes, strict=True)]
        inner = [*scope, counter, *parameters]
        before: list[Node] = []
        while self.chance(0.4) and self.budget > 0:
            before += self.step(inner, depth + 1)
        if not carries_condition:
            before.append(self.below(inner, counter))
        condition = parameters[-1] if carries_condition else before[-1].defs[0]
        inner += slices
        after = self.steps(inner, depth + 1)
        updates = [self.update(inner, value, after) for value in parameters[: len(inits) - carries_condition]]
        if carries_condition:
            after.append(self.below(inner, counter))
            updates.append(after[-1].defs[0])
        made = [value for node in after for value in node.defs if value.plannable]
        rows = [self.rng.choice(made) if made and self.chance(0.6) else self.some(inner) for _ in range(self.few())]
        if self.recurrent:
            rows += [value for value in updates if value in made and self.chance(0.7)]
        row_axes = [1 if len(_shape(row)) > 1 and self.chance(0.2) else 0 for row in rows]
        finals = [None if self.chance(0.15) else self.new(init.spec) for init in inits]
        stacked = [None if self.chance(0.1) else self.new(self.stack(*row)) for row in zip(rows, row_axes, strict=True)]
        scope.extend(value for value in (*finals, *stacked) if value is not None)
        body = Graph(self.name("body"), (counter, *parameters, *slices), (*before, *after), (*updates, *rows))
        node = While(
            self.name("n"), "while", (*inits, *sequences), (*finals, *stacked),
            body=body, condition=condition, check=len(before), carried=len(inits),
            slice_axes=tuple(axes), slice_reversed=tuple(self.chance(0.3) for _ in axes),
            row_axes=tuple(row_axes), row_reversed=tuple(self.chance(0.3) for _ in rows),
        )  # fmt: skip
        limit = max_trip_count(node)
        if captured and limit is not None and limit <= max(ROUNDS):
            node = replace(node, condition=captured)
        return [*setup, node, *self.together(scope, finals, stacked)]

    def chosen_flag(self, scope: Scope, nodes: list[Node]) -> Value:
        """A condition from outside of its loop, which ends at once or by its slices and rows."""
        flags = [self.below(scope, self.some(scope)) for _ in range(2)]
        choose = self.node("choose", [self.some(scope)], [INDEX], scope, low=0, count=2)
        arms = tuple(Graph(self.name("arm"), (), (), flag.defs) for flag in flags)
        output = self.new(FLAG)
        nodes += [*flags, choose, CaseOf(self.name("n"), "case", choose.defs, (output,), arms=arms)]
        scope.append(output)
        return output if self.chance(0.7) else flags[0].defs[0]

    def update(self, scope: Scope, parameter: Value, nodes: list[Node]) -> Value:
        """What a parameter becomes in the next round; in a recurrent program computed from what it was."""
        if not self.recurrent or self.chance(0.3):
            return self.exactly(scope, parameter.spec, nodes)
        op = self.rng.choice(("add", "sub", "matmul", "norm"))
        outs = [parameter.spec, None] if op == "norm" else [parameter.spec]
        nodes.append(self.node(op, [parameter, self.some(scope)], outs, scope))
        return nodes[-1].defs[0]

    def together(self, scope: Scope, finals: Sequence[Value | None], stacked: Sequence[Value | None]) -> list[Node]:
        """Ops that read both what a loop left and what it stacked, in a recurrent program."""
        left, whole = ([value for value in several if value is not None] for several in (finals, stacked))
        nodes: list[Node] = []
        while self.recurrent and left and whole and self.chance(0.5):
            operands = [self.rng.choice(whole), self.rng.choice(left)]
            if self.chance(0.3):
                operands.reverse()
            op = self.rng.choice(("norm", "sub", "add", "matmul", "concat"))
            sizes = {"concat": self.flat(sum(value.nbytes for value in operands)), "matmul": self.spec()}
            out = sizes.get(op, operands[0].spec)
            nodes.append(self.node(op, operands, [out, None] if op == "norm" else [out], scope))
        return nodes

    def below(self, scope: Scope, counter: Value) -> Node:
        """True in the first rounds only, for a number of rounds that depends on data."""
        return self.node("below", [counter, self.some(scope)], [FLAG], scope)

    def carries(self, scope: Scope) -> list[Value]:
        """Initial values: often of one spec, so that updates can permute and delay them."""
        inits: list[Value] = []
        for _ in range(self.rng.randint(0, 4)):
            same = self.like(scope, inits[-1].spec) if inits and self.chance(0.7) else []
            inits.append(self.rng.choice(same) if same else self.some(scope))
        return inits

    def few(self) -> int:
        """How many slices or rows a loop has."""
        return self.rng.choice((0, 1, 1, 2))

    def sequences(self, scope: Scope) -> list[Value]:
        wide = [value for value in scope if value.plannable and len(_shape(value)) > 1 and _shape(value)[0]]
        return [self.rng.choice(wide) for _ in range(self.few())] if wide else []

    def stack(self, row: Value, axis: int) -> TensorSpec:
        assert isinstance(row.spec, TensorSpec)
        shape = row.spec.shape
        return TensorSpec(row.spec.dtype, (*shape[:axis], self.rng.randint(1, 4), *shape[axis:]))


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.spec, TensorSpec)
    return value.spec.shape


def _without(value: Value, axis: int) -> TensorSpec:
    assert isinstance(value.spec, TensorSpec)
    shape = value.spec.shape
    return TensorSpec(value.spec.dtype, shape[:axis] + shape[axis + 1 :])


_COMPUTING: tuple[Callable[[_Writer, Scope], Node], ...] = (_Writer.relu, _Writer.add, _Writer.norm, _Writer.matmul)

_OPS: tuple[Callable[[_Writer, Scope], Node], ...] = (
    _Writer.relu, _Writer.relu, _Writer.add, _Writer.add, _Writer.norm, _Writer.matmul, _Writer.two, _Writer.const,
    _Writer.reshape, _Writer.slice, _Writer.split, _Writer.drop, _Writer.concat, _Writer.concat, _Writer.pad,
    _Writer.copy, _Writer.wrap,
)  # fmt: skip
