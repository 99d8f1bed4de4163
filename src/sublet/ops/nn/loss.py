"""Losses: the difference between the output of a network and the target, one number per sample or per element.

Labels count the classes from 0. A negative label means no label: the loss is 0 and has no gradient, as for
padding in a batch of texts (PyTorch uses -100).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn.activation import sigmoid, softmax
from sublet.ops.nn.command import Command, Compute, overwrite_unless_repeated, pick, spec_of
from sublet.ops.nn.rules import (
    FLOATS,
    INDICES,
    elementwise_gradient,
    one_minus,
    only_gradient,
    operand,
    require_equal,
    require_type,
    result,
    sum_present,
    term_by_op,
)
from sublet.ops.op import Attrs, Emit, GradientByExpansion, Grads, Shares, Specs, overwrite_any
from sublet.ops.slice_maps import elementwise, leading_axis

TINY = 1e-12
"""Minimum divisor p (1 - p) in the gradient of binary cross entropy (as in PyTorch)."""
LOWEST_LOG = -100
"""Minimum logarithm in binary cross entropy (as in PyTorch)."""

OVERWRITE_ANY = overwrite_any(0, 1, 2)


# Classification losses: one label per row.


CLASS_NUMBERS = ": pass integer class numbers, not one-hot vectors"
"""The hint for labels of another form."""


def _check_labels(specs: Specs, scores: int, labels: int) -> tuple[TensorSpec, TensorSpec]:
    """Return the spec of scores [..., C] and the spec of losses [...].

    Raises SpecError if the labels [...] do not fit the scores.
    """
    x = require_type(specs[scores], FLOATS, f"input {scores}")
    given = require_type(specs[labels], INDICES, f"input {labels}, the labels,", CLASS_NUMBERS)
    if not x.shape or x.shape[-1] < 1:
        raise SpecError(f"input {scores} is {x}: its last axis must be the classes")
    if given.shape != x.shape[:-1]:
        wanted = TensorSpec(given.dtype, x.shape[:-1])
        raise SpecError(f"the labels are {given}, expected {wanted} for {x}, one label a row{CLASS_NUMBERS}")
    return x, TensorSpec(x.dtype, given.shape)


def _loss_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_check_labels(specs, 0, 1)[1],)


def _softmax_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, loss = _check_labels(specs, 0, 1)
    return loss, x


def _gradient_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    p, loss = _check_labels(specs, 1, 2)
    require_equal(require_type(specs[0], FLOATS, "the gradient"), loss, "the gradient and the loss")
    return (p,)


def _one_hot_labels(labels: Any, classes: int) -> Any:
    """Return bools [..., C], True at the label. Raises IndexError for a label beyond the classes."""
    if labels.size and labels.max() >= classes:
        raise IndexError(f"the label {labels.max()} is out of range for {classes} classes")
    return labels[..., None] == np.arange(classes)


def _elements_at_labels(x: Any, labels: Any) -> Any:
    """Return the elements at the labels; 0 for negative labels."""
    return np.where(_one_hot_labels(labels, x.shape[-1]), x, 0).sum(axis=-1)


def _cross_entropy(p: Any, labels: Any) -> Any:
    return np.where(labels >= 0, -np.log(np.where(labels >= 0, _elements_at_labels(p, labels), 1)), 0)


def _cross_entropy_gradient(dloss: Any, p: Any, labels: Any) -> Any:
    hot = _one_hot_labels(labels, p.shape[-1])
    return np.where(hot, -dloss[..., None] / np.where(hot, p, 1), 0)


def _softmax_cross_entropy(x: Any, labels: Any) -> tuple[Any, Any]:
    highest = x.max(axis=-1)
    scale = np.log(np.exp(x - highest[..., None]).sum(axis=-1))
    return np.where(labels >= 0, highest - _elements_at_labels(x, labels) + scale, 0), softmax(x, -1)


def _softmax_cross_entropy_gradient(dloss: Any, p: Any, labels: Any) -> Any:
    return (p - _one_hot_labels(labels, p.shape[-1])) * np.where(labels >= 0, dloss, 0)[..., None]


def _column(emit: Emit, value: Value) -> Value:
    """Return [...] as [..., 1]."""
    return emit("nn.reshape", value, shape=(*spec_of(value).shape, 1))


def _hot_mask(emit: Emit, labels: Value, p: Value) -> Value:
    classes = emit("nn.iota", count=spec_of(p).shape[-1], dtype=spec_of(labels).dtype.text)
    return emit("nn.equal", _column(emit, labels), classes)


def _cross_entropy_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dloss, p, labels = (operand(node, i) for i in range(3))
    hot = _hot_mask(emit, labels, p)
    # p may be 0 away from the label; dividing by 1 there avoids 1 / 0.
    ratio = emit("nn.div", _column(emit, dloss), emit("nn.where", hot, p, emit.constant(1, p)))
    return [emit("nn.where", hot, emit("nn.neg", ratio), emit.constant(0, p))]


def _softmax_cross_entropy_parts(emit: Emit, node: Node) -> Sequence[Value]:
    dloss, p, labels = (operand(node, i) for i in range(3))
    one_hot = emit("nn.where", _hot_mask(emit, labels, p), emit.constant(1, p), emit.constant(0, p))
    has_label = emit("nn.greater_equal", labels, emit.constant(0, labels))
    weight = emit("nn.where", has_label, dloss, emit.constant(0, dloss))
    return [emit("nn.mul", emit("nn.sub", p, one_hot), _column(emit, weight))]


def _softmax_cross_entropy_rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
    """Compute the gradient from the probabilities, so the probabilities may overwrite the scores."""
    dloss, dp = grads
    p, labels = result(node, 1), operand(node, 1)
    through_p = None if dp is None else emit("nn.softmax_gradient", dp, p, axis=-1)
    own = None if dloss is None else emit("nn.softmax_cross_entropy_gradient", dloss, p, labels)
    return [sum_present(emit, through_p, own), None]


# Regression losses: one target per element.


def _infer_equal_specs(*roles: str) -> Callable[[Specs, Attrs], tuple[TensorSpec, ...]]:
    """Return an inference rule for inputs of equal floating-point specs; the output has the same spec."""

    def infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        first, *others = (require_type(spec, FLOATS, role) for spec, role in zip(specs, roles, strict=True))
        for other, role in zip(others, roles[1:], strict=True):
            require_equal(first, other, f"{roles[0]} and {role}")
        if "beta" in attrs and not pick(attrs, "beta") > 0:
            raise SpecError(f"beta = {pick(attrs, 'beta')} must be greater than 0; for 0 use nn.abs of nn.sub")
        return (first,)

    return infer


def _pairwise(
    name: str,
    text: str,
    compute: Compute,
    target: Callable[[Emit, Node, Value], Value],
    gradient: Compute,
    slope: Callable[[Emit, Node, Value, Value], Value],
    inplace: Shares = OVERWRITE_ANY,
    attrs: dict[str, Attr] | None = None,
) -> tuple[Command, Command]:
    """Return the commands `<name>(x, t) -> loss` and `<name>_gradient(dloss, x, t) -> dx`.

    `target` is the gradient of the loss by t; `slope` is the derivative by x in smaller commands.
    """

    def rule(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        dloss, x, t = only_gradient(grads), operand(node, 0), operand(node, 1)
        return [emit(f"nn.{name}_gradient", dloss, x, t, **node.attrs), target(emit, node, dloss)]

    def expand(emit: Emit, node: Node) -> Sequence[Value]:
        dloss, x, t = (operand(node, i) for i in range(3))
        return [emit("nn.mul", dloss, slope(emit, node, x, t))]

    return (
        Command(
            name,
            text,
            _infer_equal_specs("x", "t"),
            compute,
            rule,
            attrs or {},
            inputs=(2, 2),
            inplace=overwrite_any(0, 1),
            slices=elementwise,
        ),
        Command(
            f"{name}_gradient",
            f"The gradient of nn.{name} by x: (dloss, x, t) -> dx.",
            _infer_equal_specs("the gradient", "x", "t"),
            gradient,
            GradientByExpansion(expand),
            attrs or {},
            inputs=(3, 3),
            inplace=inplace,
            slices=elementwise,
        ),
    )


def _negated_gradient(emit: Emit, node: Node, dloss: Value) -> Value:
    """Return the gradient by t for a loss of x - t: the negated gradient by x."""
    by_x = emit(f"{node.op}_gradient", dloss, operand(node, 0), operand(node, 1), **node.attrs)
    return emit("nn.neg", by_x)


def _logits_target(emit: Emit, node: Node, dloss: Value) -> Value:
    return emit("nn.neg", emit("nn.mul", dloss, operand(node, 0)))


def _probabilities_target(emit: Emit, node: Node, dloss: Value) -> Value:
    p = operand(node, 0)
    lowest = emit.constant(LOWEST_LOG, p)
    yes, no = (emit("nn.maximum", emit("nn.log", q), lowest) for q in (p, one_minus(emit, p)))
    return emit("nn.mul", dloss, emit("nn.sub", no, yes))


def _binary_cross_entropy(p: Any, t: Any) -> Any:
    yes, no = np.maximum(np.log(p), LOWEST_LOG), np.maximum(np.log1p(-p), LOWEST_LOG)
    return (t - 1) * no - t * yes


def _smooth_l1(x: Any, t: Any, beta: float) -> Any:
    far = np.abs(x - t)
    return np.where(far < beta, 0.5 * far**2 / beta, far - 0.5 * beta)


def _logits_slope(emit: Emit, node: Node, x: Value, t: Value) -> Value:
    return emit("nn.sub", emit("nn.sigmoid", x), t)


def _probabilities_slope(emit: Emit, node: Node, p: Value, t: Value) -> Value:
    spread = emit("nn.maximum", emit("nn.mul", p, one_minus(emit, p)), emit.constant(TINY, p))
    return emit("nn.div", emit("nn.sub", p, t), spread)


def _mse_slope(emit: Emit, node: Node, x: Value, t: Value) -> Value:
    return emit("nn.mul", emit("nn.sub", x, t), emit.constant(2, x))


def _smooth_l1_slope(emit: Emit, node: Node, x: Value, t: Value) -> Value:
    ratio = emit("nn.mul", emit("nn.sub", x, t), emit.constant(1 / pick(node.attrs, "beta"), x))
    return emit("nn.clamp", ratio, low=-1.0, high=1.0)


COMMANDS = (
    Command(
        "categorical_cross_entropy",
        "-log p at the label: p [..., C], labels [...] -> [...]. The loss of a negative label is 0.",
        _loss_infer,
        _cross_entropy,
        elementwise_gradient(term_by_op("nn.categorical_cross_entropy_gradient", 0, 1), None),
        inputs=(2, 2),
        slices=leading_axis(),
    ),
    Command(
        "categorical_cross_entropy_gradient",
        "The gradient of nn.categorical_cross_entropy: (dloss, p, labels) -> dp.",
        _gradient_infer,
        _cross_entropy_gradient,
        GradientByExpansion(_cross_entropy_parts),
        inputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 1)),
    ),
    Command(
        "softmax_cross_entropy",
        "Cross entropy of softmax(x): x [..., C], labels [...] -> (loss [...], probabilities [..., C]), which may "
        "be written over x. The loss of a negative label is 0.",
        _softmax_infer,
        _softmax_cross_entropy,
        _softmax_cross_entropy_rule,
        inputs=(2, 2),
        outputs=(2, 2),
        inplace=overwrite_any(0, output=1),
        slices=leading_axis(),
    ),
    Command(
        "softmax_cross_entropy_gradient",
        "The gradient of nn.softmax_cross_entropy: (dloss, probabilities, labels) -> dx.",
        _gradient_infer,
        _softmax_cross_entropy_gradient,
        GradientByExpansion(_softmax_cross_entropy_parts),
        inputs=(3, 3),
        inplace=overwrite_any(1),
        slices=leading_axis(),
    ),
    *_pairwise(
        "sigmoid_binary_cross_entropy",
        "Binary cross entropy of sigmoid(x) with targets t in [0, 1], for each element.",
        lambda x, t: (np.maximum(x, 0) - x * t) + np.log1p(np.exp(-np.abs(x))),
        _logits_target,
        lambda dloss, x, t: dloss * (sigmoid(x) - t),
        _logits_slope,
        overwrite_unless_repeated((0, 1)),
    ),
    *_pairwise(
        "binary_cross_entropy",
        "Binary cross entropy of probabilities x with targets t in [0, 1], for each element; at most 100.",
        _binary_cross_entropy,
        _probabilities_target,
        lambda dloss, p, t: dloss * (p - t) / np.maximum(p * (1 - p), TINY),
        _probabilities_slope,
    ),
    *_pairwise(
        "mse",
        "(x - t)^2, for each element.",
        lambda x, t: (x - t) ** 2,
        _negated_gradient,
        lambda dloss, x, t: 2 * dloss * (x - t),
        _mse_slope,
    ),
    *_pairwise(
        "smooth_l1",
        "(x - t)^2 / (2 beta) where |x - t| is below beta, |x - t| - beta / 2 elsewhere (Girshick 2015).",
        _smooth_l1,
        _negated_gradient,
        lambda dloss, x, t, beta: dloss * np.clip((x - t) / beta, -1, 1),
        _smooth_l1_slope,
        attrs={"beta": 1.0},
    ),
)
