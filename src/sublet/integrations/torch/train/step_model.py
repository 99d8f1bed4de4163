"""A traced training step as a model over PyTorch's memory: gradients, gradient processing and optimizer updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sublet.base.errors import ModelError
from sublet.integrations.torch.compile.joint_partition import rematerialize_cheap
from sublet.integrations.torch.reader.conversion import ConversionLevel, TorchConversion
from sublet.integrations.torch.reader.exported_program import device_of, require_cpu, silence_tracing, torch_contents
from sublet.integrations.torch.reader.fx_conversion import convert_graph, graph_results, placeholders
from sublet.integrations.torch.reader.traced_tensor import TracedTensor, is_dense, torch
from sublet.integrations.torch.train.optimizers import Cohort, OptimizerRule
from sublet.integrations.torch.train.step_setting import named_tensors
from sublet.integrations.torch.train.step_tracing import GraphSignature
from sublet.ir.graph import Value
from sublet.ir.model import Model

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule, Node
    from torch.nn import Module
    from torch.optim import Optimizer

TensorLookup = Callable[[], "Tensor"]
"""Returns the current tensor of a weight; the tensor may change from step to step."""


@dataclass(frozen=True)
class GradientProcessing:
    """The processing of gradients between backward pass and update.

    clip_norm    the largest norm of all gradients together, and the kind of norm; None for no limit
    clip_value   the largest absolute value of an element; None for no limit
    scaled       True for gradients of a scaled loss: divide by the scale, and skip the update for an infinite gradient
    """

    clip_norm: tuple[float, float] | None = None
    clip_value: float | None = None
    scaled: bool = False

    def apply(self, gradients: Sequence[Tensor], inverse: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return the processed gradients, and a truth tensor: True if a gradient is not finite; None without a scale.

        The formulas are `GradScaler.unscale_`, `clip_grad_value_` and `clip_grad_norm_` of PyTorch 2.13.
        """
        t, processed = torch(), list(gradients)
        infinite = None
        if self.scaled:
            infinite = t.stack([t.logical_not(t.isfinite(each)).any() for each in processed]).any()
            processed = [
                (each.float() * inverse).to(each.dtype) if each.dtype == t.float16 else each * inverse
                for each in processed
            ]
        if self.clip_value is not None:
            processed = [each.clamp(-self.clip_value, self.clip_value) for each in processed]
        if self.clip_norm is not None:
            largest, kind = self.clip_norm
            norms = t.stack([t.linalg.vector_norm(each, kind) for each in processed])
            factor = (largest / (t.linalg.vector_norm(norms, kind) + 1e-6)).clamp(max=1.0)
            processed = [each * factor.to(each.dtype) for each in processed]
        return processed, infinite


@dataclass(frozen=True)
class StepModel:
    """A training step as a model.

    model     the program and its weights; the inputs are the arguments, then the numbers
    lookups   functions returning the current tensor of each weight, by name
    results   tensors without bytes, like the results of the trace: the loss first
    updated   the parameters updated by the optimizer
    """

    model: Model
    lookups: Mapping[str, TensorLookup]
    results: Sequence[Tensor]
    updated: Sequence[Tensor]


