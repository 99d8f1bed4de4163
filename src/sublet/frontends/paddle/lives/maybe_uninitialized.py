"""Maybe-uninitialized variables: variables left unwritten by control flow, and their copies.

An operator that reads a variable without memory fails in Paddle. If the variable shared the memory of another, the
operator would instead compute on unrelated bytes.
"""

from __future__ import annotations

from sublet.frontends.paddle.format.program import PaddleProgram
from sublet.frontends.paddle.lives.scopes import linked_gradient_names
from sublet.frontends.paddle.operators.effects import nonempty_names

SELECT_INPUT = "select_input"
"""This operator reads one of two names, usually the written name."""


def maybe_uninitialized_names(program: PaddleProgram) -> frozenset[str]:
    """Return the maybe-uninitialized names: read, but possibly unwritten.

    A loop without iterations or a branch not taken leaves a name unwritten; `assign` copies the missing content.
    Persistable variables are always written. The analysis follows the operators in program order, up to the first write
    of each name. Later iterations of a loop and combinations of branches are not analysed.
    """
    left, found = set[str](), set[str]()

    def walk(block: int, written: set[str]) -> None:
        """Follow the operators of a block; `written` is the set of surely written names, updated in place."""
        for op in program.blocks[block].ops:
            inner, writes = op.block_index(), nonempty_names(op.writes)
            missed = left.intersection(op.reads) - written
            if inner is not None:
                walk(inner, written.union(linked_gradient_names(op)))  # a copy: writes in the block may not happen
            elif op.type != SELECT_INPUT:
                found.update(missed)
            if inner is not None and op.type != "conditional_block_grad":  # writes zeros if the branch is not taken
                left.update(name for name in writes if name not in written)
            elif op.type == "assign" and missed:
                left.update(writes)
                found.update(writes)
            else:
                written.update(writes)

    walk(0, {name for block in program.blocks for name, var in block.vars.items() if var.persistable})
    return frozenset(found)
