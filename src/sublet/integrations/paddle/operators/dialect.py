"""The `paddle` dialect: Paddle's operators under their own names, as in "paddle.conv2d".

The node attributes "inputs" and "outputs" name the slot of each operand. The facts come from `facts.json`, with results
of experiments: an operator without an entry shares no bytes.
"""

from __future__ import annotations

from functools import lru_cache, partial

from sublet.base.tensor import Dims, TensorSpec
from sublet.integrations.paddle.operators import facts
from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, Share, no_shares

PREFIX = "paddle."
UNDEFINED = "undefined"
"""No operator of Paddle: defines the content of a variable left unwritten by a branch."""

SAME_BYTES = frozenset(
    {
        *("assign", "flatten", "flatten2", "flatten_contiguous_range", "reshape", "reshape2", "squeeze", "squeeze2"),
        *("unsqueeze", "unsqueeze2", "share_data"),
    }
)
"""Operators with a first output equal to the first input: the same elements in the same order."""

RANDOM = frozenset(
    {
        *("bernoulli", "dropout", "exponential", "gaussian_random", "multinomial", "randint", "randperm"),
        *("truncated_gaussian_random", "uniform_random", "uniform_random_batch_size_like", UNDEFINED),
    }
)


@lru_cache(maxsize=4096)
def paddle_op(name: str) -> Op:
    """Return the operator record of a type; for a type without facts, a record without views or in-place outputs."""
    op_type = name.removeprefix(PREFIX)
    known = facts.facts_of(op_type)
    same = op_type in SAME_BYTES and ("X", "Out") in known.placed
    return Op(
        name,
        views=_view_shares if same else no_shares,
        inplace=no_shares if same or not known.placed else partial(_inplace_shares, op_type),
        pure=op_type not in RANDOM and (known.known or op_type in SAME_BYTES),
    )


def _value_bytes(value: Value | None) -> int:
    """Return the bytes of a value; 0 if unknown."""
    return value.spec.nbytes if value is not None and isinstance(value.spec, TensorSpec) else 0


def _view_shares(node: Node) -> tuple[Share, ...]:
    """Return the view relation of a copying operator: the first output is the whole first input."""
    if not node.inputs or not node.outputs:
        return ()
    size = _value_bytes(node.inputs[0])
    return (Share(0, 0),) if size and size == _value_bytes(node.outputs[0]) else ()


def _inplace_shares(of: str, node: Node) -> tuple[Share, ...]:
    """Return the in-place relation: an output may take the place of an input of equal size, passed in no other slot."""
    sources, targets = node.attrs.get("inputs", ()), node.attrs.get("outputs", ())
    if not isinstance(sources, tuple) or not isinstance(targets, tuple):
        return ()
    operands = dict(zip(sources, node.inputs, strict=False))
    pairs = facts.facts_of_shapes(of, _value_dims(operands.get("X")), _value_dims(operands.get("Y"))).placed
    return tuple(
        Share(j, i)
        for j, (target, result) in enumerate(zip(targets, node.outputs, strict=False))
        for i, (source, value) in enumerate(zip(sources, node.inputs, strict=False))
        if (source, target) in pairs
        and _value_bytes(result) == _value_bytes(value) > 0
        and node.inputs.count(value) == 1
        and sources.count(source) == 1
    )


def _value_dims(value: Value | None) -> Dims:
    """Return the extents of a value, or None."""
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else None
