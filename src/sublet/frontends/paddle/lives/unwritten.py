"""What may hold nothing when it is read: what control flow leaves unwritten, and what is copied of it.

An operator that reads it fails in Paddle. Where the name has another's memory it would compute, of whatever lies there.
"""

from __future__ import annotations

from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.lives.scopes import linked
from sublet.frontends.paddle.operators.effects import there

CHOOSING = "select_input"
"""It reads one of two names, as a rule the one that was written."""


def perhaps_nothing(program: Program) -> frozenset[str]:
    """The names that an operator reads though a loop of no rounds, or a branch that is not taken, did not write them;
    and those to which `assign` copies them. Persistable variables are there.

    Names are taken for what they are at the first operator that writes them, in the order of the program: what a later
    round of a loop, or another choice, might find is not looked into.
    """
    left, found = set[str](), set[str]()

    def walk(block: int, written: set[str]) -> None:
        for op in program.blocks[block].ops:
            inner, writes = op.block(), there(op.writes)
            missed = left.intersection(op.reads) - written
            if inner is not None:
                walk(inner, written.union(linked(op)))  # a set of its own
            elif op.type != CHOOSING:
                found.update(missed)
            if inner is not None and op.type != "conditional_block_grad":  # that writes zeros where it runs nothing
                left.update(name for name in writes if name not in written)
            elif op.type == "assign" and missed:
                left.update(writes)
                found.update(writes)
            else:
                written.update(writes)

    walk(0, {name for block in program.blocks for name, var in block.vars.items() if var.persistable})
    return frozenset(found)
