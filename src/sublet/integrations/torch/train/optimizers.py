"""The optimizers of torch.optim as functions: new parameter and new state from gradient, old state and numbers.

The formulas are `_single_tensor_sgd` and `_single_tensor_adam` of PyTorch 2.13. Every number of a group's options is an
input of the plan, so a learning rate scheduler needs no new plan. Only the question of which numbers are zero selects
the computation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.integrations.torch.reader.exported_program import silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.train.step_setting import tensor_setting

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from torch.fx import GraphModule
    from torch.optim import Optimizer

Tensors = Sequence["Tensor"]

Group = Mapping[str, Any]
"""The options of a parameter group: numbers, flags, and tensors of one number. The name fixes the kind."""

IMPLEMENTATIONS = ("foreach", "fused", "params")
"""Group keys selecting an implementation, without effect on the formula."""


@dataclass(frozen=True)
class OptimizerRule:
    """The update rule of an optimizer class.

    numbers      options with values allowed to change at each step
    flags        options selecting the computation
    refused      options required to have the given value
    switches     (group) -> the facts about numbers selecting the computation, such as zero or not
    keys         (group) -> names of the state tensors with the shape of the parameter
    step_numbers (group, number of steps made) -> the numbers passed to `write`
    write        (group, parameter, gradient, state, numbers, first step) -> new parameter, new state
    counted      True if the state counts steps
    """

    numbers: tuple[str, ...]
    flags: tuple[str, ...]
    refused: Mapping[str, object]
    switches: Callable[[Group], Hashable]
    keys: Callable[[Group], tuple[str, ...]]
    step_numbers: Callable[[Group, float], tuple[float, ...]]
    write: Callable[[Group, Tensor, Tensor, Tensors, Tensors, bool], Tensors]
    counted: bool

    def require_known(self, optimizer: Optimizer) -> None:
        """Raise ModelError for an option impossible to plan, and for a class whose `step` is replaced."""
        name = type(optimizer).__name__
        if not inspect.unwrap(type(optimizer).step).__module__.startswith("torch."):
            raise ModelError(f"{name}.step is replaced by another function, which a plan would not call")
        known = {*self.numbers, *self.flags, *self.refused, *IMPLEMENTATIONS}
        for group in optimizer.param_groups:
            for key in optimizer.defaults:
                if key not in known:
                    raise ModelError(f"{name}({key}={group[key]!r}) is an option that steps are not planned with")
            for key, value in self.refused.items():
                if group.get(key, value) != value:
                    raise ModelError(f"{name}({key}={group[key]!r}) cannot be planned: it must be {value!r}")
            for key in self.numbers:
                for each in group[key] if isinstance(group[key], tuple | list) else (group[key],):
                    _require_number(each, f"{name}({key}=...)")

    def group_setting(self, group: Group) -> Hashable:
        """Return the options of a group selecting the computation."""
        return (*(bool(group.get(key, False)) for key in self.flags), self.switches(group))

    def steps_made(self, optimizer: Optimizer, group: Group, parameter: Tensor) -> float | None:
        """Return the number of steps counted by a parameter's state, as a float; None without state."""
        state = optimizer.state.get(parameter, {})
        if any(state.get(key) is None for key in self.keys(group)):
            return None
        return float(state["step"]) if self.counted else 0.0

    def state_layouts(self, optimizer: Optimizer, group: Group, parameter: Tensor, stored_gradient: bool) -> Hashable:
        """Return the layouts of a parameter's gradient and state; missing tensors count with the layout of the
        parameter.

        Raises ModelError in a fused group for a layout different from the parameter: PyTorch's fused kernels walk the
        bytes of all tensors in one order.
        """
        state = optimizer.state.get(parameter, {})
        own = tensor_setting(parameter)
        stored = (parameter.grad if stored_gradient else None, *(state.get(key) for key in self.keys(group)))
        layouts = tuple(own if each is None else tensor_setting(each) for each in stored)
        if group.get("fused") and any(each[:2] != own[:2] for each in layouts):
            raise ModelError("fused=True, and a gradient or a state lies otherwise than its parameter in memory")
        return layouts

    def ensure_state(self, optimizer: Optimizer, group: Group, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state tensors of a parameter by name; missing tensors are created with zeros."""
        if not self.counted and not self.keys(group):
            return {}  # the eager loop makes no entry either
        t, own = torch(), optimizer.state[parameter]
        if self.counted and "step" not in own:
            own["step"] = t.tensor(0.0, dtype=_step_dtype(), device="cpu")
        for key in self.keys(group):
            if own.get(key) is None:
                own[key] = t.zeros_like(parameter, memory_format=t.preserve_format)
        return {key: own[key] for key in self.keys(group)}

    def trace_update(self, group: Group, like: Tensors, numbers: Tensors, first: bool) -> GraphModule:
        """Return the graph of a parameter's update.

        Args:
            group: the options.
            like: tensors on `meta`: the parameter, its gradient, its state.
            numbers: tensors of one number on `meta`.
            first: True if the parameter has no state before this step.
        """
        t = torch()

        def update(p: Tensor, g: Tensor, *rest: Tensor) -> list[Tensor]:
            state, given = rest[: len(like) - 2], rest[len(like) - 2 :]
            wide = t.float32 if p.dtype in (t.float16, t.bfloat16) else p.dtype
            updated = self.write(group, p.to(wide), g.to(wide), [each.to(wide) for each in state], given, first)
            return [new.to(old.dtype) for old, new in zip((p, *state), updated, strict=True)]

        with silence_tracing(), t.no_grad():
            graph: GraphModule = t.fx.experimental.proxy_tensor.make_fx(update)(*like, *numbers)
        return graph


def _require_number(value: object, where: str) -> None:
    """Raise ModelError for an option neither a number nor a tensor of one number without a gradient."""
    t = torch()
    if isinstance(value, t.Tensor) and (value.numel() != 1 or value.requires_grad):
        raise ModelError(f"{where}: a tensor of {value.numel()} elements, or one with a gradient, cannot be planned")
    if not isinstance(value, int | float | t.Tensor):
        raise ModelError(f"{where}: {type(value).__name__} is no number")


def _step_dtype() -> dtype:
    """Return the dtype of the step counter in torch.optim."""
    t = torch()
    counter: dtype = t.float64 if t.get_default_dtype() == t.float64 else t.float32
    return counter


@dataclass(frozen=True)
class Cohort:
    """Parameters with common numbers in a step: of equal group, equal number of steps made and equal precision.

    group   the position of the parameter group
    steps   the number of steps made
    first   True if the parameters have no state, and the first step has another formula than later steps
    double  True for f64 parameters
    """

    group: int
    steps: float
    first: bool
    double: bool

    def step_number_tensors(self, optimizer: Optimizer, rule: OptimizerRule) -> Iterator[Tensor]:
        """Yield the numbers of the cohort's next step, as tensors of one number."""
        t = torch()
        dtype = t.float64 if self.double else t.float32
        for number in rule.step_numbers(optimizer.param_groups[self.group], self.steps):
            yield t.tensor(number, dtype=dtype, device="cpu")


def cohorts_of(optimizer: Optimizer, rule: OptimizerRule) -> tuple[list[Cohort], dict[Tensor, int]]:
    """Return the cohorts of all parameters requiring gradients, and the cohort position of each parameter."""
    t = torch()
    positions: dict[Cohort, int] = {}
    members: dict[Tensor, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        otherwise = bool(group.get("dampening"))
        for parameter in group["params"]:
            if parameter.requires_grad:
                steps = rule.steps_made(optimizer, group, parameter)
                first = steps is None and otherwise
                cohort = Cohort(number, steps or 0.0, first, parameter.dtype == t.float64)
                members[parameter] = positions.setdefault(cohort, len(positions))
    return list(positions), members


def rule_of(optimizer: Optimizer) -> OptimizerRule:
    """Return the update rule of an optimizer. Raises ModelError for an unsupported class or option."""
    name = type(optimizer).__name__
    rule = RULES.get(name)
    if rule is None or type(optimizer) is not getattr(torch().optim, name):
        raise ModelError(
            f"{type(optimizer).__module__}.{name} is no optimizer that a step can be planned with; there are "
            f"{', '.join(RULES)} of torch.optim, and no classes derived from them"
        )
    rule.require_known(optimizer)
    return rule


def _sgd_update(group: Group, p: Tensor, g: Tensor, state: Tensors, numbers: Tensors, first: bool) -> Tensors:
    """Return the new parameter and the new momentum buffer of SGD."""
    rate, momentum, undamped, decay = numbers
    g = -g if group["maximize"] else g
    if group["weight_decay"]:
        g = g + p * decay
    if not group["momentum"]:
        return (p - g * rate,)
    buffer = g if first else state[0] * momentum + (g * undamped if group["dampening"] else g)
    way = g + buffer * momentum if group["nesterov"] else buffer
    return p - way * rate, buffer


def _adam_update(group: Group, p: Tensor, g: Tensor, state: Tensors, numbers: Tensors, first: bool) -> Tensors:
    """Return the new parameter and the new state of Adam or AdamW."""
    t = torch()
    kept, decay, size, root, weight, second, other, epsilon = numbers
    g = -g if group["maximize"] else g
    if group["weight_decay"] and group.get("decoupled_weight_decay", False):
        p = p * kept
    elif group["weight_decay"]:
        g = g + p * decay
    mean = t.lerp(state[0], g, weight)
    square = state[1] * second + g * g * other
    largest = (t.maximum(state[2], square),) if group["amsgrad"] else ()
    below = (largest[0] if largest else square).sqrt() / root + epsilon
    return p - size * (mean / below), mean, square, *largest


def _adam_step_numbers(group: Group, steps: float) -> tuple[float, ...]:
    """Return the numbers of a step of Adam or AdamW.

    In order: factor of decoupled decay, decay, step size, root of the second bias correction, weight of the gradient in
    the mean, factor of the second moment, complement of the factor, epsilon.
    """
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    first, second = map(float, group["betas"])
    corrections = (1 - first ** (steps + 1), 1 - second ** (steps + 1))
    size, root = rate / corrections[0], corrections[1] ** 0.5
    return 1 - rate * decay, decay, size, root, 1 - first, second, 1 - second, float(group["eps"])


def _adam_state_keys(group: Group) -> tuple[str, ...]:
    """Return the names of Adam's state tensors."""
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


_ADAM = OptimizerRule(
    numbers=("lr", "betas", "eps", "weight_decay"),
    flags=("amsgrad", "maximize", "decoupled_weight_decay"),
    refused={"capturable": False, "differentiable": False},
    switches=lambda group: bool(group["weight_decay"]),
    keys=_adam_state_keys,
    step_numbers=_adam_step_numbers,
    write=_adam_update,
    counted=True,
)
RULES: Mapping[str, OptimizerRule] = {
    "SGD": OptimizerRule(
        numbers=("lr", "momentum", "dampening", "weight_decay"),
        flags=("nesterov", "maximize"),
        refused={"differentiable": False},
        switches=lambda group: tuple(bool(group[key]) for key in ("momentum", "dampening", "weight_decay")),
        keys=lambda group: ("momentum_buffer",) if group["momentum"] else (),
        step_numbers=lambda group, _: (
            float(group["lr"]), float(group["momentum"]), 1 - float(group["dampening"]), float(group["weight_decay"]),
        ),
        write=_sgd_update,
        counted=False,
    ),
    "Adam": _ADAM,
    "AdamW": _ADAM,
}  # fmt: skip
"""Update rules by the name of the class in torch.optim."""
