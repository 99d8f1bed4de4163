"""Conversion of a block's operators to nodes."""

from __future__ import annotations

from sublet.base.errors import ModelError
from sublet.frontends.paddle.convert.branches import BranchPairs, add_branch, add_branch_pair, branch_pairs_of
from sublet.frontends.paddle.convert.loops import add_loop
from sublet.frontends.paddle.convert.scope import PaddleConversion, Scope, node_name
from sublet.frontends.paddle.format.program import ARRAY, EMPTY_NAME, SCOPES, PaddleOp
from sublet.frontends.paddle.operators.dialect import PREFIX
from sublet.ir.graph import Attr, Node, Value

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
