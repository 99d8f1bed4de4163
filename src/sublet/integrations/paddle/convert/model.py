"""Reader of inference programs in Paddle's older format: decode, bind extents, convert block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_bytes
from sublet.base.tensor import Dims
from sublet.integrations.paddle.convert.scope import (
    COUNTER_SPEC,
    Converter,
    PaddleConversion,
    Scope,
    dims_of,
    node_name,
    outer_assignments,
    used_variables,
    variables_read,
)
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import (
    ARRAY,
    EMPTY_NAME,
    SCOPES,
    TENSOR,
    PaddleOp,
    PaddleProgram,
    read_params,
)
from sublet.integrations.paddle.operators.dialect import PREFIX
from sublet.integrations.paddle.operators.shapes import VariableKey, infer_sizes, join_dims
from sublet.ir.graph import Attr, CaseOf, Graph, Node, Value, While
from sublet.ir.model import Model

# Conversion of `conditional_block` to a branch node.
#
# Paddle writes if and else as two blocks, the second on the negated condition. A `select_input` then picks the result
# of the executed block. The conversion turns such a pair into a single branch with two arms.


@dataclass(frozen=True, slots=True)
class ArmSelection:
    """A `select_input` after a pair of blocks: the variable written by each arm, and the variable with the result."""

    no: VariableKey
    yes: VariableKey
    out: VariableKey


@dataclass(frozen=True, slots=True)
class BranchPair:
    """Two exclusive blocks: the operator at `yes` runs on the condition, the operator at `no` on the negation."""

    condition: str
    yes: int
    no: int
    selections: tuple[ArmSelection, ...]


@dataclass(frozen=True, slots=True)
class BranchPairs:
    """The pairs in a block, by the position of the second operator of each pair."""

    by_second_position: Mapping[int, BranchPair]

    @property
    def first_positions(self) -> frozenset[int]:
        """The positions of the first operators of all pairs."""
        return frozenset(pair.yes for pair in self.by_second_position.values())


def branch_pairs_of(conversion: PaddleConversion, block: int) -> BranchPairs:
    """Return the pairs of branches in a block.

    No operator between the two blocks of a pair depends on the first, or changes an input of the first.
    """
    ops = conversion.program.blocks[block].ops
    negated = {
        op.first_output("Out"): (at, op.first_input("X")) for at, op in enumerate(ops) if op.type == "logical_not"
    }
    pairs: dict[int, BranchPair] = {}
    open_: dict[str, int] = {}
    for at, op in enumerate(ops):
        condition = op.first_input("Cond")
        if op.type != "conditional_block" or condition is None:
            continue
        between, of = negated.get(condition, (-1, None))
        yes = open_.pop(of, -1) if of is not None else -1
        if 0 <= yes < between < at and _can_move_past(conversion, block, ops[yes], ops[yes + 1 : at]):
            choices = tuple(_arm_selections(conversion, block, ops[yes], op, ops[at + 1 :]))
            if choices:
                pairs[at] = BranchPair(of or "", yes, at, choices)
                continue
        open_[condition] = at
    return BranchPairs(pairs)


def _can_move_past(conversion: PaddleConversion, block: int, first: PaddleOp, between: tuple[PaddleOp, ...]) -> bool:
    """Return True if the first block can move past the operators `between`: no read or write of either conflicts."""
    inner = first.block_index()
    if inner is None or any(op.block_index() is not None for op in between):
        return False
    writes = outer_assignments(conversion.program, inner).keys()
    needs = variables_read(conversion.program, inner) | {conversion.variable_key(block, name) for name in first.reads}
    touched = {conversion.variable_key(block, name) for op in between for name in (*op.reads, *op.writes)}
    changed = {conversion.variable_key(block, name) for op in between for name in op.writes}
    return not touched & writes and not changed & needs


def _arm_selections(
    conversion: PaddleConversion, block: int, yes: PaddleOp, no: PaddleOp, after: tuple[PaddleOp, ...]
) -> Iterator[ArmSelection]:
    """Yield the selections after a pair that pick between results of the two blocks."""
    written = [outer_assignments(conversion.program, op.block_index() or 0) for op in (no, yes)]
    for op in after:
        out, names = op.first_output("Out"), op.inputs.get("X", ())
        if op.type == "select_input" and len(names) == 2 and out is not None:
            keys = [conversion.variable_key(block, name) for name in names]
            if all(key in writes for key, writes in zip(keys, written, strict=True)):
                yield ArmSelection(keys[0], keys[1], conversion.variable_key(block, out))


def add_branch_pair(
    conversion: PaddleConversion, block: int, pair: BranchPair, scope: Scope, convert: Converter
) -> list[Node]:
    """Return the branch node for two exclusive blocks, after nodes for unwritten variables.

    The outputs are the selected results, then the further variables assigned by a block and used later.
    """
    ops = conversion.program.blocks[block].ops
    before: list[Node] = []
    picked = {key for choice in pair.selections for key in (choice.no, choice.yes)} - conversion.read_elsewhere
    blocks = [ops[at].block_index() or 0 for at in (pair.no, pair.yes)]
    others = [key for inner in blocks for key in outer_assignments(conversion.program, inner)]
    kept = [key for key in dict.fromkeys(others) if key in conversion.wanted and key not in picked]
    for key in kept:
        conversion.value_before_control_flow(key, scope, before)
    index = conversion.condition_value(block, pair.condition, scope)
    scopes = [dict(scope), dict(scope)]
    bodies = [convert(conversion, inner, mine) for inner, mine in zip(blocks, scopes, strict=True)]
    sides = [(scopes[0][choice.no], scopes[1][choice.yes]) for choice in pair.selections]
    sides += [(scopes[0][key], scopes[1][key]) for key in kept]
    targets = [*(choice.out for choice in pair.selections), *kept]
    outputs = [_merged_value(conversion, key, values) for key, values in zip(targets, sides, strict=True)]
    for choice, value in zip(pair.selections, outputs, strict=False):
        conversion.selections[choice.no, choice.yes] = value
    scope.update(zip(kept, outputs[len(pair.selections) :], strict=True))
    arms = tuple(
        Graph(f"block{inner}", (), tuple(body), tuple(values[side] for values in sides))
        for side, (inner, body) in enumerate(zip(blocks, bodies, strict=True))
    )
    name, source = node_name(block, pair.no, ops[pair.no]), f"block {block}, operators {pair.yes} and {pair.no}"
    return [*before, CaseOf(name, "case", (index,), tuple(outputs), {}, source, arms=arms)]


def add_branch(conversion: PaddleConversion, block: int, position: int, scope: Scope, convert: Converter) -> list[Node]:
    """Return the branch node for a single block. An arm without operators returns the old values."""
    op = conversion.program.blocks[block].ops[position]
    inner = op.block_index() or 0
    before: list[Node] = []
    keys = [key for key in outer_assignments(conversion.program, inner) if key in conversion.wanted]
    old = [conversion.value_before_control_flow(key, scope, before) for key in keys]
    index = conversion.condition_value(block, op.first_input("Cond") or "", scope)
    inside = dict(scope)
    body = convert(conversion, inner, inside)
    sides = [(was, inside[key]) for key, was in zip(keys, old, strict=True)]
    outputs = [_merged_value(conversion, key, values) for key, values in zip(keys, sides, strict=True)]
    scope.update(zip(keys, outputs, strict=True))
    arms = (
        Graph(f"without_block{inner}", (), (), tuple(old)),
        Graph(f"block{inner}", (), tuple(body), tuple(inside[key] for key in keys)),
    )
    source = f"block {block}, operator {position}"
    return [*before, CaseOf(node_name(block, position, op), "case", (index,), tuple(outputs), {}, source, arms=arms)]


def _merged_value(conversion: PaddleConversion, key: VariableKey, values: tuple[Value, Value]) -> Value:
    """Return a value for an output of a branch, with the extents common to both arms."""
    return conversion.new_value(key, join_dims(dims_of(values[0]), dims_of(values[1])))


# Conversion of `while` to a loop node: outer variables assigned in the body become loop-carried values.
#
# Paddle computes the condition before the loop and at the end of each iteration, so the condition is loop-carried too.


def add_loop(conversion: PaddleConversion, block: int, position: int, scope: Scope, convert: Converter) -> list[Node]:
    """Return the loop node, after a node for each unwritten loop-carried variable.

    Raises ModelError for a loop without a body or a condition.
    """
    op = conversion.program.blocks[block].ops[position]
    body, condition, name = op.block_index(), op.first_input("Condition"), node_name(block, position, op)
    source = f"block {block}, operator {position}"
    if body is None or condition is None:
        raise ModelError(f"{conversion.where}: {source}: a loop without a condition")
    writes = outer_assignments(conversion.program, body)
    carried = [key for key in writes if key in conversion.wanted]
    before: list[Node] = []
    inits = [conversion.value_before_control_flow(key, scope, before) for key in carried]
    extents = [_common_extents(conversion, init, key, writes[key]) for key, init in zip(carried, inits, strict=True)]
    inner = dict(scope)
    parameters = _bind_new_values(conversion, carried, extents, inner)
    flag = conversion.condition_value(block, condition, inner)
    counter = Value(conversion.names.fresh(f"{name}.round"), COUNTER_SPEC)
    nodes = convert(conversion, body, inner)
    updates = tuple(inner[key] for key in carried)
    graph = Graph(f"block{body}", (counter, *parameters), tuple(nodes), updates)
    finals = _bind_new_values(conversion, carried, extents, scope)
    loop = While(
        name, "while", tuple(inits), tuple(finals), {}, source, body=graph, condition=flag, carried=len(carried)
    )
    return [*before, loop]


def _common_extents(
    conversion: PaddleConversion, init: Value, key: VariableKey, writes: Sequence[tuple[int, int]]
) -> Dims:
    """Return the extents common to the initial value and all assignments in the body."""
    dims = dims_of(init)
    for block, position in writes:
        dims = join_dims(dims, conversion.sizes.dims_at_writes.get((block, position, key[1])))
    return dims


def _bind_new_values(
    conversion: PaddleConversion, keys: Sequence[VariableKey], extents: Sequence[Dims], scope: Scope
) -> list[Value]:
    """Bind each variable to a new value in the scope, and return the new values."""
    values = [conversion.new_value(key, dims) for key, dims in zip(keys, extents, strict=True)]
    scope.update(zip(keys, values, strict=True))
    return values


# Conversion of a block's operators to nodes.

TRAINING_ADVICE = (
    "this is a training program: `sublet transpile` rewrites it; `sublet plan` takes programs for inference"
)


def convert_block(conversion: PaddleConversion, block: int, scope: Scope) -> list[Node]:
    """Return the nodes of a block. Afterwards `scope` maps each variable to its value at the end of the block.

    Raises ModelError for training programs and for unknown operators with blocks.
    """
    nodes: list[Node] = []
    ops = conversion.program.blocks[block].ops
    pairs = branch_pairs_of(conversion, block)
    for position, op in enumerate(ops):
        inner = op.block_index()
        if op.type in ("feed", "fetch"):
            continue
        if inner is None:
            _add_operator(conversion, block, position, op, scope, nodes)
        elif op.type == "while":
            nodes += add_loop(conversion, block, position, scope, convert_block)
        elif op.type == "conditional_block":
            nodes += _add_conditional(conversion, block, position, scope, pairs)
        elif op.type.endswith("_grad"):
            raise ModelError(f"{conversion.where}: block {block} has the operator {op.type}: {TRAINING_ADVICE}")
        else:
            what = f"block {block}, operator {position}: the effect of {op.type} on its block {inner} is unknown"
            raise ModelError(f"{conversion.where}: {what}, so the program cannot be planned")
    return nodes


def _add_conditional(
    conversion: PaddleConversion, block: int, position: int, scope: Scope, pairs: BranchPairs
) -> list[Node]:
    """Return the nodes of a conditional block. The second operator of a pair yields the nodes for both."""
    if position in pairs.first_positions:
        return []
    if position in pairs.by_second_position:
        return add_branch_pair(conversion, block, pairs.by_second_position[position], scope, convert_block)
    return add_branch(conversion, block, position, scope, convert_block)


def _add_operator(
    conversion: PaddleConversion, block: int, position: int, op: PaddleOp, scope: Scope, nodes: list[Node]
) -> None:
    """Append the node of an operator without a block, and bind its outputs in the scope."""
    if op.type == "select_input" and _bind_selection(conversion, block, op, scope):
        return
    inputs = [(slot, name) for slot, names in op.inputs.items() for name in names if name != EMPTY_NAME]
    operands = [
        (slot, conversion.read_value(block, name, scope))
        for slot, name in inputs
        if _has_value(conversion, block, name)
    ]
    operands += _written_arrays(conversion, block, op, scope)
    outputs = [(slot, name) for slot, names in op.outputs.items() for name in names]
    results = [(slot, _new_result(conversion, block, position, op, slot, name, scope)) for slot, name in outputs]
    slots: dict[str, Attr] = {
        "inputs": tuple(slot for slot, _ in operands),
        "outputs": tuple(slot for slot, _ in results),
    }
    nodes.append(
        Node(
            node_name(block, position, op),
            f"{PREFIX}{op.type}",
            tuple(value for _, value in operands),
            tuple(value for _, value in results),
            slots,
            f"block {block}, operator {position}",
        )
    )


def _bind_selection(conversion: PaddleConversion, block: int, op: PaddleOp, scope: Scope) -> bool:
    """Bind the output of a `select_input` to the output of the branch. Return False if no converted branch matches."""
    keys = [conversion.variable_key(block, name) for name in op.inputs.get("X", ())]
    value = conversion.selections.get((keys[0], keys[1])) if len(keys) == 2 else None
    out = op.first_output("Out")
    if value is None or out is None:
        return False
    scope[conversion.variable_key(block, out)] = value
    return True


def _has_value(conversion: PaddleConversion, block: int, name: str) -> bool:
    """Return True unless the name is a variable for step scopes."""
    var = conversion.program.find_var(block, name)
    return var is None or var.kind != SCOPES


def _written_arrays(conversion: PaddleConversion, block: int, op: PaddleOp, scope: Scope) -> list[tuple[str, Value]]:
    """Return the arrays written by an operator, as operands: an array keeps its earlier elements."""
    arrays = []
    for slot, names in op.outputs.items():
        for name in names:
            var = conversion.program.find_var(block, name)
            if (
                var is not None
                and var.kind == ARRAY
                and conversion.variable_key(block, name) in scope
                and name not in op.reads
            ):
                arrays.append((slot, scope[conversion.variable_key(block, name)]))
    return arrays


def _new_result(
    conversion: PaddleConversion, block: int, position: int, op: PaddleOp, slot: str, name: str, scope: Scope
) -> Value | None:
    """Return a new value for an output of an operator; None if the output is not written.

    In inference, a normalisation does not change its running statistics, `XShape` and `ReserveSpace` have no bytes, and
    a dropout has no mask.
    """
    var = conversion.program.find_var(block, name)
    if name == EMPTY_NAME or var is None or var.kind == SCOPES or slot in ("XShape", "ReserveSpace"):
        return None
    if op.type == "dropout" and slot == "Mask" and _is_true(op, "is_test"):
        return None
    kept = op.type in ("batch_norm", "sync_batch_norm") and (
        _is_true(op, "is_test") or _is_true(op, "use_global_stats")
    )
    if kept and name in op.reads:
        return None
    key = conversion.variable_key(block, name)
    value = conversion.new_value(key, conversion.sizes.dims_at_writes.get((block, position, name)))
    scope[key] = value
    return value


def _is_true(op: PaddleOp, name: str) -> bool:
    """Return True if the attribute exists and is true."""
    attr = op.attrs.get(name)
    return bool(attr and attr.value)


PROGRAM_NAME, PARAMS_NAME, PARAMS_SUFFIX = "__model__", "__params__", ".pdiparams"
"""File names; the first two are of older versions."""


def load_program(path: str | Path, dims: Mapping[str, int] | None = None) -> Model:
    """Read a model from a `.pdmodel`, `__model__` or other serialised program. `dims` binds open extents.

    The weights come from the parameter file beside the program, if present. Raises ModelError if the file is malformed,
    is no inference program, or leaves an extent of an input open.
    """
    path = Path(path)
    raw = read_bytes(path, ModelError)
    program = decode_program(raw, path.name)
    model = model_from_program(program, dims, where=path.name)
    beside = path.with_name(PARAMS_NAME) if path.name == PROGRAM_NAME else path.with_suffix(PARAMS_SUFFIX)
    if not beside.is_file():
        return model
    params = read_params(beside, program)
    used = {weight.name for weight in model.graph.weights}
    return replace(model, weights={name: param for name, param in params.items() if name in used})


def model_from_program(
    program: PaddleProgram, dims: Mapping[str, int] | None = None, *, where: str = "the program"
) -> Model:
    """Return the model of a decoded program, as `load` does."""
    dims = dims or {}
    feeds, fetches = _feeds_or_fetches(program, "feed"), _feeds_or_fetches(program, "fetch")
    if not fetches:
        raise ModelError(f"{where}: the program returns nothing (no operator fetch): {TRAINING_ADVICE}")
    sizes = infer_sizes(program, None, dims, where)
    conversion = PaddleConversion(
        program,
        sizes,
        where,
        bool(feeds),
        wanted=used_variables(program),
        read_elsewhere=used_variables(program, "select_input"),
    )
    scope: Scope = {}
    for name in feeds:
        key = conversion.variable_key(0, name)
        scope[key] = conversion.inputs[key] = conversion.new_value(key, sizes.dims(*key))
    _add_weights(conversion)
    nodes = convert_block(conversion, 0, scope)
    outputs = tuple(conversion.read_value(0, name, scope) for name in fetches)
    for (_, name), value in conversion.inputs.items():
        error = conversion.open_input_error(value, name)
        if error is not None:
            raise error
    graph = Graph(
        Path(where).stem or "program",
        tuple(conversion.inputs.values()),
        tuple(nodes),
        outputs,
        tuple(conversion.weights.values()),
        _weight_updates(conversion, scope),
    )
    return Model(graph, dict(dims), {}, tuple(name for _, name in conversion.inputs), fetches)


def _feeds_or_fetches(program: PaddleProgram, type_: str) -> tuple[str, ...]:
    """Return the variables of all `feed` or all `fetch` operators, in the order of their columns."""
    columns: list[tuple[int, str]] = []
    for op in program.blocks[0].ops:
        if op.type == type_:
            column = op.attrs.get("col")
            names = op.writes if type_ == "feed" else op.reads
            at = column.value if column and isinstance(column.value, int) else len(columns)
            columns += [(at, name) for name in names]
    return tuple(name for _, name in sorted(columns, key=lambda pair: pair[0]))


def _add_weights(conversion: PaddleConversion) -> None:
    """Read all persistable variables used by an operator, so that each becomes a weight."""
    program = conversion.program
    used = {name for block in program.blocks for op in block.ops for name in (*op.reads, *op.writes)}
    for name, var in program.blocks[0].vars.items():
        if var.persistable and var.kind == TENSOR and name in used:
            conversion.read_value(0, name, {})


def _weight_updates(conversion: PaddleConversion, scope: Scope) -> tuple[tuple[Value, Value], ...]:
    """Return the (weight, final value) pairs of the persistable variables changed by a run."""
    pairs = ((weight, scope.get(key, weight)) for key, weight in conversion.weights.items())
    return tuple((target, source) for target, source in pairs if target is not source and source.plannable)
