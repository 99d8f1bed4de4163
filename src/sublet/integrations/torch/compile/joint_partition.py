"""Partition of a joint graph into forward and backward, with rematerialization of cheap tensors in the backward pass.

    y = gelu(h); z = y @ w                      y = gelu(h); z = y @ w
    ...                             ->          ...
    dw = y.t() @ dz                             again = gelu(h); dw = again.t() @ dz

A tensor is rematerialized only if the inputs of the second computation are saved anyway, or are smaller. The partition
never computes a tensor more than twice, and chains of rematerialized operators are short. PyTorch's minimum-cut
partitioner takes all remaining decisions.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.fx_queries import (
    BATCH_NORM,
    MIN_RECOMPUTED_BYTES,
    arguments_of,
    forward_nodes,
    has_several_results,
    is_batch_norm_result,
    is_cheap,
    rematerialize_late_uses,
    result_at,
    storage_node,
    tensor_bytes,
)
from sublet.integrations.torch.reader.exported_program import error_summary
from sublet.integrations.torch.reader.traced_tensor import torch

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

DividedGraphs = tuple["GraphModule", "GraphModule"]
"""The forward and the backward graph of a joint graph."""

MAX_CHAIN = 8
"""Maximum operators in a chain of recomputation, views not counted."""

ALIAS_OPERATORS = ("aten.detach.default", "aten.alias.default")


def partition_joint(
    joint: GraphModule,
    example: Sequence[object],
    *,
    num_fwd_outputs: int,
    warn: Callable[[str], None] = warnings.warn,
    **options: object,
) -> DividedGraphs:
    """Return the forward and the backward graph of a joint graph, as required by AOTAutograd's `partition_fn`.

    If Sublet's partition raises, PyTorch partitions the graph as given: by minimum cut, or by the default partition if
    the minimum cut raises too.

    Args:
        joint: the joint graph module; changed in place.
        example: example arguments.
        num_fwd_outputs: number of results of the forward pass; they come first.
        warn: receives messages for the user.
        options: passed to PyTorch's partitioner.
    """
    given = copy.deepcopy(joint.graph)  # `_partition` changes `joint` in place
    try:
        return _partition_with_remat(joint, example, num_fwd_outputs, warn, options)
    except Exception as error:  # an error in Sublet must not stop the program
        name = require("torch._functorch.aot_autograd", extra="torch").get_aot_graph_name()
        warn(f"sublet leaves the partition of graph {name} to PyTorch: {error_summary(error)}")
    partitioners = require("torch._functorch.partitioners", extra="torch")
    divide, default = partitioners.min_cut_rematerialization_partition, partitioners.default_partition
    try:
        return _partition_by(divide, joint, copy.deepcopy(given), example, num_fwd_outputs, options)
    except Exception:  # the first error may be from the minimum cut
        return _partition_by(default, joint, given, example, num_fwd_outputs, options)


def _partition_by(
    divide: Callable[..., DividedGraphs],
    joint: GraphModule,
    graph: Graph,
    example: Sequence[object],
    outputs: int,
    options: Mapping[str, object],
) -> DividedGraphs:
    """Return the forward and the backward graph of a joint graph, by `divide`, a partitioner of PyTorch."""
    module = torch().fx.GraphModule(joint, graph)
    forward, backward = divide(module, example, num_fwd_outputs=outputs, **options)
    return forward, backward


def _partition_with_remat(
    joint: GraphModule,
    example: Sequence[object],
    num_fwd_outputs: int,
    warn: Callable[[str], None],
    options: Mapping[str, object],
) -> DividedGraphs:
    """Return the forward and the backward graph of a joint graph with cheap tensors rematerialized; `joint` is changed.

    If the user has marked nodes by `torch.utils.checkpoint`, Sublet rematerializes no tensor.
    """
    partitioners = require("torch._functorch.partitioners", extra="torch")
    config = require("torch._functorch.config", extra="torch")
    ours = not any(node.meta.get("recompute") for node in joint.graph.nodes)  # the user's marks have priority
    given = {node.name for node in joint.graph.nodes if node.op == "placeholder"}
    if ours:
        common = require("torch._functorch.compile_utils", extra="torch").fx_graph_cse
        _remove_aliases(joint.graph)
        joint.graph.eliminate_dead_code()
        joint.graph = common(joint.graph)
        _JointGraph(joint.graph, num_fwd_outputs).choose_saved()
        joint.graph.lint()
        joint.recompile()
    changed: set[str] = set()
    if not ours or config.activation_memory_budget < 1:
        changed = _mutated_arguments(joint.graph, num_fwd_outputs)
        _mark_non_repeatable(joint.graph, changed, whole=not ours)

    def min_cut(**patched: object) -> DividedGraphs:
        with config.patch(cse=False, **patched):  # CSE would merge the copies with the originals
            graphs: DividedGraphs = partitioners.min_cut_rematerialization_partition(
                joint, example, num_fwd_outputs=num_fwd_outputs, **options
            )
        return graphs

    graphs = min_cut() if ours else min_cut(activation_memory_budget=1.0)
    again = _unsafe_recomputation(*graphs, changed)
    if again:
        warn(
            f"activation_memory_budget={config.activation_memory_budget} would compute {again} once more in the "
            "backward, where it gives other numbers: this graph keeps what PyTorch keeps without a budget"
        )
        graphs = min_cut(activation_memory_budget=1.0)
    if ours:
        rematerialize_late_uses(graphs[1].graph, given)
        graphs[1].recompile()
    return graphs


def _mark_non_repeatable(graph: Graph, changed: set[str], whole: bool) -> None:
    """Mark the results of non-repeatable operators as saved: of random operators, and of operators reading a mutated
    argument.

    An example of a mutated argument are the statistics of a batch norm. With `whole`, a node with several results is
    marked too: the minimum cut looks at the results alone, but the search within a budget would save the tuple besides.
    """
    policy = require("torch.utils.checkpoint", extra="torch").CheckpointPolicy
    for node in graph.nodes:
        if _draws_random_numbers(node) or any(each.name in changed for each in node.all_input_nodes):
            results = [user for user in node.users if user.target is operator.getitem]
            for kept in [*results, *([node] if whole or not results else [])]:
                if kept.op == "call_function":
                    kept.meta["recompute"] = policy.MUST_SAVE


def _mutated_arguments(graph: Graph, outputs: int) -> set[str]:
    """Return the names of the placeholders possibly mutated by the forward pass. AOTAutograd does not report mutations.

    A placeholder counts as mutated if the placeholder has no gradient, and the forward pass computes a result of equal
    shape and type from the placeholder.
    """
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    given = [node for node in graph.nodes if node.op == "placeholder"]
    forward = {node for node in results[:outputs] if hasattr(node, "meta")}
    return {
        node.name
        for node, gradient in zip(given, results[outputs:], strict=False)
        if gradient is None and any(_has_same_shape_and_type(node, each) for each in _transitive_users(node) & forward)
    }


def changed_arguments(graph: Graph, outputs: int) -> set[str]:
    """Return the names of the placeholders changed by the forward pass: by a copy in the graph, or after the pass."""
    copied = {str(node.args[0].name) for node in graph.nodes if str(node.target) == "aten.copy_.default"}
    return copied | _mutated_arguments(graph, outputs)


def _transitive_users(node: Node) -> set[Node]:
    """Return the transitive users of a node."""
    computed: set[Node] = set()
    todo = [node]
    while todo:
        fresh = [user for user in todo.pop().users if user not in computed]
        computed.update(fresh)
        todo += fresh
    return computed


def _has_same_shape_and_type(one: Node, other: Node) -> bool:
    """True if two nodes are tensors of the same shape and type."""
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch().Tensor) or not isinstance(second, torch().Tensor):
        return False
    return bool(first.shape == second.shape and first.dtype == second.dtype)


def _draws_random_numbers(node: Node) -> bool:
    """True if an operator draws random numbers."""
    return torch().Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _unsafe_recomputation(forward: GraphModule, backward: GraphModule, changed: set[str]) -> str:
    """Return the name of a non-repeatable node computed in both graphs; "" if no such node exists."""
    computed = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    for node in backward.graph.nodes:
        if node.name in computed and (
            _draws_random_numbers(node) or any(each.name in changed for each in node.all_input_nodes)
        ):
            return str(node.name)
    return ""


def rematerialize_cheap(joint: GraphModule, outputs: int) -> None:
    """Rematerialize cheap tensors in a joint graph, each right before the first reader.

    The first `outputs` results of the graph are the results of the forward pass.
    """
    graph = joint.graph
    _remove_aliases(graph)
    graph.eliminate_dead_code()
    choice = _JointGraph(graph, outputs)
    choice.choose_saved()
    moved = [node for node in graph.nodes if node not in choice.original_nodes or choice.is_early(node)]
    for node in reversed(moved):
        min(node.users).prepend(node)  # nodes compare by their order in the graph, nodes moved before included
    for node in graph.nodes:
        node.meta.pop("recompute", None)
    graph.lint()
    joint.recompile()


def _remove_aliases(graph: Graph) -> None:
    """Replace aliases and needless clones of tensors by the tensors: the partitioner would save both."""
    results = {storage_node(node) for node in graph.output_node().all_input_nodes}
    for node in list(graph.nodes):
        if node.op == "call_function" and (str(node.target) in ALIAS_OPERATORS or _is_needless_clone(node, results)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_needless_clone(node: Node, results: Collection[Node]) -> bool:
    """True for a clone that no program can tell from its operand, such as the operand saved for an in-place SiLU.

    The caller may change arguments and results of the graph between the passes, so clones of these are kept.
    """
    if str(node.target) != "aten.clone.default" or storage_node(node) in results:
        return False
    (source,) = node.all_input_nodes
    home, strides = storage_node(source), [tuple(each.meta["val"].stride()) for each in (node, source)]
    is_known = all(type(stride) is int for stride in strides[0] + strides[1])
    return home.op == "call_function" and home not in results and is_known and strides[0] == strides[1]


@dataclass
class _RecomputeChain:
    """The recomputation of a tensor: operators, leaves, and the number of operators on the longest path.

    nodes   operators to compute again
    leaves  tensors read by the operators and not computed again
    length  operators on the longest path, views not counted
    """

    nodes: list[Node] = field(default_factory=list)
    leaves: list[Node] = field(default_factory=list)
    length: int = 0


class _JointGraph:
    """A joint graph of forward and backward, with the choice of tensors to save and to compute again."""

    def __init__(self, graph: Graph, outputs: int) -> None:
        self._graph = graph
        self._nodes = list(graph.nodes)
        self.original_nodes = set(self._nodes)
        self._forward = forward_nodes(self._nodes[-1].args[0][:outputs])
        self._positions = {node: i for i, node in enumerate(self._nodes)}
        self._last_forward = max((self._positions[node] for node in self._forward), default=0)
        self._saved: set[Node] = set()
        self._chains: dict[Node, _RecomputeChain] = {}
        self._copies: dict[Node, Node] = {}

    def is_early(self, node: Node) -> bool:
        """True for an operator of the backward pass that was traced within the forward pass, and may run later."""
        position = self._positions.get(node, self._last_forward)
        if node.op != "call_function" or node in self._forward or position >= self._last_forward or not node.users:
            return False
        is_random = torch().Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        return not is_random and min(node.users).op != "output"

    def _backward_readers(self, node: Node) -> list[Node]:
        """Return the backward readers of a forward node."""
        return [user for user in node.users if user not in self._forward and user.op == "call_function"]

    def choose_saved(self) -> None:
        """Rematerialize cheap tensors in the backward pass, and mark all further tensors read there as saved."""
        given = {storage_node(node) for node in self._nodes[-1].all_input_nodes}
        wanted = [
            node
            for node in self._nodes
            if node in self._forward and node.op == "call_function" and self._backward_readers(node)
        ]
        tensors = [node for node in wanted if tensor_bytes(node)]
        self._saved.update(storage_node(node) for node in tensors if not is_cheap(storage_node(node)))
        for node in tensors:
            self._decide(storage_node(node), given)
        for node in tensors:
            if storage_node(node) in self._chains:
                late, again = self._backward_readers(node), self._copy_in_backward(node)
                for user in late:
                    user.replace_input_with(node, again)
        save = torch().utils.checkpoint.CheckpointPolicy.MUST_SAVE
        for node in self._saved:
            if node.op == "call_function":
                node.meta["recompute"] = save

    def _decide(self, tensor: Node, given: set[Node]) -> None:
        """Choose between saving a tensor and computing the tensor again.

        A tensor is computed again if the tensor is large enough and cheap, the chain has at most `MAX_CHAIN` operators,
        and newly saved leaves have at most half of the tensor's bytes. A constant of any size is computed again: a
        kernel then has the number in the code.
        """
        if tensor in self._saved or tensor in self._chains or tensor.op != "call_function":
            return
        is_worth = tensor_bytes(tensor) >= MIN_RECOMPUTED_BYTES or not tensor.all_input_nodes
        chain = self._chain_of(tensor) if is_worth and tensor not in given else None
        if chain is not None:
            more = sum(tensor_bytes(leaf) for leaf in chain.leaves if leaf not in self._saved)
            if chain.length <= MAX_CHAIN and 2 * more <= tensor_bytes(tensor):
                self._chains[tensor] = chain
                self._saved.update(chain.leaves)
                return
        self._saved.add(tensor)

    def _chain_of(self, tensor: Node) -> _RecomputeChain:
        """Return the recomputation of a cheap tensor from saved tensors and expensive tensors."""
        chain = _RecomputeChain()
        lengths: dict[Node, int] = {}

        def visit(node: Node) -> int:
            node = storage_node(node)
            if node.op != "call_function":
                return 0
            if node in lengths:
                return lengths[node]
            if node in self._chains:
                inner = self._chains[node]
                chain.leaves += inner.leaves
                lengths[node] = inner.length
            elif node in self._saved or not is_cheap(node):
                chain.leaves.append(node)
                lengths[node] = 0
            else:
                lengths[node] = 0  # placeholder until computed, ends recursion
                inputs = _tensor_operands(node)
                lengths[node] = 1 + max(map(visit, inputs), default=0)
                chain.nodes.append(node)
            return lengths[node]

        chain.length = visit(tensor)
        chain.leaves = list(dict.fromkeys(chain.leaves))
        return chain

    def _copy_in_backward(self, node: Node) -> Node:
        """Return a copy of a node in the backward pass, with all views and cheap operands; a saved node itself."""
        home = storage_node(node)
        if home.op != "call_function" or home in self._saved or not is_cheap(home):
            return self._copy_of_view(node, home)
        if node in self._copies:
            return self._copies[node]
        if is_batch_norm_result(node):
            return self._copies.setdefault(node, self._normalize_with_saved_statistics(node))
        places = {each: self._copy_in_backward(each) for each in node.all_input_nodes if not has_several_results(each)}
        tuples = {each: self._copy_of_tuple(each) for each in node.all_input_nodes if has_several_results(each)}
        with self._graph.inserting_after(_last_in_graph([node, *places.values(), *tuples.values()], self._graph)):
            copied = self._graph.node_copy(node, lambda each: {**places, **tuples}.get(each, each))
        return self._copies.setdefault(node, copied)

    def _copy_of_view(self, node: Node, home: Node) -> Node:
        """Return a copy of a view of a saved tensor.

        If the backward pass read a view of the forward pass, the partitioner might save the view as well.
        """
        if node is home:
            return node
        if node not in self._copies:
            base = self._copy_of_view(arguments_of(node)[0], home)
            with self._graph.inserting_after(_last_in_graph([node, base], self._graph)):
                copied = self._graph.node_copy(node, lambda each: base if each is node.args[0] else each)
            self._copies[node] = copied
        return self._copies[node]

    def _copy_of_tuple(self, node: Node) -> Node:
        """Return a copy of an operator with several results."""
        if node not in self._copies:
            places = {each: self._copy_in_backward(each) for each in node.all_input_nodes}
            with self._graph.inserting_after(_last_in_graph([node, *places.values()], self._graph)):
                self._copies[node] = self._graph.node_copy(node, lambda each: places.get(each, each))
        return self._copies[node]

    def _normalize_with_saved_statistics(self, node: Node) -> Node:
        """Return the result of a batch norm computed again from the saved statistics of the batch."""
        (whole, _), aten = arguments_of(node), torch().ops.aten
        x, scale, bias = whole.args[:3]
        mean, rstd = filter(None, (result_at(whole, 1), result_at(whole, 2)))
        x = self._copy_in_backward(x)
        with self._graph.inserting_after(_last_in_graph([node, x, rstd, mean], self._graph)):
            variance = self._graph.call_function(aten.pow.Tensor_Scalar, (rstd, -2.0))
        variance.meta["val"] = torch().empty_like(rstd.meta["val"])
        with self._graph.inserting_after(variance):
            again = self._graph.call_function(
                aten._native_batch_norm_legit_no_training.default, (x, scale, bias, mean, variance, 0.0, 0.0)
            )
        unread = rstd.meta["val"].new_empty(0)
        again.meta["val"] = (node.meta["val"], unread, unread)
        with self._graph.inserting_after(again):
            normalized = self._graph.call_function(operator.getitem, (again, 0))
        normalized.meta["val"] = node.meta["val"]
        return normalized


def _tensor_operands(node: Node) -> Iterator[Node]:
    """Yield the tensor operands of a cheap node; for a batch norm the input and the saved statistics."""
    for each in node.all_input_nodes:
        if not has_several_results(each):
            yield each
        elif str(each.target) == BATCH_NORM:
            yield from filter(None, (arguments_of(each)[0], result_at(each, 1), result_at(each, 2)))
        else:
            yield from each.all_input_nodes


def _last_in_graph(nodes: Sequence[Node], graph: Graph) -> Node:
    """Return the last of some nodes in graph order."""
    wanted = set(nodes)
    last: Node = next(node for node in reversed(graph.nodes) if node in wanted)
    return last


def save_weights_as_given(graph: GraphModule) -> None:
    """Let a forward pass save the weights of convolutions with the strides of the caller, so without a copy.

    Inductor copies each weight to channels last, and saves the copy. The weight itself is alive in any case, and the
    kernel of the gradients copies a weight while it runs.
    """
    convolutions = graph.graph.find_nodes(op="call_function", target=torch().ops.aten.convolution.default)
    images, weights = ({each.args[i] for each in convolutions} for i in range(2))
    kept = {each for each in weights - images if each.op == "placeholder"}
    (output,) = graph.graph.find_nodes(op="output")
    visible = output.meta.get("user_visible_output_idxs")
    if visible is not None and isinstance(output.args[0], list | tuple):
        saved = (i for i, each in enumerate(output.args[0]) if each in kept)
        output.meta["user_visible_output_idxs"] = sorted({*visible, *saved})