class StepWriter:
    """Builder of the model of one training step.

    accumulation  "first": write gradients to the parameters' `grad`; "more": add gradients to `grad`; "last": update
                  with the sum; "" without accumulation: update with the gradients
    """

    def __init__(
        self, judged: Module, optimizer: Optimizer, rule: OptimizerRule, gradients: GradientProcessing, accumulates: str
    ) -> None:
        self.network_with_loss, self.optimizer, self.rule = judged, optimizer, rule
        self.gradients, self.accumulation = gradients, accumulates
        self.conversion = TorchConversion(where="step")
        self.level: ConversionLevel = self.conversion.root_level()
        self.lookups: dict[str, TensorLookup] = {}

    def write(
        self, traced: tuple[GraphModule, GraphSignature], cohorts: Sequence[Cohort], members: Mapping[Tensor, int]
    ) -> StepModel:
        """Return the model of a traced step.

        Args:
            traced: forward and backward as one graph, and the signature of the graph.
            cohorts: groups of parameters with common numbers.
            members: the cohort position of each parameter.

        Raises:
            ModelError: for tensors outside of the CPU, weights without dense layout, trained parameters missing in the
                optimizer, and operators impossible to plan.
        """
        graph, signature = traced
        require_cpu(device_of(graph), "train_step")
        level = self.level
        named = named_tensors(self.network_with_loss)
        outputs_of = signature.backward_signature.gradients_to_parameters
        gradients_of = _sum_tied_gradients(graph, {out: named[name] for out, name in outputs_of.items()})
        traced_results = list(graph_results(graph))
        names = [getattr(node, "name", None) for node in traced_results]
        rematerialize_cheap(graph, len(signature.user_outputs) + len(signature.buffers_to_mutate))  # replaces nodes
        homes: dict[str, TracedTensor] = {}
        stands, inputs = [], []
        for node in placeholders(graph):
            name = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}.get(node.name)
            if name is None:
                stands.append(self.conversion.new_tensor(node.name, node.meta["val"]))
                inputs.append(stands[-1].value)
                continue
            same = next((other for other in homes if named[other] is named[name]), None)
            stands.append(
                homes[same]
                if same
                else self.add_weight(name, named[name].detach(), _parameter_lookup(self.network_with_loss, name))
            )
            homes[name] = stands[-1]
        results = convert_graph(level, graph, stands)
        by_name = dict(zip(names, results, strict=True))
        updates = [
            (homes[buffer].value, level.with_layout_of(by_name[name], homes[buffer]).value)
            for name, buffer in signature.buffers_to_mutate.items()
        ]
        gradients = {parameter: by_name[out] for out, parameter in gradients_of.items()}
        homes_of = {named[name]: home for name, home in homes.items()}
        returned = signature.user_outputs[1 if self.gradients.scaled else 0 :]  # the caller gets the unscaled loss
        outputs = [level.as_row_major(by_name[name]).value for name in returned]
        if self.accumulation in ("first", "more"):
            numbers: list[TracedTensor] = []
            for parameter, gradient in gradients.items():
                updates.append(self._accumulate_gradient(parameter, gradient))
        else:
            numbers, more, infinite = self._optimizer_updates(gradients, homes_of, cohorts, members)
            updates += more
            outputs += [infinite] if infinite is not None else []
        inputs += [each.value for each in numbers]
        program = level.program_graph(inputs, outputs, updates)
        output_names = ("loss", *(f"result.{i}" for i in range(1, len(outputs))))
        contents = torch_contents(self.conversion.weights)
        model = Model(program, weights=contents, inputs=tuple(value.name for value in inputs), outputs=output_names)
        like = [traced_results[names.index(name)].meta["val"] for name in returned]
        return StepModel(model, self.lookups, like, list(gradients))

    def add_weight(self, name: str, tensor: Tensor, find: TensorLookup) -> TracedTensor:
        """Add a weight over a PyTorch tensor. Raises ModelError for a tensor without dense layout."""
        if not is_dense(tensor):
            raise ModelError(f"{name} does not lie in a row, so it cannot be used where it is: make it contiguous")
        weight = self.conversion.add_weight(name, tensor)
        self.lookups[weight.value.name] = find
        return weight

    def _accumulate_gradient(self, parameter: Tensor, gradient: TracedTensor) -> tuple[Value, Value]:
        """Return the value of a parameter's `grad`, and the value with the new content."""
        home = self._stored_gradient(parameter)
        total = self._add_stored(parameter, gradient, home) if self.accumulation == "more" else gradient
        return home.value, self.level.with_layout_of(total, home).value

    def _stored_gradient(self, parameter: Tensor) -> TracedTensor:
        """Add the `grad` of a parameter as a weight."""

        def find() -> Tensor:
            assert parameter.grad is not None
            return parameter.grad

        return self.add_weight("gradient", find(), find)

    def _add_stored(self, parameter: Tensor, gradient: TracedTensor, stored: TracedTensor) -> TracedTensor:
        """Return the sum of a gradient and the stored gradient of a parameter."""
        like = torch().empty_like(parameter, device="meta")
        graph = _trace_function(lambda first, second: [first + second], like, like.clone())
        total: TracedTensor = convert_graph(self.level, graph, [gradient, stored])[0]
        return total

    def _optimizer_updates(
        self,
        gradients: Mapping[Tensor, TracedTensor],
        homes: Mapping[Tensor, TracedTensor],
        cohorts: Sequence[Cohort],
        members: Mapping[Tensor, int],
    ) -> tuple[list[TracedTensor], list[tuple[Value, Value]], Value | None]:
        """Return the numbers used as inputs, the updates, and a truth value: True if a gradient is not finite."""
        t, level = torch(), self.level
        missing = len(gradients.keys() - members.keys())
        if missing:
            raise ModelError(f"{missing} parameters that require gradients are not the optimizer's")
        totals = [
            self._add_stored(parameter, gradient, self._stored_gradient(parameter)) if self.accumulation else gradient
            for parameter, gradient in gradients.items()
        ]
        numbers: list[TracedTensor] = []
        inverse: list[TracedTensor] = []
        if self.gradients.scaled:
            inverse = [self.conversion.new_tensor("inverse_scale", t.empty((), device="cpu"))]
            numbers += inverse
        own: list[list[TracedTensor]] = []
        for i, cohort in enumerate(cohorts):
            values = list(cohort.step_number_tensors(self.optimizer, self.rule))
            own.append([self.conversion.new_tensor(f"number.{i}.{j}", each) for j, each in enumerate(values)])
            numbers += own[-1]
        infinite: TracedTensor | None = None
        if self.gradients != GradientProcessing():
            like = [t.empty_like(parameter, device="meta") for parameter in gradients]
            scale = [t.empty((), device="meta")] * len(inverse)

            def prepare(*given: Tensor) -> list[Tensor]:
                changed, bad = self.gradients.apply(given[: len(like)], given[-1])
                return [*changed, *([] if bad is None else [bad])]

            totals = convert_graph(level, _trace_function(prepare, *like, *scale), [*totals, *inverse])
            infinite = totals.pop() if self.gradients.scaled else None
        updates: list[tuple[Value, Value]] = []
        for parameter, total in zip(gradients, totals, strict=True):
            position = members[parameter]
            updates += self._update_parameter(
                parameter, homes[parameter], total, cohorts[position], own[position], infinite
            )
        return numbers, updates, None if infinite is None else level.as_row_major(infinite).value

    def _update_parameter(
        self,
        parameter: Tensor,
        home: TracedTensor,
        gradient: TracedTensor,
        cohort: Cohort,
        numbers: Sequence[TracedTensor],
        infinite: TracedTensor | None,
    ) -> list[tuple[Value, Value]]:
        """Return the updates of a parameter and its state; the old contents if `infinite` is True at run time."""
        t = torch()
        group = self.optimizer.param_groups[cohort.group]
        state = self.rule.ensure_state(self.optimizer, group, parameter)
        homes = [home]
        for key, tensor in state.items():
            find = _state_lookup(self.optimizer, parameter, key)
            homes.append(self.add_weight(f"{home.value.name}.{key}", tensor, find))
        like = [t.empty_like(each, device="meta") for each in (parameter, parameter, *state.values())]
        given = [t.empty((), dtype=t.float64 if cohort.double else t.float32, device="meta") for _ in numbers]
        traced = self.rule.trace_update(group, like, given, cohort.first)
        news = convert_graph(self.level, traced, [home, gradient, *homes[1:], *numbers])
        if infinite is not None:
            keep = _trace_function(
                lambda bad, *both: [t.where(bad, old, new) for old, new in zip(both[::2], both[1::2], strict=True)],
                t.empty((), dtype=t.bool, device="meta"),
                *(t.empty_like(each, device="meta") for each in (parameter, *state.values()) for _ in range(2)),
            )
            news = convert_graph(
                self.level, keep, [infinite, *(each for pair in zip(homes, news, strict=True) for each in pair)]
            )
        return [(old.value, self.level.with_layout_of(new, old).value) for old, new in zip(homes, news, strict=True)]


