"""Whole training steps of PyTorch: forward, loss, backward and optimizer update as one plan in one arena.

Parameters, buffers and optimizer state are read and updated in place, so `state_dict` of module and optimizer stays
current.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.arrays import Array, torch_over
from sublet.base.errors import ModelError
from sublet.integrations.torch.compile.loss_rows import LOSSES
from sublet.integrations.torch.reader.exported_program import TorchContent, preserve_attributes, require_cpu
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.train.optimizers import Cohort, cohorts_of, rule_of
from sublet.integrations.torch.train.step_model import GradientProcessing, StepModel, StepWriter
from sublet.integrations.torch.train.step_setting import (
    changed_names,
    named_tensors,
    require_plain,
    setting_of,
    tensor_setting,
    unchanged_attributes,
)
from sublet.integrations.torch.train.step_tracing import (
    GraphSignature,
    Loss,
    LossResults,
    Pytree,
    StepArguments,
    module_with_loss,
    register_plain_tensors,
    trace_context,
    trace_step,
)
from sublet.integrations.torch.train.traced_losses import merge_traced_losses
from sublet.ir.model import Model
from sublet.plan import MemoryPlan
from sublet.planning.budget.result import parse_budget
from sublet.runtime.executable import Executable
from sublet.training.step import finish_step

if TYPE_CHECKING:
    from torch import Tensor
    from torch.amp import GradScaler
    from torch.fx import GraphModule
    from torch.nn import Module
    from torch.optim import Optimizer

BACKENDS = ("torch", "numpy", "reference")
MAX_PLANNED_STEPS = 16
"""Maximum plans kept by a step, each with an arena. The plan unused for longest is dropped first."""
PLANS_BEFORE_WARNING = 4
"""Plans of a step before a warning that an attribute of a module asks for one more."""


def train_step(
    module: Module,
    loss: Loss,
    optimizer: Optimizer,
    options: Options | None = None,
    *,
    clip_norm: float | tuple[float, float] | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    scaler: GradScaler | None = None,
    budget: int | str | None = None,
    losses: str = LOSSES[0],
) -> TrainStep:
    """Return a callable training step: forward, loss, backward and update as one program in one planned arena.

    `step(x, *targets, **keywords)` has the effect of the eager loop below, and returns the result of `loss`, detached:

        optimizer.zero_grad()
        result = loss(module(x, **keywords), *targets)    # pass several arguments of the module as a tuple
        (the first tensor of result).backward()
        optimizer.step()

    The only difference: after the step no parameter has a `grad`.

    A step either computes the result of the eager loop, or raises before any change. The first call plans the step. A
    call with another setting plans again: shapes, plain arguments, training or evaluation, `requires_grad`, optimizer
    options other than numbers, attributes of modules, autocast. The Python code of `module` and `loss` runs only while
    a step is planned; docs/torch.md lists the state that the code may read and change.

    Args:
        module: a module on the CPU; the optimizer must hold every parameter requiring a gradient.
        loss: a function or a module; returns a tensor without axes, or a container with a tensor without axes as
            first leaf.
        optimizer: torch.optim.SGD, Adam or AdamW, no derived class. Numbers among the options may change at each step.
        options: planning options of the steps.
        clip_norm: the largest norm of all gradients together, or a pair of the norm and the kind of norm, as for
            `clip_grad_norm_`; not with `clip_value`.
        clip_value: the largest absolute value of a gradient element, as for `clip_grad_value_`; not with `clip_norm`.
        accumulate: number of calls with gradients added up before each update of the optimizer, at least 1.
        scaler: a torch.amp.GradScaler for the CPU. The step scales the loss, skips the update if a gradient is not
            finite, and updates the scaler.
        budget: the maximum bytes of the arena, a number or a text such as "400MiB". The planner rematerializes values
            to stay within the budget (docs/budget.md). Parameters, optimizer state and arguments lie outside of the
            arena, and so does memory that a library takes inside a call.
        losses: "auto" or "rows" computes a large cross entropy over a vocabulary in groups of rows; "whole" at once
            (docs/torch.md).

    Returns:
        A `TrainStep`; calling the step trains once.

    Raises:
        ModelError: for a module, an optimizer or an option impossible to plan; also raised by calls.
        CapacityError: at the first call, for a budget below the lower bound, or without a known plan within the budget.
    """
    norm = clip_norm if clip_norm is None or isinstance(clip_norm, tuple) else (float(clip_norm), 2.0)
    if accumulate < 1:
        raise ModelError(f"accumulate={accumulate}: expected a number of calls from 1 on")
    if norm is not None and clip_value is not None:
        raise ModelError("clip_norm and clip_value: give one of the two")
    if losses not in LOSSES:
        raise ModelError(f"losses={losses!r}: there are {', '.join(map(repr, LOSSES))}")
    scaled = scaler is not None and scaler.is_enabled()
    if scaled and any(group.get("fused") for group in optimizer.param_groups):
        raise ModelError("fused=True with a scaler: PyTorch's fused kernels make state at a step that they skip")
    gradients = GradientProcessing(norm, clip_value, scaled)
    limit, merges = None if budget is None else parse_budget(budget), losses != "whole"
    return TrainStep(module, loss, optimizer, options or Options(), gradients, accumulate, scaler, limit, merges)


def model_of_step(
    module: Module,
    loss: Loss,
    optimizer: Optimizer,
    arguments: tuple[Pytree, ...],
    targets: Sequence[Pytree],
    budget: int | None = None,
) -> Model:
    """Return the program of a step of `train_step` without planning the step. Nothing runs, so tensors may be fake.

    Raises ModelError as `train_step` and its first call do.
    """
    return train_step(module, loss, optimizer, budget=budget).model_for(StepArguments(arguments, targets, {}))


@dataclass
class _BoundStep:
    """A planned step for one setting.

    executable  the program of the step
    step        the model of the step
    results     the traced result of the loss
    addresses   the address of each bound weight by name
    """

    executable: Executable
    step: StepModel
    results: LossResults
    addresses: dict[str, int]

    def bind_weights(self) -> None:
        """Bind each weight with a new address since the last step."""
        for name, find in self.step.lookups.items():
            tensor = find()
            if tensor.data_ptr() != self.addresses.get(name):
                self.executable.bind(name, self._weight_content(name, tensor))
                self.addresses[name] = tensor.data_ptr()

    def _weight_content(self, name: str, tensor: Tensor) -> Array:
        """Return the tensor as content of the weight `name`."""
        (value,) = (each for each in self.executable.graph.weights if each.name == name)
        return TorchContent(tensor, value.spec.shape).array()  # type: ignore[union-attr]


class TrainStep:
    """A callable training step, returned by `train_step`.

    plan  the plan of the latest step; None before the first step
    """

    def __init__(
        self,
        module: Module,
        loss: Loss,
        optimizer: Optimizer,
        options: Options,
        gradients: GradientProcessing,
        accumulate: int,
        scaler: GradScaler | None,
        budget: int | None,
        merges_losses: bool,
    ) -> None:
        self._network_with_loss, self._loss = module_with_loss(module, loss), loss
        self._optimizer, self._rule = optimizer, rule_of(optimizer)
        self._options, self._gradients, self._budget, self._merges_losses = options, gradients, budget, merges_losses
        self._accumulate, self._scaler, self._calls = accumulate, scaler, 0
        self._spare_gradients: dict[Tensor, Tensor] = {}
        self._steps: OrderedDict[tuple[Any, ...], _BoundStep] = OrderedDict()
        self.plan: MemoryPlan | None = None

    def __call__(self, inputs: Pytree, *targets: Pytree, **keywords: Pytree) -> Pytree:
        """Train one step, and return the result of the loss, detached.

        Args:
            inputs: the argument of the module; a tuple for several arguments.
            targets: further arguments of the loss.
            keywords: keyword arguments of the module.

        Raises:
            SubletError: before any change, for a step impossible to plan.
        """
        self._rule.require_known(self._optimizer)
        require_plain(self._network_with_loss, self._optimizer)
        arguments = StepArguments(inputs, targets, keywords)
        cohorts, members = cohorts_of(self._optimizer, self._rule)
        fresh = [each for each in members if not self._optimizer.state.get(each)]
        bound = self._bound_step(arguments, cohorts, members)
        self.plan = bound.executable.plan
        numbers = [each for cohort in cohorts for each in cohort.step_number_tensors(self._optimizer, self._rule)]
        given = [*arguments.tensors, *self._scales(), *(numbers if self._is_last else ())]
        places = (bound.executable.inputs[name].spec.shape for name in bound.step.model.inputs)  # type: ignore[union-attr]
        contents = (TorchContent(each, shape).array() for each, shape in zip(given, places, strict=True))
        results = list(bound.executable(dict(zip(bound.step.model.inputs, contents, strict=True))).values())
        infinite = bool(results.pop()) if self._gradients.scaled and self._is_last else False
        self._finish_step(bound, infinite)
        for parameter in fresh if infinite else ():  # the eager loop creates no state at a skipped step
            self._optimizer.state.pop(parameter, None)
        return bound.results.restore_structure(
            [_copy_in_eager_layout(*each) for each in zip(bound.step.results, results, strict=True)]
        )

    @property
    def _is_last(self) -> bool:
        """True if the optimizer updates the parameters in this call."""
        return self._calls % self._accumulate == self._accumulate - 1

    @property
    def _accumulation_phase(self) -> str:
        """The phase of gradient accumulation: "first", "more" or "last"; "" without accumulation."""
        if self._accumulate == 1:
            return ""
        return "last" if self._is_last else "more" if self._calls % self._accumulate else "first"

    def _scales(self) -> list[Tensor]:
        """Return the loss scale and, at the optimizer's update, the inverse scale; an empty list without a scaler."""
        if self._scaler is None or not self._gradients.scaled:
            return []
        self._scaler.scale(torch().zeros((), device="cpu"))  # creates the scale if missing
        scale = float(self._scaler.get_scale())
        return [torch().tensor(each, device="cpu") for each in ((scale, 1.0 / scale) if self._is_last else (scale,))]

    def _bound_step(
        self, arguments: StepArguments, cohorts: Sequence[Cohort], members: dict[Tensor, int]
    ) -> _BoundStep:
        """Return the program for the current setting, bound to the current tensors; plan a new setting first."""
        groups = self._optimizer.param_groups
        layouts = tuple(
            self._rule.state_layouts(self._optimizer, group, parameter, self._accumulation_phase in ("more", "last"))
            for group in groups
            for parameter in group["params"]
            if parameter in members
        )
        attributes, others = setting_of(self._network_with_loss, self._loss, groups)
        key = (
            attributes,
            others,
            layouts,
            tuple(map(tensor_setting, arguments.tensors)),
            arguments.setting,
            tuple(map(self._rule.group_setting, groups)),
            tuple((cohort.group, cohort.first, cohort.double) for cohort in cohorts),
            tuple(members.values()),
            self._accumulation_phase,
        )
        parameters = self._network_with_loss.parameters() if self._accumulation_phase == "first" else ()
        gradients = [(each, each.grad) for each in parameters]
        try:
            if key not in self._steps:
                self._warn_of_changing_attributes(key)
                self._steps[key] = self._plan_step(arguments, cohorts, members)
                while len(self._steps) > MAX_PLANNED_STEPS:
                    self._steps.popitem(last=False)
            self._steps.move_to_end(key)
            bound = self._steps[key]
            self._prepare_state(bound.step)
            require_disjoint(bound.step, arguments.tensors)
            bound.bind_weights()
        except BaseException:  # the first call of an accumulation has new gradients without contents
            for parameter, gradient in gradients:
                parameter.grad = gradient
            raise
        return bound

    def _warn_of_changing_attributes(self, key: tuple[Any, ...]) -> None:
        """Warn if the plan after `PLANS_BEFORE_WARNING` others differs from the last one by attributes alone."""
        last = next(reversed(self._steps), None)
        if len(self._steps) != PLANS_BEFORE_WARNING or last is None or last[1:] != key[1:]:
            return
        names = changed_names(dict(last[0]), dict(key[0]))
        warnings.warn(
            f"sublet plans a training step for each new value of {', '.join(names[:3])}: a planned step runs no "
            "Python, so attributes of modules are part of its key",
            stacklevel=4,
        )

    def _plan_step(self, arguments: StepArguments, cohorts: Sequence[Cohort], members: dict[Tensor, int]) -> _BoundStep:
        """Trace, plan and bind a step. Lasting changes: new optimizer state, and new gradients for accumulation.

        Raises ModelError if the trace changed state visible to a module's Python code, as a counter in `forward`.
        """
        for tensor in (*named_tensors(self._network_with_loss).values(), *arguments.tensors):
            require_cpu(str(tensor.device), "train_step")
        states = {each: dict(self._optimizer.state[each]) for each in members if each in self._optimizer.state}
        results = LossResults()
        traced = self._trace(arguments, results)
        self._make_gradients()
        try:
            step = self._write(traced, cohorts, members)
            run = compile(step.model, backend=BACKENDS, optimize="none", options=self._options, budget=self._budget)
        except BaseException:
            for parameter in members:
                self._restore_state(parameter, states.get(parameter))
            raise
        return _BoundStep(run, step, results, {})

    def _trace(self, arguments: StepArguments, results: LossResults) -> tuple[GraphModule, GraphSignature]:
        """Return forward and backward as one graph, with large losses in groups of rows.

        Raises ModelError for a module changing its attributes.
        """
        scale = [torch().ones((), device="cpu")] if self._gradients.scaled else []
        network = self._network_with_loss
        with preserve_attributes(network):
            register_plain_tensors(network)
            with unchanged_attributes(network), trace_context(network, arguments, results, self._gradients.scaled):
                traced = trace_step(network, [*arguments.tensors, *scale])
        if self._merges_losses:
            merge_traced_losses(traced[0], self._budget)
        return traced

    def _write(
        self, traced: tuple[GraphModule, GraphSignature], cohorts: Sequence[Cohort], members: dict[Tensor, int]
    ) -> StepModel:
        """Return the model of a traced step with less memory; allocates missing optimizer state."""
        phase = self._accumulation_phase
        writer = StepWriter(self._network_with_loss, self._optimizer, self._rule, self._gradients, phase)
        step = writer.write(traced, cohorts, members)
        return replace(step, model=finish_step(step.model, keep_equal=True))

    def model_for(self, arguments: StepArguments) -> Model:
        """Return the program of a step, as planned by a call with these arguments.

        Nothing runs, so tensors may be fake. Missing optimizer state is allocated. Raises ModelError for a step
        impossible to plan.
        """
        self._rule.require_known(self._optimizer)
        require_plain(self._network_with_loss, self._optimizer)
        cohorts, members = cohorts_of(self._optimizer, self._rule)
        return self._write(self._trace(arguments, LossResults()), cohorts, members).model

    def _restore_state(self, parameter: Tensor, state: dict[str, Tensor] | None) -> None:
        """Restore the optimizer state of a parameter; None removes the state."""
        if state is None:
            self._optimizer.state.pop(parameter, None)
        else:
            self._optimizer.state[parameter] = state

    def _make_gradients(self) -> None:
        """Allocate a `grad` for every trained parameter at the first call of an accumulation.

        The `grad` has the layout of the parameter; contents are written by the program.
        """
        if self._accumulate > 1 and self._calls % self._accumulate == 0:
            for parameter in self._network_with_loss.parameters():
                if parameter.requires_grad:
                    spare = self._spare_gradients.get(parameter)
                    fits = spare is not None and tensor_setting(spare) == tensor_setting(parameter.detach())
                    parameter.grad = spare if fits else torch().empty_like(parameter, requires_grad=False)

    def _prepare_state(self, step: StepModel) -> None:
        """Allocate missing optimizer state and gradients updated by the program."""
        self._make_gradients()
        if self._is_last:
            updated = set(step.updated)  # tensors hash by identity
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in updated:
                        self._rule.ensure_state(self._optimizer, group, parameter)

    def _finish_step(self, bound: _BoundStep, infinite: bool) -> None:
        """Repeat the side effects of the eager loop: count steps, drop gradients, notify schedulers and autograd."""
        t, optimizer = torch(), self._optimizer
        last = self._is_last
        self._calls += 1
        t.autograd.graph.increment_version([find() for find in bound.step.lookups.values()])
        if not last:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if self._accumulate > 1 and parameter.grad is not None:
                    self._spare_gradients[parameter] = parameter.grad
                parameter.grad = None
        if not infinite:
            if self._rule.counted:
                for parameter in bound.step.updated:
                    optimizer.state[parameter]["step"] += 1
            if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
                vars(optimizer)["_opt_called"] = True
        if self._gradients.scaled:
            self._update_scaler(infinite)

    def _update_scaler(self, infinite: bool) -> None:
        """Let the scaler grow or shrink the scale, as after `scaler.step`."""
        t = torch()
        assert self._scaler is not None
        state = self._scaler._per_optimizer_states[id(self._optimizer)]
        state["found_inf_per_device"] = {t.device("cpu"): t.tensor(float(infinite), device="cpu")}
        self._scaler.update()


def require_disjoint(step: StepModel, given: Sequence[Tensor]) -> None:
    """Raise ModelError if two weights of a step, or a weight and an argument, share bytes."""
    spans = []
    for name, tensor in (
        *((name, find()) for name, find in step.lookups.items()),
        *(("an argument", x) for x in given),
    ):
        if tensor.numel():
            reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            spans.append((begin, begin + (reach + 1) * tensor.element_size(), name))
    spans.sort()
    for (_, end, one), (begin, _, other) in pairwise(spans):
        if begin < end and (one, other) != ("an argument", "an argument"):
            raise ModelError(f"{one} and {other} share bytes: the eager loop writes them in turn, which is not planned")


def _copy_in_eager_layout(like: Tensor, found: Array) -> Tensor:
    """Return a new tensor with the elements of a result, in the layout of the eager loop."""
    t = torch()
    copied: Tensor = t.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
    tensor = found if isinstance(found, t.Tensor) else torch_over(found)
    return copied.copy_(tensor.reshape(like.shape))
