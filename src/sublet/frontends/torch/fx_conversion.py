"""Conversion of an FX graph, node by node, to nodes of a model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.control_flow import CONTROL_FLOW
from sublet.frontends.torch.conversion import ConversionLevel
from sublet.frontends.torch.eager_tensors import EagerTensors
from sublet.frontends.torch.fused_logits_gradient import add_logits_gradient, is_fused_loss_gradient
from sublet.frontends.torch.lower_to_nn import lower_to_nn
from sublet.frontends.torch.operators import add_operator
from sublet.frontends.torch.traced_tensor import TracedTensor, fixed_number, torch
from sublet.ops.aten import PREFIX
from sublet.ops.aten.dialect import OperatorFacts, facts_by_name

NUMBERS = (bool, int, float)
MAX_POOL = "aten.max_pool2d_with_indices.default"
"""Max pooling with indices. Unread indices are not computed: an index is as large as two f32 results."""
EMPTY = "aten.empty.memory_format"
EFFECTS = "with_effects"
INLINE = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap")


def convert_graph(level: ConversionLevel, module: Any, given: Sequence[Any]) -> Any:
    """Convert the graph of a module, and return the results.

    `given` are the arguments in the order of the placeholders.
    """
    stands: dict[Any, Any] = {}
    eager = EagerTensors(level.conversion.extents, level.conversion.device)
    arguments = iter(given)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            stands[node] = next(arguments)
            if isinstance(stands[node], TracedTensor) and stands[node] in level.conversion.eager_tensors:
                eager.set_eager(node, level.conversion.eager_tensors[stands[node]])
        elif node.op == "get_attr":
            stands[node] = _graph_attribute(level, module, node.target)
        elif node.op == "output":
            return _resolve(node.args[0], stands)
        elif node.op == "call_function":
            stands[node] = _convert_call(level, node, stands, eager.tensors_of(node))
            level.conversion.record_eager(stands[node], eager.tensors_of(node), eager.is_corrected(node))
        else:
            raise ModelError(
                f"{source_line(node)}: {node.op} of {node.target!r}: give a program traced to ATen operators"
            )
    raise ModelError(f"{level.conversion.where}: a graph without an output")


def placeholders(module: Any) -> list[Any]:
    """Return the argument nodes of a traced module, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def graph_results(module: Any) -> Sequence[Any]:
    """Return the results of a traced module: nodes, and plain values."""
    results: Sequence[Any] = next(node for node in module.graph.nodes if node.op == "output").args[0]
    return results


