"""Conversion of an FX graph, node by node, to nodes of a model."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import TensorSpec
from sublet.integrations.torch.dialect import PREFIX, StridedLayout
from sublet.integrations.torch.operator_facts import OperatorFacts, facts_by_name
from sublet.integrations.torch.reader.conversion import COUNTER_SPEC, ConversionLevel
from sublet.integrations.torch.reader.kernel_probes import PROBED_OPERATORS, probe_results
from sublet.integrations.torch.reader.lower_to_nn import lower_to_nn
from sublet.integrations.torch.reader.operators import ROWS_LOSS, add_fused, add_operator, is_fused_with_reader
from sublet.integrations.torch.reader.traced_tensor import Extents, TracedTensor, fixed_number, layout_of, torch
from sublet.integrations.torch.reader.tracing_rules import as_default_overload
from sublet.ir.graph import CaseOf, Graph, Value, While

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

FxArgument = Any
"""An argument of an FX node: a node, a number, a text, None, or tuples and lists of arguments.

PyTorch's own type is a union without common attributes. The operator fixes the kind of each argument, and no type says
which.
"""

ConvertedValue = Any
"""A converted argument or result: a traced tensor, a number, None, another object, or tuples and lists of these."""

# Conversion of `cond`, `while_loop`, `scan` and `map` to branches and loops.

ModuleConverter = Callable[[ConversionLevel, Any, Sequence[Any]], Any]
"""(level, module, arguments) -> the results; adds the nodes of the module's graph to the level."""


def _result_tensors(given: Any, name: str, source: str) -> list[TracedTensor]:
    """Return the results of a graph as a list. Raises ModelError for numbers: control flow carries only tensors."""
    tensors = list(given) if isinstance(given, list | tuple) else [given]
    for each in tensors:
        if not isinstance(each, TracedTensor):
            raise ModelError(f"{source}: {name} is given, or gives, {each!r}, which is no tensor")
    return tensors


def _fresh_tensor(level: ConversionLevel, hint: str, spec: TensorSpec) -> TracedTensor:
    """Return a row-major tensor over a new value."""
    return TracedTensor(Value(level.conversion.names.fresh(hint), spec), StridedLayout.contiguous(spec.shape))


def _row_major_results(level: ConversionLevel, given: Any, name: str, source: str) -> list[TracedTensor]:
    """Return row-major tensors with the elements of the results of a graph."""
    return [level.as_row_major(each, source) for each in _result_tensors(given, name, source)]


def add_cond(
    level: ConversionLevel, name: str, args: Sequence[Any], source: str, convert: ModuleConverter
) -> list[TracedTensor]:
    """Convert `cond(index, then, otherwise, operands)`; a known index selects the graph at once."""
    index, then, otherwise, operands = args
    if isinstance(index, bool):
        return _result_tensors(convert(level, then if index else otherwise, operands), name, source)
    (index,) = _row_major_results(level, index, name, source)
    arms: list[Graph] = []
    for arm, module in (("else", otherwise), ("then", then)):
        inner = level.for_subgraph()
        outputs = _row_major_results(inner, convert(inner, module, operands), name, source)
        arms.append(inner.inner_graph(f"{name}.{arm}", (), [each.value for each in outputs]))
    results = [_fresh_tensor(level, f"{name}.{i}", spec) for i, spec in enumerate(_branch_specs(arms, name, source))]
    values = tuple(each.value for each in results)
    fresh = level.conversion.names.fresh(name)
    level.emitter.nodes.append(CaseOf(fresh, "case", (index.value,), values, {}, source, arms=tuple(arms)))
    return results


def _branch_specs(arms: Sequence[Graph], name: str, source: str) -> list[TensorSpec]:
    """Return the common specs of the branches' results. Raises ModelError for different types or shapes."""
    specs = [[value.spec for value in arm.outputs] for arm in arms]
    if any(other != specs[0] for other in specs):
        raise ModelError(f"{source}: the branches of {name} give tensors of other types or shapes")
    return [spec for spec in specs[0] if isinstance(spec, TensorSpec)]


