"""Reader of inference programs in PIR: shape inference, then conversion; `while` becomes a loop, `if` a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sublet.base.errors import ModelError, SpecError, SubletError
from sublet.base.files import read_text
from sublet.base.names import NameGenerator
from sublet.base.tensor import Dims, DType, Spec, TensorSpec, Unplannable, format_dims
from sublet.integrations.paddle.convert.model import load_program
from sublet.integrations.paddle.format.pir import PARAMETER, PirBlock, PirOp, PirValue, decode_pir
from sublet.integrations.paddle.operators.dialect import PREFIX
from sublet.integrations.paddle.operators.rules import infer_outputs
from sublet.integrations.paddle.operators.rules.call import Operand, PaddleCall
from sublet.integrations.paddle.operators.shapes import STEPS, STEPS_EACH, join_dims
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from sublet.ir.model import Model

# Mapping of PIR operators to the older form with the same kernels: type, slots, attribute names.
#
# A slot with a leading "=" is an attribute in the older form, with the elements of the operand as value.


@dataclass(frozen=True, slots=True)
class LegacySpelling:
    """Type, slots and attribute names of a PIR operator in the older form."""

    type: str
    inputs: tuple[str, ...] = ("X",)
    outputs: tuple[str, ...] = ("Out",)
    attrs: Mapping[str, str] = field(default_factory=dict)


_ELEMENTWISE = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min",
    "elementwise_pow": "pow", "floor_divide": "floordiv", "remainder": "mod",
}  # fmt: skip
_COMPARISONS = (
    *("equal", "greater_equal", "greater_than", "less_equal", "less_than", "logical_and", "logical_or", "logical_xor"),
    *("not_equal", "bitwise_and", "bitwise_or"),
)
_UNCHANGED_NAMES = (
    *("abs", "assign", "cast", "ceil", "clip", "cos", "elu", "erf", "exp", "floor", "gelu", "increment", "leaky_relu"),
    *("log", "log_softmax", "logical_not", "mish", "pow", "prelu", "reciprocal", "relu", "relu6", "round", "rsqrt"),
    *("scale", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "softsign", "sqrt", "square", "swish", "tanh"),
)
_OTHER_NAMES = {"hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "full_like": "fill_any_like"}
_NORMALIZED = ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace")

SPELLINGS: Mapping[str, LegacySpelling] = {
    **{name: LegacySpelling(f"elementwise_{old}", ("X", "Y")) for name, old in _ELEMENTWISE.items()},
    **{name: LegacySpelling(name, ("X", "Y")) for name in _COMPARISONS},
    **{name: LegacySpelling(name) for name in _UNCHANGED_NAMES},
    **{name: LegacySpelling(old) for name, old in _OTHER_NAMES.items()},
    **{
        name: LegacySpelling(f"reduce_{name}", ("X", "=dim"), attrs={"keepdim": "keep_dim", "axis": "dim"})
        for name in ("mean", "sum", "max", "min", "prod", "any", "all")
    },
    **{
        name: LegacySpelling(f"{name}_v2", ("X", "OutSize", "SizeTensor", "Scale"))
        for name in ("nearest_interp", "bilinear_interp", "bicubic_interp", "linear_interp")
    },
    **{
        name: LegacySpelling(name, ("Input", "Filter"), ("Output",))
        for name in ("conv2d", "depthwise_conv2d", "conv3d")
    },
    **{
        name: LegacySpelling(name, ("Input", "Filter", "=output_size"), ("Output",))
        for name in ("conv2d_transpose", "depthwise_conv2d_transpose")
    },
    **dict.fromkeys(
        ("batch_norm", "batch_norm_"),
        LegacySpelling("batch_norm", ("X", "Mean", "Variance", "Scale", "Bias"), _NORMALIZED),
    ),
    "layer_norm": LegacySpelling("layer_norm", ("X", "Scale", "Bias"), ("Y", "Mean", "Variance")),
    "dropout": LegacySpelling("dropout", ("X", "Seed"), ("Out", "Mask")),
    "pool2d": LegacySpelling("pool2d", ("X", "=ksize")),
    "matmul": LegacySpelling("matmul_v2", ("X", "Y"), attrs={"transpose_x": "trans_x", "transpose_y": "trans_y"}),
    "bmm": LegacySpelling("bmm", ("X", "Y")),
    "full": LegacySpelling("fill_constant", ()),
    "full_int_array": LegacySpelling("assign_value", (), attrs={"value": "values"}),
    "reshape": LegacySpelling("reshape2", ("X", "Shape"), ("Out", "XShape")),
    "squeeze": LegacySpelling("squeeze2", ("X", "=axes"), ("Out", "XShape")),
    "unsqueeze": LegacySpelling("unsqueeze2", ("X", "=axes"), ("Out", "XShape")),
    "flatten": LegacySpelling("flatten_contiguous_range", ("X",), ("Out", "XShape")),
    "transpose": LegacySpelling("transpose2", ("X",), ("Out", "XShape"), {"perm": "axis"}),
    "concat": LegacySpelling("concat", ("X", "AxisTensor")),
    "stack": LegacySpelling("stack", ("X",), ("Y",)),
    "slice": LegacySpelling("slice", ("Input", "=starts", "=ends")),
    "shape": LegacySpelling("shape", ("Input",)),
    "shape64": LegacySpelling("shape", ("Input",)),
    "embedding": LegacySpelling("lookup_table_v2", ("Ids", "W")),
    "gather": LegacySpelling("gather", ("X", "Index", "=axis")),
    "expand": LegacySpelling("expand_v2", ("X", "Shape")),
    "where": LegacySpelling("where", ("Condition", "X", "Y")),
    "argmax": LegacySpelling("arg_max", ("X", "=axis")),
}


def legacy_call_of(op: PirOp, operands: Sequence[Sequence[Operand]]) -> tuple[PaddleCall, LegacySpelling | None]:
    """Return the application of a PIR operator for the shape rules, and the spelling, or None if unknown.

    `operands` has the operands of each input, several for a list of tensors.
    """
    spelling = SPELLINGS.get(op.type)
    if spelling is None:
        return PaddleCall(op.type, {}, {}, {}), None
    attrs = {spelling.attrs.get(name, name): value for name, value in op.attrs.items()}
    inputs: dict[str, Sequence[Operand]] = {}
    for slot, every in zip(spelling.inputs, operands, strict=False):
        if slot.startswith("="):
            values = every[0].values if every else ()
            if values is None or None in values:
                return PaddleCall("", {}, {}, {}), spelling  # known only at run time: no rule applies
            if every:
                attrs[slot[1:]] = values
        elif every:
            inputs[slot] = every
    if spelling.type == "assign_value":
        values_ = attrs.get("values")
        attrs["shape"] = (len(values_),) if isinstance(values_, tuple) else ()
    return PaddleCall(spelling.type, attrs, inputs, dict.fromkeys(spelling.outputs, 1)), spelling


INPUTS = ("data", "feed")
OUTPUTS = ("fetch", "shadow_output")
COMBINE, SPLIT, YIELD = "combine", "split", "yield"
MAX_PASSES = 8
"""Limit of inference passes over a loop body; extents still not stable are open."""


def load_pir(path: str | Path, dims: Mapping[str, int] | None = None) -> Model:
    """Read a model from a `.json` saved by Paddle. `dims` binds open extents of inputs ("x.0")."""
    path = Path(path)
    return model_from_block(decode_pir(read_text(path, ModelError), path.name), dims or {}, path.name)


def model_from_block(block: PirBlock, dims: Mapping[str, int], where: str) -> Model:
    """Return the model of a decoded program. Raises ModelError for any program but an inference program."""
    conversion = _PirConversion(where, dict(dims), STEPS + STEPS_EACH * _count_operators(block))
    conversion.infer_block(block)
    if conversion.requested_extents:
        raise ModelError(
            f"{where}: --dim {next(iter(conversion.requested_extents))} names no extent of an input: write x.0=..."
        )
    nodes, outputs = conversion.convert_block(block)
    if not outputs:
        raise ModelError(f"{where}: the program returns nothing (no operator fetch)")
    graph = Graph(
        Path(where).stem or "program", tuple(conversion.inputs), tuple(nodes), tuple(outputs), tuple(conversion.weights)
    )
    names = tuple(value.name for value in conversion.inputs)
    return Model(graph, dict(dims), {}, names, tuple(value.name for value in outputs))


def _count_operators(block: PirBlock) -> int:
    """Return the number of operators in a block and its nested blocks."""
    return sum(1 + sum(map(_count_operators, op.blocks)) for op in block.ops)


@dataclass
class _PirConversion:
    """State of a conversion: `operands` has the inferred facts about each PIR value, `values` the converted values.

    A list of tensors has several operands and several values.
    """

    where: str
    requested_extents: dict[str, int]
    steps: int
    operands: dict[int, tuple[Operand, ...]] = field(default_factory=dict)
    values: dict[int, tuple[Value, ...]] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    weights: list[Value] = field(default_factory=list)
    names: NameGenerator = field(default_factory=partial(NameGenerator, separator=".", first=1, is_shared=True))

    def infer_block(self, block: PirBlock) -> tuple[int, ...]:
        """Infer the extents in a block, and return the numbers of the yielded values."""
        for op in block.ops:
            self.steps -= 1
            if self.steps < 0:
                raise ModelError(f"{self.where}: shape inference of its loops takes too many passes")
            if op.type == YIELD:
                return op.inputs
            if op.type == "while" and len(op.blocks) == 1:
                self._infer_loop(op)
            elif op.type == "if" and len(op.blocks) == 2:
                ends = [self.infer_block(inner) for inner in op.blocks]
                if any(len(end) != len(op.outputs) for end in ends):
                    raise ModelError(
                        f"{self.where}: an arm of a branch returns another number of values than the branch"
                    )
                for value, *each in zip(op.outputs, *ends, strict=True):
                    self.operands[value.number] = (Operand(join_dims(*map(self._dims, each))),)
            elif op.blocks:
                raise ModelError(f"{self.where}: the effect of {op.type} on its blocks is unknown")
            else:
                self._infer_operator(op)
        return ()

    def _infer_loop(self, op: PirOp) -> None:
        """Infer the extents of a loop: iterate over the body until the extents of all carried values are stable.

        If the extents are not stable after MAX_PASSES passes, the extents of all carried values are open.
        """
        body, inits = self._loop_body(op), op.inputs[1:]
        if not op.inputs or not len(body.args) == len(inits) == len(op.outputs):
            raise ModelError(f"{self.where}: a loop carries {len(inits)} values into {len(body.args)} arguments")
        state = [self._dims(number) for number in inits]
        for _ in range(MAX_PASSES):
            for arg, dims in zip(body.args, state, strict=True):
                self.operands[arg.number] = (Operand(dims),)
            ends = self.infer_block(body)
            if len(ends) != len(op.inputs):
                raise ModelError(f"{self.where}: the body of a loop returns {len(ends)} values for {len(op.inputs)}")
            after = [join_dims(was, self._dims(number)) for was, number in zip(state, ends[1:], strict=True)]
            if after == state:
                break
            state = after
        else:
            state = [None] * len(state)
        for value, dims in zip((*body.args, *op.outputs), [*state, *state], strict=True):
            self.operands[value.number] = (Operand(dims),)

    def _dims(self, number: int) -> Dims:
        """Return the extents of a value; None for a missing value."""
        return self.operands[number][0].dims if number and self.operands[number] else None

    def _infer_operator(self, op: PirOp) -> None:
        """Infer the outputs of an operator without blocks."""
        operands = [self.operands[number] if number else () for number in op.inputs]
        if op.type == COMBINE:
            self.operands[op.outputs[0].number] = tuple(operand for every in operands for operand in every)
            return
        if op.type == SPLIT and operands and len(operands[0]) == len(op.outputs):
            self.operands.update((v.number, (part,)) for v, part in zip(op.outputs, operands[0], strict=True))
            return
        call, spelling = legacy_call_of(op, operands)
        try:
            by_slot = infer_outputs(call) if spelling else {}
        except SpecError as error:
            raise ModelError(f"{self.where}: operator {op.type} {error}") from None
        slots = spelling.outputs if spelling else ()
        for position, value in enumerate(op.outputs):
            slot = slots[position] if position < len(slots) else ""
            inferred = by_slot.get(slot, ())
            if value.parts:
                self.operands[value.number] = tuple(Operand(part.dims) for part in value.parts)
            else:
                self.operands[value.number] = (
                    self._refine_operand(op, value, inferred[0] if inferred else Operand(None)),
                )

    def _refine_operand(self, op: PirOp, value: PirValue, ruled: Operand) -> Operand:
        """Return the operand for an output: extents by the rule, then the declaration, then the caller for an input."""
        dims = _fill_open_extents(ruled.dims, value.dims)
        if op.type in INPUTS and dims is not None:
            name = str(op.attrs.get("name"))
            requested = [self.requested_extents.pop(f"{name}.{axis}", extent) for axis, extent in enumerate(dims)]
            if any(extent is not None and extent != now for extent, now in zip(dims, requested, strict=True)):
                raise ModelError(
                    f"{self.where}: {name!r} is declared as {format_dims(dims)}, "
                    f"which contradicts {format_dims(requested)}"
                )
            dims = tuple(requested)
        return Operand(dims, ruled.values)

    def new_value(self, base: str, value: PirValue, position: int = 0) -> Value:
        """Return a new value for a PIR value, or for a part of a list of tensors."""
        part = value.parts[position] if value.parts else value
        every = self.operands[value.number]
        dims = every[position].dims if position < len(every) else None
        return Value(self.names.fresh(base), self._spec_of(part.dtype, dims, part.kind, base))

    def _spec_of(self, dtype: DType | None, dims: Dims, kind: str, name: str) -> Spec:
        """Return the spec of a value; unplannable for open extents and for values other than tensors."""
        if dtype is None:
            return Unplannable(f"a {kind} is not a tensor of a known type", other=kind)
        if dims is None or None in dims:
            return Unplannable("the extents are known only in a run", dtype.text, dims)
        try:
            return TensorSpec(dtype, tuple(extent for extent in dims if extent is not None))
        except SubletError as error:
            raise ModelError(f"{self.where}: value {name!r}: {error}") from None

    def convert_block(self, block: PirBlock) -> tuple[list[Node], list[Value]]:
        """Return the nodes of a block, and its yielded or fetched values."""
        nodes: list[Node] = []
        outputs: list[Value] = []
        for op in block.ops:
            if op.type == YIELD:
                return nodes, [self._single_operand(op, position) for position in range(len(op.inputs))]
            if op.type in OUTPUTS:
                outputs.append(self._single_operand(op, 0))
            elif op.type in (*INPUTS, PARAMETER):
                self._add_input_or_weight(op)
            elif op.type == "while":
                nodes.append(self._loop_node(op))
            elif op.type == "if":
                nodes.append(self._branch_node(op))
            elif op.type == COMBINE:
                self.values[op.outputs[0].number] = self._operand_values(op)
            elif op.type == SPLIT and len(self._operand_values(op)) == len(op.outputs):
                self.values.update(
                    (v.number, (part,)) for v, part in zip(op.outputs, self._operand_values(op), strict=True)
                )
            else:
                nodes.append(self._operator_node(op))
        return nodes, outputs

    def _add_input_or_weight(self, op: PirOp) -> None:
        """Add an input or a weight. Raises ModelError for an input with open extents."""
        name = str(op.attrs.get("name"))
        value = self.new_value(name, op.outputs[0])
        if op.type in INPUTS and isinstance(value.spec, Unplannable):
            example = ",".join(str(extent or 1) for extent in value.spec.dims or ())
            what = f"input {name!r} is {value.spec.type}: declare its extents with --shape {name}={example}"
            raise ModelError(f"{self.where}: {what}")
        (self.inputs if op.type in INPUTS else self.weights).append(value)
        self.values[op.outputs[0].number] = (value,)

    def _single_operand(self, op: PirOp, position: int) -> Value:
        """Return the single value of an operand. Raises ModelError for a missing operand or a list."""
        number = op.inputs[position] if position < len(op.inputs) else 0
        every = self.values[number] if number else ()
        if len(every) != 1:
            raise ModelError(f"{self.where}: operand {position} of {op.type} is {len(every)} values, not one")
        return every[0]

    def _operand_values(self, op: PirOp) -> tuple[Value, ...]:
        """Return the values of all operands, with lists flattened."""
        return tuple(value for number in op.inputs if number for value in self.values[number])

    def _bind_results(self, op: PirOp, values: Sequence[PirValue]) -> list[Value]:
        """Bind each PIR value to a new value, and return the new values."""
        results = [self.new_value(f"{op.type}_{value.number}", value) for value in values]
        self.values.update((value.number, (result,)) for value, result in zip(values, results, strict=True))
        return results

    def _operator_node(self, op: PirOp) -> Node:
        """Return the node of an ordinary operator."""
        spelling = SPELLINGS.get(op.type)
        slots = [
            (slot, value)
            for position, number in enumerate(op.inputs)
            for slot in [
                (spelling.inputs[position] if spelling and position < len(spelling.inputs) else "X").strip("=")
            ]
            for value in (self.values[number] if number else ())
        ]
        results_: list[tuple[str, Value | None]] = []
        for position, value in enumerate(op.outputs):
            slot = spelling.outputs[position] if spelling and position < len(spelling.outputs) else "Out"
            parts = range(len(value.parts) or 1)
            parts_of_output = tuple(self.new_value(f"{op.type}_{value.number}", value, part) for part in parts)
            self.values[value.number] = parts_of_output
            kept = slot in ("MeanOut", "VarianceOut", "ReserveSpace", "XShape")
            results_ += [(slot, None if kept else result) for result in parts_of_output]
        self._refuse_training(op, [value for _, value in slots[:3]])
        attrs: dict[str, Attr] = {
            "inputs": tuple(slot for slot, _ in slots), "outputs": tuple(slot for slot, _ in results_)
        }  # fmt: skip
        kind = spelling.type if spelling else f"pir.{op.type}"
        name = self.names.fresh(f"{op.type}:{op.outputs[0].number if op.outputs else self.names.last_number}")
        sources, targets = tuple(value for _, value in slots), tuple(value for _, value in results_)
        return Node(name, f"{PREFIX}{kind}", sources, targets, attrs)

    def _refuse_training(self, op: PirOp, first: Sequence[Value]) -> None:
        """Raise ModelError if the operator changes a weight.

        An operator with a name ending in "_" writes over its first operands, except a normalisation in inference.
        """
        kept = op.attrs.get("is_test") or op.attrs.get("use_global_stats")
        changed = [value.name for value in first if value in self.weights]
        if op.type.endswith("_") and changed and not kept:
            raise ModelError(
                f"{self.where}: {op.type} changes the weight {changed[0]!r}: this is not an inference program"
            )

    def _condition_of(self, op: PirOp) -> Value:
        """Return the condition of a loop or branch. Raises ModelError unless the condition is a single bool."""
        value = self._single_operand(op, 0)
        spec = value.spec
        if not isinstance(spec, TensorSpec) or spec.dtype is not DType.BOOL or spec.size != 1:
            raise ModelError(f"{self.where}: the condition of {op.type} is {spec}, not one bool")
        return value

    def _loop_body(self, op: PirOp) -> PirBlock:
        """Return the single block of a loop. Raises ModelError for a loop with another number of blocks."""
        if len(op.blocks) != 1:
            raise ModelError(f"{self.where}: a loop has {len(op.blocks)} blocks; expected one, its body")
        return op.blocks[0]

    def _loop_node(self, op: PirOp) -> Node:
        """Return the loop node. The condition is the first loop-carried value."""
        flag, body = self._condition_of(op), self._loop_body(op)
        name = self.names.fresh(f"while:{op.outputs[0].number if op.outputs else self.names.last_number}")
        goes_on = Value(self.names.fresh(f"{flag.name}.again"), flag.spec)
        counter = Value(self.names.fresh(f"{name}.round"), TensorSpec(DType.I64))
        args = self._bind_results(op, body.args)
        nodes, updates = self.convert_block(body)
        last = Value(self.names.fresh(f"{flag.name}.last"), flag.spec)
        finals = (last, *self._bind_results(op, op.outputs))
        graph = Graph(
            f"body_{body.args[0].number if body.args else 0}", (counter, goes_on, *args), tuple(nodes), tuple(updates)
        )
        inits = (flag, *(self._single_operand(op, position) for position in range(1, len(op.inputs))))
        return While(name, "while", inits, finals, body=graph, condition=goes_on, carried=len(inits))

    def _branch_node(self, op: PirOp) -> Node:
        """Return the branch node; arm 0 is the else block."""
        index = self._condition_of(op)
        name = self.names.fresh(f"if:{op.outputs[0].number if op.outputs else self.names.last_number}")
        sides = [self.convert_block(inner) for inner in reversed(op.blocks)]
        arms = tuple(Graph(f"arm_{i}", (), tuple(nodes), tuple(ends)) for i, (nodes, ends) in enumerate(sides))
        return CaseOf(name, "case", (index,), tuple(self._bind_results(op, op.outputs)), arms=arms)


def _fill_open_extents(ruled: Dims, declared: Dims) -> Dims:
    """Return the rule's extents, with open extents filled in from the declaration."""
    if ruled is None or declared is None or len(ruled) != len(declared):
        return declared if ruled is None else ruled
    return tuple(b if a is None else a for a, b in zip(ruled, declared, strict=True))


# The entry point of the Paddle reader: a program of either format as a model.


def read_file(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    """Read a Paddle program of either format. Raises ModelError for a malformed file and for open extents."""
    return load_pir(path, dims) if path.suffix.lower() == ".json" else load_program(path, dims)
