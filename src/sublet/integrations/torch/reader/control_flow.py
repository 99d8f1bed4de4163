"""Conversion of `cond`, `while_loop`, `scan` and `map` to branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.tensor import TensorSpec
from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.conversion import COUNTER_SPEC, ConversionLevel
from sublet.integrations.torch.reader.traced_tensor import TracedTensor
from sublet.ir.graph import CaseOf, Graph, Value, While

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