def add_while(
    level: ConversionLevel, name: str, args: Sequence[Any], source: str, convert: ModuleConverter
) -> list[TracedTensor]:
    """Convert `while_loop(check, body, carried, additional)`."""
    check, body, carried, additional = args
    inits = _row_major_results(level, carried, name, source)
    inner = level.for_subgraph()
    counter = _fresh_tensor(level, f"{name}.round", COUNTER_SPEC)
    parameters = [_fresh_tensor(level, f"{name}.carried.{i}", each.spec) for i, each in enumerate(inits)]
    (condition,) = _row_major_results(inner, convert(inner, check, [*parameters, *additional]), name, source)
    checked = len(inner.emitter.nodes)
    updates = _row_major_results(inner, convert(inner, body, [*parameters, *additional]), name, source)
    return _add_loop(
        level, inner, name, source, counter, inits, parameters, updates, condition=condition, check=checked
    )


def add_scan(
    level: ConversionLevel, name: str, args: Sequence[Any], source: str, convert: ModuleConverter
) -> list[TracedTensor]:
    """Convert `scan(combine, init, xs, additional)` to a loop over the slices along the first axis."""
    combine, init, xs, additional = args
    inits, sequences = _row_major_results(level, init, name, source), _row_major_results(level, xs, name, source)
    trips = sequences[0].spec.shape[0]
    inner = level.for_subgraph()
    counter = _fresh_tensor(level, f"{name}.round", COUNTER_SPEC)
    parameters = [_fresh_tensor(level, f"{name}.carried.{i}", each.spec) for i, each in enumerate(inits)]
    slices = [
        _fresh_tensor(level, f"{name}.slice.{i}", TensorSpec(each.spec.dtype, each.spec.shape[1:]))
        for i, each in enumerate(sequences)
    ]
    limit = level.conversion.literals.constant_of((trips,), COUNTER_SPEC)
    condition = inner.emitter("nn.less", counter.value, limit)
    checked = len(inner.emitter.nodes)
    given = _row_major_results(inner, convert(inner, combine, [*parameters, *slices, *additional]), name, source)
    return _add_loop(
        level, inner, name, source, counter, [*inits, *sequences], [*parameters, *slices], given,
        condition=TracedTensor(condition, StridedLayout.contiguous(())), check=checked, carried=len(inits), trips=trips,
    )  # fmt: skip


def add_map(
    level: ConversionLevel, name: str, args: Sequence[Any], source: str, convert: ModuleConverter
) -> list[TracedTensor]:
    """Convert `map_impl(body, xs, additional)`, a scan without loop-carried values."""
    body, xs, additional = args
    return add_scan(level, name, (body, [], xs, additional), source, convert)


def _add_loop(
    level: ConversionLevel,
    inner: ConversionLevel,
    name: str,
    source: str,
    counter: TracedTensor,
    inputs: Sequence[TracedTensor],
    parameters: Sequence[TracedTensor],
    given: Sequence[TracedTensor],
    *,
    condition: TracedTensor,
    check: int,
    carried: int | None = None,
    trips: int = 0,
) -> list[TracedTensor]:
    """Append a loop, and return its final and stacked results. The first `carried` inputs are carried, the rest are
    sliced.

    Raises ModelError if a loop-carried value changes type or shape.
    """
    carried = len(inputs) if carried is None else carried
    for parameter, update in zip(parameters[:carried], given, strict=False):
        if parameter.spec != update.spec:
            raise ModelError(f"{source}: {name} carries {parameter.spec}, and its body gives {update.spec}")
    finals = [_fresh_tensor(level, f"{name}.{i}", each.spec) for i, each in enumerate(inputs[:carried])]
    stacked = [
        _fresh_tensor(level, f"{name}.{carried + i}", TensorSpec(row.spec.dtype, (trips, *row.spec.shape)))
        for i, row in enumerate(given[carried:])
    ]
    sequences, rows = len(inputs) - carried, len(stacked)
    body = inner.inner_graph(
        f"{name}.body", [counter.value, *(each.value for each in parameters)], [each.value for each in given]
    )
    level.emitter.nodes.append(
        While(
            level.conversion.names.fresh(name), "while", tuple(each.value for each in inputs),
            tuple(each.value for each in (*finals, *stacked)), {}, source,
            body=body, condition=condition.value, check=check, carried=carried,
            slice_axes=(0,) * sequences, slice_reversed=(False,) * sequences,
            row_axes=(0,) * rows, row_reversed=(False,) * rows,
        )
    )  # fmt: skip
    return [*finals, *stacked]


