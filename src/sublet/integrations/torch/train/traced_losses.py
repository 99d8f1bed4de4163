"""Losses over a vocabulary in a traced step: merged with the linear layer of the logits, see `compile/loss_rows.py`.

The traced step has forward and backward. The gradient of the logits runs back through the views of the forward pass:

    product = mm(x, t(weight))               loss, total = nll_loss_forward(softmax, labels)
    logits = view(slice(view(product)))      d = nll_loss_backward(dloss, softmax, labels, total)
    softmax = _log_softmax(logits)           d = view(slice_backward(view(_log_softmax_backward_data(d, softmax))))
    ...                                      dx = mm(d, weight); dw = mm(t(d), x); db = sum(d)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from sublet.integrations.torch.compile.joint_partition import ALIAS_OPERATORS
from sublet.integrations.torch.compile.loss_rows import group_count, loss_operator, planned_group_bytes, saves_planned
from sublet.integrations.torch.reader.traced_tensor import torch

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule

Node = Any
"""A node of FX; the arguments have no static type."""

SAME_ORDER = ("aten.view.default", "aten._unsafe_view.default", "aten.clone.default")
CUT, CUT_BACK = "aten.slice.Tensor", "aten.slice_backward.default"
CHECK = "aten._assert_tensor_metadata.default"
MEANS = {1: True, 2: False}
"""By the number of PyTorch's reduction: True for the mean, False for the sum."""


def merge_traced_losses(module: GraphModule, budget: int | None) -> None:
    """Merge each large cross entropy of a traced step with the linear layer of the logits, if memory is saved.

    The results of the graph keep their names.

    Args:
        module: forward and backward as one graph; changed in place.
        budget: bytes of the arena, or None.
    """
    found = [node for node in module.graph.nodes if str(node.target) == "aten.nll_loss_forward.default"]
    if sum(_merge_traced_loss(module.graph, node, planned_group_bytes(budget)) for node in found):
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()


def _merge_traced_loss(graph: Graph, loss: Node, group_bytes: int) -> bool:
    """Merge a cross entropy with the linear layer of the logits; False for a loss or layer of another kind."""
    softmax, labels, class_weights, reduction, ignored = loss.args
    ends = _gradient_ends(softmax, loss)
    if ends is None or class_weights is not None or reduction not in MEANS:
        return False
    dloss, dlogits = ends
    before, after = _views_before(softmax.args[0]), _views_after(dlogits)
    product, gradient = before[-1], after[-1]
    is_product = str(product.target) in ("aten.mm.default", "aten.addmm.default") and not product.kwargs
    if not is_product or len(_readers(product)) > 1:
        return False
    bias, x, factor = (None, *product.args)[-3:]
    weight, is_transposed = _past_transpositions(factor)
    logits, result = softmax.args[0].meta["val"], product.meta["val"]
    readers, cut = _layer_gradients(gradient, x, weight), _common_cut(before, after, result.shape[1])
    is_same = gradient.meta["val"].shape == result.shape and logits.shape[1] == result.shape[1]
    is_row = bias is None or bias.meta["val"].shape == result.shape[1:]
    if readers is None or cut is None or not (is_transposed and is_same and is_row):
        return False
    if not saves_planned(logits, result, weight.meta["val"], group_bytes):
        return False
    groups = group_count(result.shape, result.element_size(), group_bytes)
    with graph.inserting_before(loss):
        labels = _pad_labels(graph, labels, cut, ignored) if cut else labels
        arguments = (x, weight, bias, labels, ignored, MEANS[reduction], groups)
        shapes = [each.meta["val"].shape for each in (x, weight)]
        both = _call(graph, loss_operator(), arguments, x, (), *shapes, shapes[1][:1])
    for user in list(loss.users):
        user.args = (both, 0)  # the total, the other result, loses its reader
    for position, reader in readers:
        _replace_gradient(graph, reader, both, position, dloss)
    for check in [each for node in before for each in node.users if str(each.target) == CHECK]:
        graph.erase_node(check)
    return True


def _readers(node: Node) -> list[Node]:
    """Return the readers of a node, also through aliases; checks of types are no readers."""
    users = [each for each in node.users if str(each.target) != CHECK]
    return [reader for each in users for reader in (_readers(each) if str(each.target) in ALIAS_OPERATORS else [each])]


def _gradient_ends(softmax: Node, loss: Node) -> tuple[Node, Node] | None:
    """Return the gradient of the loss and the gradient of the logits; None if another node reads the softmax."""
    readers = {str(each.target): each for each in _readers(softmax) if each is not loss}
    names = ("aten.nll_loss_backward.default", "aten._log_softmax_backward_data.default")
    if str(softmax.target) != "aten._log_softmax.default" or len(_readers(softmax)) != 3 or {*readers} != {*names}:
        return None
    first, second = (readers[name] for name in names)
    logits = softmax.args[0].meta["val"]
    is_plain = logits.dim() == 2 and softmax.args[1:] == (1, False) and second.args[0] is first
    return (first.args[0], second) if is_plain and _readers(first) == [second] else None


