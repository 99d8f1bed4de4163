"""Whole training steps of PyTorch's: forward, loss, backward and the optimizer's update as one plan in one arena.

Parameters, buffers and the optimizer's state are used, and updated, where they are: `state_dict` of both stays true.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.api.torch.optimizers import Cohort, cohorts_of, rule_of
from sublet.api.torch.step_model import Gradients, StepModel, StepWriter
from sublet.api.torch.step_setting import attributes_of, changed_attributes, require_plain, setting_of, tensor_setting
from sublet.api.torch.step_tracing import Arguments, Loss, Results, judged_module, trace, traced_with
from sublet.base.arrays import Array, torch_over
from sublet.base.errors import ModelError
from sublet.frontends.torch.devices import require_cpu
from sublet.frontends.torch.exported import Held
from sublet.frontends.torch.tensors import torch
from sublet.nn.training import step_of
from sublet.plan import MemoryPlan
from sublet.runtime.executable import Executable

BACKENDS = ("torch", "numpy", "reference")
MOST_STEPS = 16
"""Plans that a step keeps, each with an arena of its own: the one that was used longest ago goes first."""


def train_step(
    module: Any,
    loss: Loss,
    optimizer: Any,
    options: Options | None = None,
    *,
    clip_norm: float | tuple[float, float] | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    scaler: Any = None,
    budget: int | str | None = None,
) -> TrainStep:
    """Return a step of training as one program.

    `step(x, *targets, **keywords)` does what these lines of an eager loop do, and returns the result of `loss`,
    detached:

        optimizer.zero_grad()
        result = loss(module(x, **keywords), *targets)    # several arguments of the module go in a tuple
        (the first tensor of result).backward()
        optimizer.step()

    but that no parameter has a `grad` afterwards.

    A step computes what the eager loop computes, or raises before it changes anything. The step is planned at its first
    call, and again for what changes the computation: shapes, plain arguments, training or evaluation, what requires
    gradients, options of the optimizer other than numbers, autocast. The Python of `module` and `loss` runs only then.

    Args:
        module: a module on the CPU; its parameters that require gradients are all the optimizer's.
        loss: a function or a module; returns a tensor without axes, or a container whose first tensor is one.
        optimizer: torch.optim.SGD, Adam or AdamW, no class derived from them. Numbers of its options may move from step
            to step.
        options: how steps are planned.
        clip_norm: the largest norm of all gradients together, or this and the kind of norm, as `clip_grad_norm_`.
        clip_value: the largest absolute value of an element of a gradient, as `clip_grad_value_`.
        accumulate: calls whose gradients are added up before the optimizer makes a step.
        scaler: a torch.amp.GradScaler of the CPU. The step scales the loss, skips the update where a gradient is not
            finite, and updates the scaler.
        budget: the most bytes that the arena may have ("400MiB"), kernels' scratch memory included: values are computed
            again where the plan needs more (docs/budget.md). Parameters, state and arguments are not in the arena.

    Raises:
        CapacityError: at the first call, where the budget is impossible or no plan within it was found.
        ModelError: for a module, an optimizer or an option that no step can be planned with.
    """
    norm = clip_norm if clip_norm is None or isinstance(clip_norm, tuple) else (float(clip_norm), 2.0)
    if accumulate < 1:
        raise ModelError(f"accumulate={accumulate}: expected a number of calls from 1 on")
    if norm is not None and clip_value is not None:
        raise ModelError("clip_norm and clip_value: give one of the two")
    scaled = scaler is not None and scaler.is_enabled()
    if scaled and any(group.get("fused") for group in optimizer.param_groups):
        raise ModelError("fused=True with a scaler: PyTorch's fused kernels make state at a step that they skip")
    gradients = Gradients(norm, clip_value, scaled)
    return TrainStep(module, loss, optimizer, options or Options(), gradients, accumulate, scaler, budget)


@dataclass
class _Bound:
    """A step for some setting: the program, its trace's results, and the addresses of its weights."""

    run: Executable
    step: StepModel
    results: Results
    addresses: dict[str, int]

    def bind_weights(self) -> None:
        """Bind the tensors that lie elsewhere than at the step before."""
        for name, find in self.step.finders.items():
            tensor = find()
            if tensor.data_ptr() != self.addresses.get(name):
                self.run.bind(name, self._memory(name, tensor))
                self.addresses[name] = tensor.data_ptr()

    def _memory(self, name: str, tensor: Any) -> Array:
        (value,) = (each for each in self.run.graph.weights if each.name == name)
        return Held(tensor, value.spec.shape).array()  # type: ignore[union-attr]