CONTROL_FLOW: Mapping[
    str, Callable[[ConversionLevel, str, Sequence[Any], str, ModuleConverter], list[TracedTensor]]
] = {
    "cond": add_cond,
    "while_loop": add_while,
    "scan": add_scan,
    "map_impl": add_map,
}
"""Conversions of operators running inner graphs, by PyTorch's names."""


# Tensors as returned by PyTorch's eager kernels, for operators traced with another type or other strides.
#
# AOTAutograd and `torch.export` run a program on fake tensors. For the operators of `probes.PROBED_OPERATORS`, the CPU
# kernel returns another type or layout than the trace. Example: LayerNorm in bf16 with f32 parameters keeps f32
# statistics, but the trace has bf16. `EagerTensors` uses the kernel's result, and derives all dependent tensors again.


class EagerTensors:
    """The eager tensors of one traced graph, by node.

    Args:
        extents: extents of the graph's symbols.
        device: the device of the program; "" for the CPU. Only CPU kernels are probed.
    """

    def __init__(self, extents: Extents, device: str = "") -> None:
        self._extents, self._device = extents, device
        self._corrected: dict[Any, Any] = {}
        self._mode: Any = None

    def set_eager(self, node: Any, tensors: Any) -> None:
        """Replace the traced tensors of a node."""
        self._corrected[node] = tensors

    def is_corrected(self, node: Any) -> bool:
        """True if the eager tensors of a node differ from the traced tensors."""
        return node in self._corrected

    def tensors_of(self, node: Any) -> Any:
        """Return tensors like the eager results of a node: the traced tensors, unless the kernels differ."""
        traced = node.meta.get("val")
        if node in self._corrected:
            return self._corrected[node]
        depends = any(each in self._corrected for each in node.all_input_nodes)
        if self._device or not _is_strided(traced) or not (depends or str(node.target) in PROBED_OPERATORS):
            return traced
        if node.target is operator.getitem:
            eager = self._corrected[node.args[0]][node.args[1]]
        elif isinstance(node.target, torch()._ops.OpOverload):
            eager = self._run_operator(node, traced)
        else:
            return traced
        if self._types_and_layouts(eager) == self._types_and_layouts(traced):
            return traced
        self.set_eager(node, eager)
        return eager

    def _run_operator(self, node: Any, traced: Any) -> Any:
        """Return an operator's results for the eager arguments; the traced tensors if the operator raises.

        An operator raising here will raise again in the run of the program, so the error is not lost.
        """
        pytree, t = require("torch.utils._pytree", extra="torch"), torch()
        given = pytree.tree_map_only(t.fx.Node, self._eager_argument, (tuple(node.args), dict(node.kwargs)))
        try:
            if str(node.target) in PROBED_OPERATORS:
                args, kwargs = self._on_device(given, "meta")
                return probe_results(node.target, args, kwargs, self._on_device(traced, "meta"))
            if self._mode is None:
                self._mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode()
            with self._mode:
                args, kwargs = self._on_device(given, "cpu")
                return node.target(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return traced

    def _eager_argument(self, node: Any) -> Any:
        """Return the eager tensor of an argument node, with symbols replaced by extents."""
        eager = self.tensors_of(node)
        numbers = (torch().SymInt, torch().SymFloat, torch().SymBool)
        return fixed_number(eager, self._extents, node.name) if isinstance(eager, numbers) else eager

    def _on_device(self, given: Any, device: str) -> Any:
        """Return the same structure with new tensors on a device, in the layouts of the given tensors."""
        pytree, t = require("torch.utils._pytree", extra="torch"), torch()

        def empty_like(each: Any) -> Any:
            layout = layout_of(each, self._extents, "")
            return t.empty_strided(layout.size, layout.stride, dtype=each.dtype, device=device)

        return pytree.tree_map_only(t.Tensor, empty_like, given)

    def _types_and_layouts(self, tensors: Any) -> list[Any]:
        """Return the types and layouts of an operator's results, for comparison."""
        each = tensors if isinstance(tensors, list | tuple) else (tensors,)
        return [None if one is None else (one.dtype, layout_of(one, self._extents, "").canonical) for one in each]


def _is_strided(traced: Any) -> bool:
    """True for a strided tensor, and for a sequence of strided tensors and None."""
    each = traced if isinstance(traced, list | tuple) else (traced,)
    strided = torch().strided
    return all(one is None or (hasattr(one, "stride") and one.layout == strided) for one in each)


NUMBERS = (bool, int, float)
MAX_POOL = "aten.max_pool2d_with_indices.default"
"""Max pooling with indices. Unread indices are not computed: an index is as large as two f32 results."""
EMPTY = "aten.empty.memory_format"
EFFECTS = "with_effects"
ROOT_MODULE = re.compile(r"^L\['\w+'\]\.?")
"""Dynamo's name of the compiled module, before the path of a module inside."""

OWN_FOLDER = str(Path(__file__).parents[3])
"""The folder of this package, whose lines are not of the user's program."""

INLINE = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap")


def convert_graph(level: ConversionLevel, module: GraphModule, given: Sequence[ConvertedValue]) -> ConvertedValue:
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


def placeholders(module: GraphModule) -> list[Node]:
    """Return the argument nodes of a traced module, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def graph_results(module: GraphModule) -> Sequence[FxArgument]:
    """Return the results of a traced module: nodes, and plain values."""
    results: Sequence[FxArgument] = next(node for node in module.graph.nodes if node.op == "output").args[0]
    return results


def source_line(node: Node) -> str:
    """Return module path and "file:line" of the user's program for a node, as far as traced; else the node's name.

    A node of the backward pass has the path of the module in the forward pass.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next((ROOT_MODULE.sub("", path) for path, _ in reversed(stack.values())), "")
    trace = node.meta.get("stack_trace") or ""
    lines = [each for line in trace.splitlines() if (each := line.strip()).startswith('File "') and each[6] != "<"]
    lines = [each for each in lines if not each.startswith(f'File "{OWN_FOLDER}')]
    if not lines:
        return path or f"node {node.name}"
    file, _, rest = lines[-1].removeprefix('File "').partition('"')
    number = rest.partition("line ")[2].partition(",")[0]
    return ", ".join(filter(None, (path, f"{file.rpartition('/')[2]}:{number}")))


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
    if joining and is_fused_with_reader(node):
        return None  # the only reader computes the fused operator
    args, kwargs = _resolve(node.args, stands), _resolve(dict(node.kwargs), stands)
    target, source = node.target, source_line(node)
    fused = next(filter(is_fused_with_reader, node.args), None) if joining else None
    if fused is not None:
        other = args[1 - node.args.index(fused)]
        return add_fused(level, node, str(fused.target), other, _resolve(fused.args, stands), source)
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
        target, args = as_default_overload(target, args, kwargs)
        like = _read_results(node) if level.conversion.device or str(target) == ROWS_LOSS else eager
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
