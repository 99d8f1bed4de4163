"""Functions composed of commands of the nn dialect. Gradients, kernels and plans are those of the commands.

Numbers and arrays beside a Tensor become constants. Every function raises SpecError, beginning with the user's line,
for shapes, types and arguments not accepted by the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

from sublet.base.errors import SpecError
from sublet.base.tensor import DType
from sublet.nn.source_location import at_line
from sublet.nn.tensor import Operand, Tensor, describe, first_tensor
from sublet.nn.tensor_index import updated
from sublet.ops.nn.rules import normalize_axes, normalize_axis

Axes = int | Sequence[int]

# Axes and elements.


def stack(tensors: Sequence[Operand], axis: int = 0) -> Tensor:
    """Return tensors of one shape as slices along a new axis: two of shape [3] -> [2, 3]."""
    like = first_tensor(tensors, "stack")
    return like._apply("nn.concat", *(unsqueeze(like._operand(one), axis) for one in tensors), axis=axis)


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """Return x with a new axis of extent 1: axis 0 is the first axis of the result, -1 the last."""
    place = _axis(axis, x.ndim + 1)
    return x.reshape(*x.shape[:place], 1, *x.shape[place:])


def squeeze(x: Tensor, axes: Axes = ()) -> Tensor:
    """Return x without the given axes, which have extent 1; by default without all axes of extent 1."""
    removed = _axes(axes, x.ndim) if axes != () else tuple(i for i, extent in enumerate(x.shape) if extent == 1)
    longer = [i for i in removed if x.shape[i] != 1]
    if longer:
        raise SpecError(
            at_line(f"nn.squeeze: {describe(x)} has the extent {x.shape[longer[0]]} along axis {longer[0]}")
        )
    return x.reshape(*(extent for i, extent in enumerate(x.shape) if i not in removed))


def update(x: Tensor, index: Any, value: Operand) -> Tensor:
    """Return x with `value`, broadcast to the shape of `x[index]`, at an index; x keeps its elements.

    The same as `x.at[index].set(value)`. An index is as in `x[index]`: integers, slices, `...`, None, or one integer
    computed at run time.
    """
    return updated(x, index, value)


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the elements sorted along an axis, and their indices as i64. Equal elements keep their order."""
    place = _axis(axis, x.ndim)
    values, indices = x.graph.apply("nn.top_k", x, k=x.shape[place], axis=place, largest=descending)
    return values, indices


# Reductions.


def var(x: Tensor, axes: Axes = (), keepdims: bool = False, correction: int = 0) -> Tensor:
    """Return the mean squared deviation over axes, over all for (); the divisor is the number minus `correction`."""
    over = _axes(axes, x.ndim)
    count = prod(x.shape[axis] for axis in over)
    squares = x._apply("nn.square", x - x.mean(over, keepdims=True)).sum(over, keepdims=keepdims)
    return squares / float(max(count - correction, 0))


def std(x: Tensor, axes: Axes = (), keepdims: bool = False, correction: int = 0) -> Tensor:
    """Return the square root of `nn.var`; the gradient of a deviation of 0 is 0."""
    over = _axes(axes, x.ndim)
    count = prod(x.shape[axis] for axis in over)
    norm = x._apply("nn.norm", x - x.mean(over, keepdims=True), axes=over, keepdims=keepdims)
    return norm / sqrt(max(count - correction, 0))


def all(x: Tensor, axes: Axes = (), keepdims: bool = False) -> Tensor:
    """Return bools: True if all elements over axes, over all for (), are True or not 0."""
    return _extreme_of_bools("nn.min", x, axes, keepdims)


def any(x: Tensor, axes: Axes = (), keepdims: bool = False) -> Tensor:
    """Return bools: True if some element over axes, over all for (), is True or not 0."""
    return _extreme_of_bools("nn.max", x, axes, keepdims)