def _views_before(node: Node) -> list[Node]:
    """Return a node and the nodes before with a single reader, back to the first node that is no view."""
    chain = [node]
    while len(_readers(chain[-1])) == 1 and str(chain[-1].target) in (*SAME_ORDER, CUT):
        chain.append(chain[-1].args[0])
    return chain


def _views_after(node: Node) -> list[Node]:
    """Return a node and the views that alone read the node before, in order."""
    chain = [node]
    while len(chain[-1].users) == 1 and str(next(iter(chain[-1].users)).target) in (*SAME_ORDER, CUT_BACK):
        chain.append(next(iter(chain[-1].users)))
    return chain


def _past_transpositions(node: Node) -> tuple[Node, bool]:
    """Return the node before the transpositions that end in `node`, and True for an odd number of them."""
    is_odd = False
    while str(node.target) == "aten.t.default":
        node, is_odd = node.args[0], not is_odd
    return node, is_odd


def _layer_gradients(gradient: Node, x: Node, weight: Node) -> list[tuple[int, Node]] | None:
    """Return the gradients of a layer, each with its position among the results of the operator.

    None if another node reads the gradient of the product.
    """
    found: list[tuple[int, Node]] = []
    for user in gradient.users:
        name, operands = str(user.target), user.args
        if (
            name == "aten.mm.default"
            and operands[0] is gradient
            and _past_transpositions(operands[1]) == (weight, False)
        ):
            found.append((1, user))
        elif name == "aten.t.default" and all(each.args == (user, x) for each in user.users):
            found += [(2, each) for each in user.users if str(each.target) == "aten.mm.default"]
        elif name == "aten.sum.dim_IntList" and operands[1:] == ([0], True):
            found.append((3, user))
        else:
            return None
    return found


def _common_cut(before: Sequence[Node], after: Sequence[Node], classes: int) -> tuple[Any, ...] | None:
    """Return the slice of rows between product and logits: the sliced node, the axis, begin and end.

    An empty tuple if the loss reads all rows; None for several slices, a slice of something else, and another slice in
    the gradient.
    """
    cuts = [node.args for node in before if str(node.target) == CUT]
    back = [node.args for node in after if str(node.target) == CUT_BACK]
    if [args[1:] for args in cuts] != [args[2:-1] for args in back] or len(cuts) > 1:
        return None
    if not cuts:
        return ()
    sliced, axis, *ends = cuts[0]
    shape = sliced.meta["val"].shape
    begin, end, _ = slice(*ends).indices(shape[axis])
    is_rows = shape[-1] == classes and 0 <= axis < len(shape) - 1 and back[0][-1] == 1
    return (sliced, axis, begin, end) if is_rows else None


def _pad_labels(graph: Graph, labels: Node, cut: tuple[Any, ...], ignored: int) -> Node:
    """Return the labels of all rows of a layer, for a loss of a slice of the rows; other rows are ignored."""
    sliced, axis, begin, end = cut
    aten, shape = torch().ops.aten, list(sliced.meta["val"].shape[:-1])
    read = [*shape[:axis], end - begin, *shape[axis + 1 :]]
    pads = [0, 0] * (len(shape) - 1 - axis) + [begin, shape[axis] - end]
    viewed = _call(graph, aten.view.default, (labels, read), labels, read)
    padded = _call(graph, aten.constant_pad_nd.default, (viewed, pads, ignored), labels, shape)
    return _call(graph, aten.view.default, (padded, [prod(shape)]), labels, [prod(shape)])


def _replace_gradient(graph: Graph, reader: Node, both: Node, position: int, dloss: Node) -> None:
    """Let a gradient of the layer be a result of the operator, times the gradient of the loss; the node stays."""
    aten, shape = torch().ops.aten, list(reader.meta["val"].shape)
    with graph.inserting_before(reader):
        result = _call(graph, operator.getitem, (both, position), reader, both.meta["val"][position].shape)
        if str(dloss.target) != "aten.ones_like.default":
            result = _call(graph, aten.mul.Tensor, (result, dloss), reader, both.meta["val"][position].shape)
    reader.target, reader.args, reader.kwargs = aten.view.default, (result, shape), {}


def _call(graph: Graph, target: Any, args: tuple[Any, ...], like: Node, *shapes: Sequence[int]) -> Node:
    """Insert a call with one result or several: traced tensors like the one of a node, with the given shapes."""
    node = graph.call_function(target, args)
    traced = tuple(like.meta["val"].new_empty(shape) for shape in shapes)
    node.meta["val"] = traced if len(traced) > 1 else traced[0]
    return node