def _sum_tied_gradients(graph: GraphModule, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add up the gradients of each tied parameter in a traced graph, in the order of the graph, as autograd does.

    `gradients` has the parameter of each output with a gradient. Returns the parameter by the output with the sum.
    """
    t, fx_graph = torch(), graph.graph
    outputs, results = fx_graph.output_node(), cast("Sequence[Node | None]", graph_results(graph))
    position = {node: i for i, node in enumerate(fx_graph.nodes)}
    of_parameter: dict[Tensor, list[Node]] = {}
    for node in results:
        if node is not None and node.name in gradients:
            of_parameter.setdefault(gradients[node.name], []).append(node)
    sums: dict[str, Tensor] = {}
    whole: dict[Node | None, Node] = {}  # the sum, by the first of the added gradients
    added: set[Node | None] = set()
    for parameter, several in of_parameter.items():
        total, *others = sorted(several, key=position.__getitem__)
        for each in others:
            with fx_graph.inserting_after(each):
                terms = (total, each)
                total = fx_graph.call_function(t.ops.aten.add.Tensor, terms)
            total.meta["val"] = _like_sum(*(term.meta["val"] for term in terms))
        whole[several[0]] = total
        added.update(each for each in several if each is not several[0])
        sums[total.name] = parameter
    outputs.args = (tuple(whole.get(node, node) for node in results if node not in added),)
    graph.recompile()
    return sums


def _like_sum(first: Tensor, second: Tensor) -> Tensor:
    """Return a tensor without bytes, with the layout of a sum of two such tensors, like `first` otherwise."""
    t, both = torch(), (first, second)
    total = t.add(*(t.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta") for each in both))
    return first.new_empty_strided(total.shape, total.stride(), dtype=total.dtype)


def _trace_function(function: Callable[..., list[Tensor]], *like: Tensor) -> GraphModule:
    """Return the traced graph of a function of tensors."""
    t = torch()
    with silence_tracing(), t.no_grad():
        traced: GraphModule = t.fx.experimental.proxy_tensor.make_fx(function)(*like)
    return traced


def _parameter_lookup(judged: Module, name: str) -> TensorLookup:
    """Return a lookup of a parameter or buffer by name; the module may hold another tensor at each step."""
    path, _, last = name.rpartition(".")
    return lambda: getattr(judged.get_submodule(path), last).detach()


def _state_lookup(optimizer: Optimizer, parameter: Tensor, key: str) -> TensorLookup:
    """Return a lookup of one tensor of a parameter's optimizer state."""
    return lambda: optimizer.state[parameter][key]
