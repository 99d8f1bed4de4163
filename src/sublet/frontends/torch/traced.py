"""A graph of FX, node by node: what each node stands for, and the calls that it makes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.control import CONTROL
from sublet.frontends.torch.conversion import Level
from sublet.frontends.torch.eager_tensors import EagerTensors
from sublet.frontends.torch.joined import add_joined, is_joined
from sublet.frontends.torch.operators import add_operator
from sublet.frontends.torch.tensors import Tensor, fixed, torch
from sublet.frontends.torch.twins import twin
from sublet.ops.aten import PREFIX
from sublet.ops.aten.dialect import Facts, facts

NUMBERS = (bool, int, float)
POOL = "aten.max_pool2d_with_indices.default"
"""Where nobody reads the indices, they are not made: each is as large as two numbers of the result."""
EMPTY = "aten.empty.memory_format"
EFFECTS = "with_effects"
INLINE = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap")


def convert_traced(level: Level, module: Any, given: Sequence[Any]) -> Any:
    """What the graph of a module gives for these arguments, in the order of its placeholders."""
    stands: dict[Any, Any] = {}
    eager = EagerTensors(level.conversion.extents, level.conversion.device)
    arguments = iter(given)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            stands[node] = next(arguments)
            if isinstance(stands[node], Tensor) and stands[node] in level.conversion.eager:
                eager.correct(node, level.conversion.eager[stands[node]])
        elif node.op == "get_attr":
            stands[node] = _attribute(level, module, node.target)
        elif node.op == "output":
            return _known(node.args[0], stands)
        elif node.op == "call_function":
            stands[node] = _called(level, node, stands, eager.of(node))
            level.conversion.note_eager(stands[node], eager.of(node), eager.is_corrected(node))
        else:
            raise ModelError(f"{where(node)}: {node.op} of {node.target!r}: give a program traced to ATen operators")
    raise ModelError(f"{level.conversion.where}: a graph without an output")


def placeholders(module: Any) -> list[Any]:
    """The nodes of a traced module that stand for its arguments, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def results_of(module: Any) -> Sequence[Any]:
    """What a traced module gives: nodes, and what is no tensor."""
    found: Sequence[Any] = next(node for node in module.graph.nodes if node.op == "output").args[0]
    return found


def where(node: Any) -> str:
    """The line of the user's program that a node comes from, or its name."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return f"node {node.name}"
    file, _, rest = lines[-1].removeprefix('File "').partition('"')
    number = rest.partition("line ")[2].partition(",")[0]
    return f"{file.rpartition('/')[2]}:{number}"


def _known(argument: Any, stands: Mapping[Any, Any]) -> Any:
    """An argument with what its nodes stand for."""
    if isinstance(argument, list | tuple):
        return [_known(inner, stands) for inner in argument]
    if isinstance(argument, dict):
        return {key: _known(inner, stands) for key, inner in argument.items()}
    return stands[argument] if isinstance(argument, torch().fx.Node) else argument


def _attribute(level: Level, module: Any, name: str) -> Any:
    """A tensor, which is a weight; a module or another thing that a graph holds, as it is."""
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, torch().Tensor):
        return found
    return level.conversion.constant(name, found)


def _called(level: Level, node: Any, stands: Mapping[Any, Any], eager: Any) -> Any:
    """Return what a node stands for, and append the calls that it makes; its results lie as the `eager` tensors do."""
    joining = not level.conversion.device
    if joining and is_joined(node):
        return None  # who reads it computes it
    args, kwargs = _known(node.args, stands), _known(dict(node.kwargs), stands)
    target, source = node.target, where(node)
    if joining and node.args and is_joined(node.args[0]):
        return add_joined(level, node, args[1], _known(node.args[0].args, stands), source)
    if target is operator.getitem:
        return args[0][args[1]]
    if isinstance(target, torch()._ops.HigherOrderOperator):
        if target.name() == EFFECTS:
            return _with_effects(level, node, args, kwargs, source)
        return _higher(level, node, target.name(), args, source)
    if isinstance(target, torch()._ops.OpOverload):
        if isinstance(node.meta.get("val"), (*NUMBERS, torch().SymInt, torch().SymFloat, torch().SymBool)):
            return _number(level, node, source)
        if str(target) == POOL and all(user.target is operator.getitem and not user.args[1] for user in node.users):
            only = twin(level, "aten.max_pool2d.default", node.name, args, kwargs, source)
            if only is not None:
                return [only, None]
        like = _that_are_read(node) if level.conversion.device else eager
        found = add_operator(level, target, node.name, args, kwargs, like, source)
        return _filled(level, node, found, source) if isinstance(found, list) else found
    if all(isinstance(each, NUMBERS) for each in _flat(args)):
        return target(*args, **kwargs)
    raise ModelError(f"{source}: {target} cannot be planned")


def _that_are_read(node: Any) -> Any:
    """What a node gives, None for results that nobody reads, unless PyTorch has to be told where all of them go."""
    found = node.meta.get("val")
    if not isinstance(found, list | tuple) or facts().get(str(node.target).removeprefix(PREFIX), Facts()).out:
        return found
    wanted = {user.args[1] for user in node.users if user.target is operator.getitem}
    return [each if i in wanted else None for i, each in enumerate(found)]


def _filled(level: Level, node: Any, found: list[Any], source: str) -> list[Any]:
    """Results that a twin leaves out and somebody reads: tensors of no elements, which PyTorch gives there."""
    wanted = {user.args[1] for user in node.users if user.target is operator.getitem}
    for i, fake in enumerate(node.meta["val"]):
        if found[i] is None and i in wanted and tuple(fake.shape) == (0,):
            (found[i],) = level.call(EMPTY, node.name, ([0],), {"dtype": fake.dtype}, [fake], source)
    return found


def _flat(argument: Any) -> list[Any]:
    if isinstance(argument, list | tuple):
        return [each for inner in argument for each in _flat(inner)]
    return [argument]


def _number(level: Level, node: Any, source: str) -> Any:
    """A number that tracing has found. Raises ModelError for one that only a run knows."""
    found = node.meta["val"]
    return found if isinstance(found, NUMBERS) else fixed(found, level.conversion.extents, source)


def _with_effects(level: Level, node: Any, args: Sequence[Any], kwargs: dict[str, Any], source: str) -> Any:
    """What an operator gives that does something besides, behind the token that stands for what was done before it:
    calls of such operators are kept, and stay in their order."""
    token, target, *rest = args
    like = node.meta["val"][1 : 1 + len(target._schema.returns)]
    return [token, *add_operator(level, target, node.name, rest, kwargs, like, source)]


def _higher(level: Level, node: Any, name: str, args: Sequence[Any], source: str) -> Any:
    """An operator that runs graphs."""
    if name in INLINE:
        (position,) = [i for i, each in enumerate(args) if isinstance(each, torch().nn.Module)]
        return convert_traced(level, args[position], args[position + 1 :])
    add: Callable[..., Any] | None = CONTROL.get(name)
    if add is None:
        raise ModelError(
            f"{source}: the operator {name}, which runs graphs, cannot be planned; there are {', '.join(CONTROL)}"
        )
    return add(level, node.name, args, source, convert_traced)