def source_line(node: Any) -> str:
    """Return "file:line" of the user's program for a node; the node's name without a stack trace."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return f"node {node.name}"
    file, _, rest = lines[-1].removeprefix('File "').partition('"')
    number = rest.partition("line ")[2].partition(",")[0]
    return f"{file.rpartition('/')[2]}:{number}"


def _resolve(argument: Any, stands: Mapping[Any, Any]) -> Any:
    """Return an argument with nodes replaced by converted values."""
    if isinstance(argument, list | tuple):
        return [_resolve(inner, stands) for inner in argument]
    if isinstance(argument, dict):
        return {key: _resolve(inner, stands) for key, inner in argument.items()}
    return stands[argument] if isinstance(argument, torch().fx.Node) else argument


def _graph_attribute(level: ConversionLevel, module: Any, name: str) -> Any:
    """Return an attribute of a module: a tensor as a weight, any other object unchanged."""
    attribute = module
    for part in name.split("."):
        attribute = getattr(attribute, part)
    if not isinstance(attribute, torch().Tensor):
        return attribute
    return level.conversion.constant_weight(name, attribute)


def _convert_call(level: ConversionLevel, node: Any, stands: Mapping[Any, Any], eager: Any) -> Any:
    """Convert a call, and return the results with the layouts of the `eager` tensors."""
    joining = not level.conversion.device
    if joining and is_fused_loss_gradient(node):
        return None  # the only reader computes the fused operator
    args, kwargs = _resolve(node.args, stands), _resolve(dict(node.kwargs), stands)
    target, source = node.target, source_line(node)
    if joining and node.args and is_fused_loss_gradient(node.args[0]):
        return add_logits_gradient(level, node, args[1], _resolve(node.args[0].args, stands), source)
    if target is operator.getitem:
        return args[0][args[1]]
    if isinstance(target, torch()._ops.HigherOrderOperator):
        if target.name() == EFFECTS:
            return _call_with_effects(level, node, args, kwargs, source)
        return _convert_higher_order(level, node, target.name(), args, source)
    if isinstance(target, torch()._ops.OpOverload):
        if isinstance(node.meta.get("val"), (*NUMBERS, torch().SymInt, torch().SymFloat, torch().SymBool)):
            return _known_number(level, node, source)
        if str(target) == MAX_POOL and all(user.target is operator.getitem and not user.args[1] for user in node.users):
            only = lower_to_nn(level, "aten.max_pool2d.default", node.name, args, kwargs, source)
            if only is not None:
                return [only, None]
        like = _read_results(node) if level.conversion.device else eager
        results = add_operator(level, target, node.name, args, kwargs, like, source)
        return _fill_empty_results(level, node, results, source) if isinstance(results, list) else results
    if all(isinstance(each, NUMBERS) for each in _flat_elements(args)):
        return target(*args, **kwargs)
    raise ModelError(f"{source}: {target} cannot be planned")


def _read_results(node: Any) -> Any:
    """Return the traced results, with None for unread results.

    An operator called through an `out` variant needs all results.
    """
    traced = node.meta.get("val")
    if (
        not isinstance(traced, list | tuple)
        or facts_by_name().get(str(node.target).removeprefix(PREFIX), OperatorFacts()).out
    ):
        return traced
    wanted = {user.args[1] for user in node.users if user.target is operator.getitem}
    return [each if i in wanted else None for i, each in enumerate(traced)]


def _fill_empty_results(level: ConversionLevel, node: Any, found: list[Any], source: str) -> list[Any]:
    """Add the empty tensors PyTorch returns for results omitted by a lowering, if some node reads the results."""
    wanted = {user.args[1] for user in node.users if user.target is operator.getitem}
    for i, fake in enumerate(node.meta["val"]):
        if found[i] is None and i in wanted and tuple(fake.shape) == (0,):
            (found[i],) = level.add_call(EMPTY, node.name, ([0],), {"dtype": fake.dtype}, [fake], source)
    return found


def _flat_elements(argument: Any) -> list[Any]:
    """Return the elements of nested lists."""
    if isinstance(argument, list | tuple):
        return [each for inner in argument for each in _flat_elements(inner)]
    return [argument]


def _known_number(level: ConversionLevel, node: Any, source: str) -> Any:
    """Return a number known from tracing. Raises ModelError for a number known only at run time."""
    number = node.meta["val"]
    return number if isinstance(number, NUMBERS) else fixed_number(number, level.conversion.extents, source)


def _call_with_effects(
    level: ConversionLevel, node: Any, args: Sequence[Any], kwargs: dict[str, Any], source: str
) -> Any:
    """Convert an operator with side effects: the results follow a token, which keeps the order of the calls."""
    token, target, *rest = args
    like = node.meta["val"][1 : 1 + len(target._schema.returns)]
    return [token, *add_operator(level, target, node.name, rest, kwargs, like, source)]


def _convert_higher_order(level: ConversionLevel, node: Any, name: str, args: Sequence[Any], source: str) -> Any:
    """Convert an operator running inner graphs. Raises ModelError for an unsupported operator."""
    if name in INLINE:
        (position,) = [i for i, each in enumerate(args) if isinstance(each, torch().nn.Module)]
        return convert_graph(level, args[position], args[position + 1 :])
    add: Callable[..., Any] | None = CONTROL_FLOW.get(name)
    if add is None:
        raise ModelError(
            f"{source}: the operator {name}, which runs graphs, cannot be planned; there are {', '.join(CONTROL_FLOW)}"
        )
    return add(level, node.name, args, source, convert_graph)