class TrainStep:
    """A step of training, made by `train_step`. `plan` is that of the step that ran last."""

    def __init__(
        self,
        module: Any,
        loss: Loss,
        optimizer: Any,
        options: Options,
        gradients: Gradients,
        accumulate: int,
        scaler: Any,
        budget: int | str | None,
    ) -> None:
        self._judged, self._loss = judged_module(module, loss), loss
        self._optimizer, self._rule = optimizer, rule_of(optimizer)
        self._options, self._gradients, self._budget = options, gradients, budget
        self._accumulate, self._scaler, self._calls = accumulate, scaler, 0
        self._spare: dict[Any, Any] = {}
        self._steps: OrderedDict[Any, _Bound] = OrderedDict()
        self.plan: MemoryPlan | None = None

    def __call__(self, inputs: Any, *targets: Any, **keywords: Any) -> Any:
        """Make one step, and return what the loss returned. Raises SubletError, and changes nothing, for a step that
        cannot be planned."""
        self._rule.require_known(self._optimizer)
        require_plain(self._judged, self._optimizer)
        arguments = Arguments(inputs, targets, keywords)
        cohorts, members = cohorts_of(self._optimizer, self._rule)
        fresh = [each for each in members if not self._optimizer.state.get(each)]
        bound = self._bound(arguments, cohorts, members)
        self.plan = bound.run.plan
        numbers = [each for cohort in cohorts for each in cohort.values(self._optimizer, self._rule)]
        given = [*arguments.tensors, *self._scales(), *(numbers if self._is_last else ())]
        places = (bound.run.inputs[name].spec.shape for name in bound.step.model.inputs)  # type: ignore[union-attr]
        contents = (Held(each, shape).array() for each, shape in zip(given, places, strict=True))
        found = list(bound.run(dict(zip(bound.step.model.inputs, contents, strict=True))).values())
        infinite = bool(found.pop()) if self._gradients.scaled and self._is_last else False
        self._finish(bound, infinite)
        for parameter in fresh if infinite else ():  # the eager loop makes no state at a step that it skips
            self._optimizer.state.pop(parameter, None)
        return bound.results.rebuilt([_copied(*each) for each in zip(bound.step.results, found, strict=True)])

    @property
    def _is_last(self) -> bool:
        """True if this call is the one at which the optimizer makes a step."""
        return self._calls % self._accumulate == self._accumulate - 1

    @property
    def _accumulates(self) -> str:
        if self._accumulate == 1:
            return ""
        return "last" if self._is_last else "more" if self._calls % self._accumulate else "first"

    def _scales(self) -> list[Any]:
        """Return the scale of the loss, and at the optimizer's step its inverse; nothing without a scaler."""
        if not self._gradients.scaled:
            return []
        self._scaler.scale(torch().zeros((), device="cpu"))  # which makes the scale where there is none yet
        scale = float(self._scaler.get_scale())
        return [torch().tensor(each, device="cpu") for each in ((scale, 1.0 / scale) if self._is_last else (scale,))]

    def _bound(self, arguments: Arguments, cohorts: Sequence[Cohort], members: dict[Any, int]) -> _Bound:
        """Return the program of the setting, planned where there is none yet, over the tensors as they are now."""
        groups = self._optimizer.param_groups
        layouts = tuple(
            self._rule.layouts(self._optimizer, group, parameter, self._accumulates in ("more", "last"))
            for group in groups
            for parameter in group["params"]
            if parameter in members
        )
        key = (
            setting_of(self._judged, self._loss, groups),
            layouts,
            tuple(map(tensor_setting, arguments.tensors)),
            arguments.setting,
            tuple(map(self._rule.group_setting, groups)),
            tuple((cohort.group, cohort.first, cohort.double) for cohort in cohorts),
            tuple(members.values()),
            self._accumulates,
        )
        if key not in self._steps:
            self._steps[key] = self._planned(arguments, cohorts, members)
            while len(self._steps) > MOST_STEPS:
                self._steps.popitem(last=False)
        self._steps.move_to_end(key)
        bound = self._steps[key]
        self._prepare_state(bound.step)
        require_apart(bound.step, arguments.tensors)
        bound.bind_weights()
        return bound

    def _planned(self, arguments: Arguments, cohorts: Sequence[Cohort], members: dict[Any, int]) -> _Bound:
        """Trace, plan and bind a step. The optimizer's state is made where it is missing, and nothing else is changed.

        Raises ModelError where the trace changed what a module's Python reads, as a counter in `forward`.
        """
        for tensor in (*self._judged.parameters(), *self._judged.buffers(), *arguments.tensors):
            require_cpu(str(tensor.device), "train_step")
        states = {each: dict(self._optimizer.state[each]) for each in members if each in self._optimizer.state}
        before = {path: attributes_of(each) for path, each in self._judged.named_modules()}
        held = {path: dict(vars(each)) for path, each in self._judged.named_modules()}
        results = Results()
        scale = [torch().ones((), device="cpu")] if self._gradients.scaled else []
        with traced_with(self._judged, arguments, results, self._gradients.scaled):
            traced = trace(self._judged, [*arguments.tensors, *scale])
        changed = next(changed_attributes(self._judged, before), None)
        if changed is not None:
            for path, each in self._judged.named_modules():
                vars(each).clear()
                vars(each).update(held[path])
            raise ModelError(f"{changed} changes in forward, and a module's Python runs only while a step is planned")
        self._make_gradients()
        try:
            writer = StepWriter(self._judged, self._optimizer, self._rule, self._gradients, self._accumulates)
            step = writer.write(traced, cohorts, members)
            run = compile(
                step_of(step.model), backend=BACKENDS, optimize="none", options=self._options, budget=self._budget
            )
        except BaseException:
            for parameter in members:
                self._restore_state(parameter, states.get(parameter))
            raise
        return _Bound(run, step, results, {})

    def _restore_state(self, parameter: Any, state: dict[str, Any] | None) -> None:
        if state is None:
            self._optimizer.state.pop(parameter, None)
        else:
            self._optimizer.state[parameter] = state

    def _make_gradients(self) -> None:
        """Give every trained parameter a `grad` where gradients are accumulated, of its own layout."""
        if self._accumulate > 1 and self._calls % self._accumulate == 0:
            for parameter in self._judged.parameters():
                if parameter.requires_grad:
                    spare = self._spare.get(parameter)
                    fits = spare is not None and tensor_setting(spare) == tensor_setting(parameter.detach())
                    parameter.grad = spare if fits else torch().empty_like(parameter, requires_grad=False)

    def _prepare_state(self, step: StepModel) -> None:
        """Make the state and the gradients that the program updates, where they are missing."""
        self._make_gradients()
        if self._is_last:
            updated = set(step.updated)  # a tensor's hash is its identity
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in updated:
                        self._rule.state(self._optimizer, group, parameter)

    def _finish(self, bound: _Bound, infinite: bool) -> None:
        """Do what the eager loop does besides computing: count, forget gradients, tell schedulers and autograd."""
        t, optimizer = torch(), self._optimizer
        last = self._is_last
        self._calls += 1
        t.autograd.graph.increment_version([find() for find in bound.step.finders.values()])
        if not last:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if self._accumulate > 1 and parameter.grad is not None:
                    self._spare[parameter] = parameter.grad
                parameter.grad = None
        if not infinite:
            if self._rule.counted:
                for parameter in bound.step.updated:
                    optimizer.state[parameter]["step"] += 1
            if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
                optimizer._opt_called = True
        if self._gradients.scaled:
            self._tell_scaler(infinite)

    def _tell_scaler(self, infinite: bool) -> None:
        """Let the scaler grow or shrink its scale, as after its own `step`."""
        t = torch()
        state = self._scaler._per_optimizer_states[id(self._optimizer)]
        state["found_inf_per_device"] = {t.device("cpu"): t.tensor(float(infinite), device="cpu")}
        self._scaler.update()


def require_apart(step: StepModel, given: Sequence[Any]) -> None:
    """Raise ModelError where two weights of a step, or a weight and an argument, share bytes."""
    spans = []
    for name, tensor in (
        *((name, find()) for name, find in step.finders.items()),
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


def _copied(like: Any, found: Any) -> Any:
    """Return a tensor with the layout that the eager loop gives, of a result's elements."""
    t = torch()
    made = t.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
    tensor = found if isinstance(found, t.Tensor) else torch_over(found)
    return made.copy_(tensor.reshape(like.shape))