def _extreme_of_bools(op: str, x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    """Return the extreme over axes of elements as bools; as numbers a bool is 0 or 1."""
    bools = x if x.dtype is DType.BOOL else x != 0
    reduced = x._apply(op, bools.astype("u8"), axes=_axes(axes, x.ndim), keepdims=keepdims)
    return reduced.astype("bool")


# Losses.


def cross_entropy(
    x: Tensor,
    labels: Operand,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of softmax(x): scores x [..., C], labels [...] -> a number.

    label_smoothing  the share of the target distributed evenly over all classes (Szegedy et al., 2016)
    ignore_index     a label without a loss, as are negative labels
    reduction        "mean" of the labels with a loss, "sum", or "none" for a loss a label, [...]
    """
    if not 0 <= label_smoothing <= 1 or reduction not in ("mean", "sum", "none"):
        what = f"label_smoothing={label_smoothing!r}, reduction={reduction!r}"
        raise SpecError(at_line(f"nn.cross_entropy: {what}: expected a share from 0 to 1, and mean, sum or none"))
    target = x._operand(labels)
    if ignore_index is not None and ignore_index >= 0:
        target = x._apply("nn.where", target == ignore_index, -1, target)
    loss = x._apply("nn.softmax_cross_entropy", x, target)
    counted = target >= 0
    if label_smoothing:
        evenly = -x._apply("nn.log_softmax", x, axis=-1).mean(-1)
        loss = (1 - label_smoothing) * loss + label_smoothing * x._apply("nn.masked_fill", evenly, ~counted, value=0.0)
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / counted.astype(x.dtype).sum()


def huber(x: Tensor, t: Operand, delta: float = 1.0) -> Tensor:
    """Return the loss of each element (Huber, 1964): (x - t)^2 / 2 where |x - t| is below delta, linear elsewhere."""
    return x._apply("nn.smooth_l1", x, t, beta=delta) * delta


def kl_divergence(x: Tensor, t: Operand, *, log_target: bool = False) -> Tensor:
    """Return t (log t - x) of each element: the divergence of log-probabilities x from targets t; 0 where t is 0.

    With `log_target` the targets are log-probabilities too. The sum over classes is the divergence of a sample.
    """
    target = x._operand(t)
    if log_target:
        return x._apply("nn.exp", target) * (target - x)
    logs = x._apply("nn.log", x._apply("nn.where", target > 0, target, 1))
    return target * (logs - x)


# Sums of products in Einstein's notation.


def einsum(equation: str, *operands: Operand) -> Tensor:
    """Return sums of products: einsum("bij,bjk->bik", a, b) multiplies matrices, as numpy.einsum.

    Without "->" the result has the labels that occur once, in alphabetic order. `...` names all further
    axes, and a label repeated in one operand selects the diagonal. Operands are multiplied from left to right.
    """
    like = first_tensor(operands, "einsum")
    tensors = [like._operand(one) for one in operands]
    terms, output = _parse_equation(equation, tensors)
    factors = [_diagonal(x, labels) for x, labels in zip(tensors, terms, strict=True)]
    extents: dict[str, int] = {}
    for x, labels in factors:
        for label, extent in zip(labels, x.shape, strict=True):
            if extents.get(label, 1) != 1 and extent not in (1, extents[label]):
                raise SpecError(at_line(f"nn.einsum: {equation!r} has {extents[label]} and {extent} for {label!r}"))
            extents[label] = max(extent, extents.get(label, 0)) if extent else 0
    factors = [_without_broadcast_axes(x, labels, extents) for x, labels in factors]
    result, labels = factors[0]
    for i, (x, others) in enumerate(factors[1:], 2):
        later = {label for _, rest in factors[i:] for label in rest}
        result, labels = _contract(result, labels, x, others, later | {*output})
    summed = tuple(i for i, label in enumerate(labels) if label not in output)
    result = result.sum(summed) if summed else result
    labels = "".join(label for label in labels if label in output)
    result = _in_order(result, labels, "".join(label for label in output if label in labels))
    shape = tuple(extents[label] for label in output)
    kept = tuple(extents[label] if label in labels else 1 for label in output)
    result = result if result.shape == kept else result.reshape(*kept)
    return result if kept == shape else result._apply("nn.broadcast_to", result, shape=shape)


def _parse_equation(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return a label for each axis of each operand and of the result. Raises SpecError if operands do not fit."""
    given, arrow, output = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != len(tensors):
        raise SpecError(at_line(f"nn.einsum: {equation!r} has {len(terms)} operands, not {len(tensors)}"))
    counts = [x.ndim - len(term.replace("...", "")) for x, term in zip(tensors, terms, strict=True)]
    longest = max((n for n, term in zip(counts, terms, strict=True) if "..." in term), default=0)
    further = "".join(chr(ord("A") + 64 + i) for i in range(max(longest, 0)))  # letters that no user writes
    for term, n, x in zip(terms, counts, tensors, strict=True):
        if n < 0 or (n and "..." not in term):
            raise SpecError(at_line(f"nn.einsum: {term!r} in {equation!r} does not fit the axes of {describe(x)}"))
    expanded = [term.replace("...", further[longest - n :]) for term, n in zip(terms, counts, strict=True)]
    joined = "".join(expanded)
    if not arrow:
        output = "..." + "".join(sorted(label for label in {*joined} - {*further} if joined.count(label) == 1))
    output = output.replace("...", further)
    if len({*output}) < len(output) or not {*output} <= {*joined}:
        raise SpecError(at_line(f"nn.einsum: the result of {equation!r} must name labels of the operands, each once"))
    return expanded, output


def _diagonal(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """Return the diagonal along axes of one label, and a label for each axis left."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            k = labels.index(label, i + 1)
            n = x.shape[i]
            if x.shape[k] != n:
                raise SpecError(at_line(f"nn.einsum: {describe(x)} has no diagonal along axes {i} and {k}"))
            rest = labels[:i] + labels[i + 1 : k] + labels[k + 1 :]
            order = [axis for axis in range(x.ndim) if axis not in (i, k)]
            flat = x.transpose(*order, i, k).reshape(*(x.shape[axis] for axis in order), n * n)
            x, labels = flat[..., :: n + 1], rest + label
    return x, labels


def _without_broadcast_axes(x: Tensor, labels: str, extents: dict[str, int]) -> tuple[Tensor, str]:
    """Return an operand without the axes of extent 1 that other operands have with a larger extent."""
    kept = [i for i, label in enumerate(labels) if x.shape[i] == extents[label]]
    return (x, labels) if len(kept) == x.ndim else (
        x.reshape(*(x.shape[i] for i in kept)), "".join(labels[i] for i in kept)
    )  # fmt: skip


def _in_order(x: Tensor, labels: str, order: str) -> Tensor:
    """Return x, with the axes `labels`, with axes in another order."""
    return x if labels == order else x.transpose(*(labels.index(label) for label in order))


def _contract(a: Tensor, of_a: str, b: Tensor, of_b: str, kept: set[str]) -> tuple[Tensor, str]:
    """Return the product of two operands, summed over the labels not `kept`, and a label for each axis.

    Labels of one operand only are summed first. The rest is one product of matrices for each index of the labels of
    both that are kept; or a product of elements, if no label is summed.
    """
    alone_a = tuple(i for i, label in enumerate(of_a) if label not in kept and label not in of_b)
    alone_b = tuple(i for i, label in enumerate(of_b) if label not in kept and label not in of_a)
    a, b = (a.sum(alone_a) if alone_a else a), (b.sum(alone_b) if alone_b else b)
    of_a = "".join(label for i, label in enumerate(of_a) if i not in alone_a)
    of_b = "".join(label for i, label in enumerate(of_b) if i not in alone_b)
    batch = "".join(label for label in of_a if label in of_b and label in kept)
    summed = "".join(label for label in of_a if label in of_b and label not in kept)
    rows = "".join(label for label in of_a if label not in of_b)
    columns = "".join(label for label in of_b if label not in of_a)
    extents = dict(zip(of_a + of_b, a.shape + b.shape, strict=True))
    count = [prod(extents[label] for label in group) for group in (batch, rows, summed, columns)]
    left = _in_order(a, of_a, batch + rows + summed)
    right = _in_order(b, of_b, batch + summed + columns)
    shape = [extents[label] for label in batch + rows + columns]
    if not summed:
        product = left.reshape(count[0], count[1], 1) * right.reshape(count[0], 1, count[3])
    else:
        product = left.reshape(*count[:3]) @ right.reshape(count[0], count[2], count[3])
    return product.reshape(*shape), batch + rows + columns


def _axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front. Raises SpecError, with the user's line, for an axis out of range."""
    try:
        return normalize_axis(axis, rank)
    except SpecError as error:
        raise SpecError(at_line(str(error))) from None


def _axes(axes: Axes, rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, all for (). Raises SpecError, with the user's line, for unsuitable axes."""
    try:
        return normalize_axes((axes,) if isinstance(axes, int) else axes, rank)
    except SpecError as error:
        raise SpecError(at_line(str(error))) from None


__all__ = [
    *("all", "any", "cross_entropy", "einsum", "huber", "kl_divergence", "sort", "squeeze", "stack", "std"),
    *("unsqueeze", "update", "var"),
]
