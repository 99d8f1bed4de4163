"""Operators as nodes, block by block."""

from __future__ import annotations

from sublet.base.errors import ModelError
from sublet.frontends.paddle.convert.branches import Pairs, add_branch, add_pair, pairs_of
from sublet.frontends.paddle.convert.loops import add_loop
from sublet.frontends.paddle.convert.scope import Conversion, Scope, title
from sublet.frontends.paddle.format.program import ARRAY, EMPTY, SCOPES, Op
from sublet.frontends.paddle.operators.dialect import PREFIX
from sublet.ir.graph import Attr, Node, Value

TRAINING = "this is a training program: `sublet transpile` rewrites it; `sublet plan` takes programs for inference"


def convert_block(conversion: Conversion, block: int, scope: Scope) -> list[Node]:
    """The nodes of a block; `scope` is then what its variables stand for at its end."""
    nodes: list[Node] = []
    ops = conversion.program.blocks[block].ops
    pairs = pairs_of(conversion, block)
    for position, op in enumerate(ops):
        inner = op.block()
        if op.type in ("feed", "fetch"):
            continue
        if inner is None:
            _add_operator(conversion, block, position, op, scope, nodes)
        elif op.type == "while":
            nodes += add_loop(conversion, block, position, scope, convert_block)
        elif op.type == "conditional_block":
            nodes += _add_conditional(conversion, block, position, scope, pairs)
        elif op.type.endswith("_grad"):
            raise ModelError(f"{conversion.where}: block {block} has the operator {op.type}: {TRAINING}")
        else:
            what = f"block {block}, operator {position}: what {op.type} does with its block {inner} is not known"
            raise ModelError(f"{conversion.where}: {what}, so that nothing can be planned around it")
    return nodes


def _add_conditional(conversion: Conversion, block: int, position: int, scope: Scope, pairs: Pairs) -> list[Node]:
    """A block that runs or not; of two of which one runs, the second stands for both."""
    if position in pairs.first:
        return []
    if position in pairs.second:
        return add_pair(conversion, block, pairs.second[position], scope, convert_block)
    return add_branch(conversion, block, position, scope, convert_block)


def _add_operator(conversion: Conversion, block: int, position: int, op: Op, scope: Scope, nodes: list[Node]) -> None:
    if op.type == "select_input" and _selected(conversion, block, op, scope):
        return
    inputs = [(slot, name) for slot, names in op.inputs.items() for name in names if name != EMPTY]
    operands = [
        (slot, conversion.read(block, name, scope)) for slot, name in inputs if _is_value(conversion, block, name)
    ]
    operands += _arrays(conversion, block, op, scope)
    outputs = [(slot, name) for slot, names in op.outputs.items() for name in names]
    results = [(slot, _result(conversion, block, position, op, slot, name, scope)) for slot, name in outputs]
    slots: dict[str, Attr] = {
        "inputs": tuple(slot for slot, _ in operands),
        "outputs": tuple(slot for slot, _ in results),
    }
    nodes.append(
        Node(
            title(block, position, op),
            f"{PREFIX}{op.type}",
            tuple(value for _, value in operands),
            tuple(value for _, value in results),
            slots,
            f"block {block}, operator {position}",
        )
    )


def _selected(conversion: Conversion, block: int, op: Op, scope: Scope) -> bool:
    """Whether a selection between two variables is what a branch gave."""
    keys = [conversion.key(block, name) for name in op.inputs.get("X", ())]
    value = conversion.selections.get((keys[0], keys[1])) if len(keys) == 2 else None
    out = op.output("Out")
    if value is None or out is None:
        return False
    scope[conversion.key(block, out)] = value
    return True


def _is_value(conversion: Conversion, block: int, name: str) -> bool:
    var = conversion.program.var(block, name)
    return var is None or var.kind != SCOPES


def _arrays(conversion: Conversion, block: int, op: Op, scope: Scope) -> list[tuple[str, Value]]:
    """The arrays an operator writes to: they keep what was written before."""
    found = []
    for slot, names in op.outputs.items():
        for name in names:
            var = conversion.program.var(block, name)
            if var is not None and var.kind == ARRAY and conversion.key(block, name) in scope and name not in op.reads:
                found.append((slot, scope[conversion.key(block, name)]))
    return found


def _result(
    conversion: Conversion, block: int, position: int, op: Op, slot: str, name: str, scope: Scope
) -> Value | None:
    """The value an operator assigns to a variable; None where nothing is written.

    In inference the running statistics of a normalisation are written as they are, and what only tells a gradient a
    shape, or which elements were dropped, is not written.
    """
    var = conversion.program.var(block, name)
    if name == EMPTY or var is None or var.kind == SCOPES or slot in ("XShape", "ReserveSpace"):
        return None
    if op.type == "dropout" and slot == "Mask" and _flag(op, "is_test"):
        return None
    kept = op.type in ("batch_norm", "sync_batch_norm") and (_flag(op, "is_test") or _flag(op, "use_global_stats"))
    if kept and name in op.reads:
        return None
    key = conversion.key(block, name)
    value = conversion.value(key, conversion.sizes.written.get((block, position, name)))
    scope[key] = value
    return value


def _flag(op: Op, name: str) -> bool:
    attr = op.attrs.get(name)
    return bool(attr and attr.value)
