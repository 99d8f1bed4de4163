"""What optimizers of PyTorch's do to a parameter, as functions that give its new content and that of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.exported import quietly
from sublet.frontends.torch.tensors import torch

Tensors = Sequence[Any]


@dataclass(frozen=True)
class Rule:
    """One kind of optimizer.

    keys       of the state of a parameter that are tensors like it, by a group's options
    numbers    (group, steps that were made) -> what changes from step to step: tensors of one number
    write      (group's options, parameter, gradient, state, numbers) -> new parameter, new state
    refused    options that have to be as given
    """

    keys: Callable[[Mapping[str, Any]], tuple[str, ...]]
    numbers: Callable[[Mapping[str, Any], int], tuple[float, ...]]
    write: Callable[[Mapping[str, Any], Any, Any, Tensors, Tensors], Tensors]
    counted: bool
    refused: Mapping[str, Any]

    @property
    def count_of_scalars(self) -> int:
        return 3 if self.counted else 1

    def state(self, optimizer: Any, parameter: Any) -> dict[str, Any]:
        """The tensors of a parameter's state, made where the optimizer has made no step."""
        t, own = torch(), optimizer.state[parameter]
        group = next(g for g in optimizer.param_groups if any(each is parameter for each in g["params"]))
        if self.counted and "step" not in own:
            own["step"] = t.tensor(0.0, dtype=t.float32, device="cpu")
        for key in self.keys(group):
            if own.get(key) is None:
                own[key] = t.zeros_like(parameter, memory_format=t.preserve_format)
        return {key: own[key] for key in self.keys(group)}

    def scalars(self, optimizer: Any) -> list[Any]:
        """The numbers of the next step, group by group."""
        t = torch()
        return [
            t.tensor(number, dtype=group["params"][0].dtype, device="cpu")
            for group in optimizer.param_groups
            for number in self.numbers(group, self._steps(optimizer, group))
        ]

    def _steps(self, optimizer: Any, group: Mapping[str, Any]) -> int:
        found = [optimizer.state[each]["step"] for each in group["params"] if "step" in optimizer.state.get(each, {})]
        return int(found[0]) if found else 0

    def count(self, optimizer: Any) -> None:
        """A step has been made."""
        for state in optimizer.state.values() if self.counted else ():
            state["step"] += 1

    def traced(self, group: Mapping[str, Any], parameter: Any, state: Tensors, gradients: int) -> Any:
        """The graph of what happens to a parameter, its state, the numbers, and so many gradients, which are added."""
        t = torch()
        like = [t.empty_like(each, device="meta") for each in (parameter, *state)]
        numbers = [t.empty((), dtype=parameter.dtype, device="meta") for _ in range(self.count_of_scalars)]
        several = [t.empty_like(parameter, device="meta") for _ in range(gradients)]

        def update(p: Any, *rest: Any) -> list[Any]:
            inner = len(state) + len(numbers)
            first, *others = rest[inner:]
            for other in others:
                first = first + other
            return list(self.write(group, p, first, rest[: len(state)], rest[len(state) : inner]))

        with quietly(), t.no_grad():
            return t.fx.experimental.proxy_tensor.make_fx(update)(*like, *numbers, *several)


def rule_of(optimizer: Any) -> Rule:
    """The rule of an optimizer. Raises ModelError for a kind or an option that there is none for."""
    name = type(optimizer).__name__
    rule = RULES.get(name) if isinstance(optimizer, getattr(torch().optim, name, ())) else None
    if rule is None:
        raise ModelError(f"{name} is no optimizer that a step can be planned with; there are {', '.join(RULES)}")
    for group in optimizer.param_groups:
        for key, value in rule.refused.items():
            if group.get(key, value) != value:
                raise ModelError(f"{name}({key}={group[key]!r}) cannot be planned: it must be {value!r}")
    return rule


def _signed(group: Mapping[str, Any], gradient: Any) -> Any:
    return -gradient if group["maximize"] else gradient


def _sgd(group: Mapping[str, Any], p: Any, g: Any, state: Tensors, numbers: Tensors) -> Tensors:
    g = _signed(group, g)
    if group["weight_decay"]:
        g = g + p * group["weight_decay"]
    if not group["momentum"]:
        return (p - g * numbers[0],)
    momentum = state[0] * group["momentum"] + g
    way = g + momentum * group["momentum"] if group["nesterov"] else momentum
    return p - way * numbers[0], momentum


def _adam(decoupled: bool) -> Callable[[Mapping[str, Any], Any, Any, Tensors, Tensors], Tensors]:
    def write(group: Mapping[str, Any], p: Any, g: Any, state: Tensors, numbers: Tensors) -> Tensors:
        rate, step, root = numbers
        g, (first, second) = _signed(group, g), group["betas"]
        if group["weight_decay"] and decoupled:
            p = p - p * (rate * group["weight_decay"])
        elif group["weight_decay"]:
            g = g + p * group["weight_decay"]
        mean = torch().lerp(state[0], g, 1 - first)
        square = state[1] * second + g * g * (1 - second)
        return p - step * (mean / (square.sqrt() / root + group["eps"])), mean, square

    return write


def _corrected(group: Mapping[str, Any], steps: int) -> tuple[float, ...]:
    """The rate, the rate over the first correction, the root of the second."""
    first, second = (1 - beta ** (steps + 1) for beta in group["betas"])
    rate = float(group["lr"])
    return rate, rate / first, second**0.5


_ADAM = {"amsgrad": False, "capturable": False, "differentiable": False}
RULES: Mapping[str, Rule] = {
    "SGD": Rule(
        lambda group: ("momentum_buffer",) if group["momentum"] else (),
        lambda group, _: (float(group["lr"]),),
        _sgd,
        False,
        {"dampening": 0, "differentiable": False},
    ),
    "Adam": Rule(lambda _: ("exp_avg", "exp_avg_sq"), _corrected, _adam(False), True, _ADAM),
    "AdamW": Rule(lambda _: ("exp_avg", "exp_avg_sq"), _corrected, _adam(True), True, _ADAM),
}
"""By the name of the class."""
