"""The `paddle` dialect: Paddle's operators as they are, "paddle.conv2d".

A node's attributes "inputs" and "outputs" name the slot of each operand. Facts come from `facts.json`, which was found
by experiment: what is not there shares nothing.
"""

from __future__ import annotations

from functools import lru_cache, partial

from sublet.base.tensor import Dims, TensorSpec
from sublet.frontends.paddle.operators import facts
from sublet.ir.graph import Node, Value
from sublet.ops.op import Op, Share, none, register

PREFIX = "paddle."
UNDEFINED = "undefined"
"""Not an operator of Paddle's: the content of a variable that a branch leaves unwritten."""

SAME_BYTES = frozenset(
    {
        *("assign", "flatten", "flatten2", "flatten_contiguous_range", "reshape", "reshape2", "squeeze", "squeeze2"),
        *("unsqueeze", "unsqueeze2", "share_data"),
    }
)
"""Their first output has the elements of their first input, in the same order."""

RANDOM = frozenset(
    {
        *("bernoulli", "dropout", "exponential", "gaussian_random", "multinomial", "randint", "randperm"),
        *("truncated_gaussian_random", "uniform_random", "uniform_random_batch_size_like", UNDEFINED),
    }
)


@lru_cache(maxsize=4096)
def paddle_op(name: str) -> Op:
    """The record of an operator; of one that was never tried, one without facts."""
    of = name.removeprefix(PREFIX)
    known = facts.of(of)
    same = of in SAME_BYTES and ("X", "Out") in known.placed
    return Op(
        name,
        views=_same_bytes if same else none,
        inplace=none if same or not known.placed else partial(_overwriting, of),
        pure=of not in RANDOM and (known.known or of in SAME_BYTES),
    )


def _bytes_of(value: Value | None) -> int:
    return value.spec.nbytes if value is not None and isinstance(value.spec, TensorSpec) else 0


def _same_bytes(node: Node) -> tuple[Share, ...]:
    """The whole first input is the whole first output."""
    if not node.inputs or not node.outputs:
        return ()
    size = _bytes_of(node.inputs[0])
    return (Share(0, 0),) if size and size == _bytes_of(node.outputs[0]) else ()


def _overwriting(of: str, node: Node) -> tuple[Share, ...]:
    """An output may take the place of an input of its size that stands in no other slot."""
    sources, targets = node.attrs.get("inputs", ()), node.attrs.get("outputs", ())
    if not isinstance(sources, tuple) or not isinstance(targets, tuple):
        return ()
    operands = dict(zip(sources, node.inputs, strict=False))
    pairs = facts.of_shapes(of, _dims_of(operands.get("X")), _dims_of(operands.get("Y"))).placed
    return tuple(
        Share(j, i)
        for j, (target, result) in enumerate(zip(targets, node.outputs, strict=False))
        for i, (source, value) in enumerate(zip(sources, node.inputs, strict=False))
        if (source, target) in pairs
        and _bytes_of(result) == _bytes_of(value) > 0
        and node.inputs.count(value) == 1
        and sources.count(source) == 1
    )


def _dims_of(value: Value | None) -> Dims:
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else None


register(PREFIX.rstrip("."), paddle_op)
