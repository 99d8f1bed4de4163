"""Optimisers: commands updating weights in place with a gradient.

Inputs are the weights, the gradient, the learning rate (f32[], so a schedule can change the rate) and the state kept
between steps, initially 0. Results are the new weights and the new state, all of equal spec. `step` counts from 1.
`decay` adds decay * w to the gradient; in adamw and lamb to the update. The results equal torch.optim, with one
exception: PyTorch's first momentum is the whole gradient, while here dampening applies from the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.ops.nn.command import Command, overwrite_unless_repeated, pick
from sublet.ops.nn.rules import FLOATS, require_equal, require_type
from sublet.ops.op import Attrs, Specs
from sublet.ops.slice_maps import elementwise_axes, no_slices

RATE = TensorSpec(DType.F32, ())
STEP = TensorSpec(DType.I64, ())


def _spec_at(specs: Specs, position: int) -> TensorSpec | None:
    return specs[position] if position < len(specs) else None


def _require_scalar(specs: Specs, position: int, expected: TensorSpec, role: str) -> None:
    spec = _spec_at(specs, position)
    if spec != expected:
        raise SpecError(f"{role} is {spec or 'missing'}, but must be {expected}")


def _infer_update(specs: Specs, *states: str) -> tuple[TensorSpec, ...]:
    """Return the specs of the new weights and states, for the inputs (w, grad, lr, *states)."""
    w = require_type(specs[0], FLOATS, "w")
    require_equal(require_type(specs[1], FLOATS, "grad"), w, "grad and w")
    _require_scalar(specs, 2, RATE, "lr")
    for position, state in enumerate(states, 3):
        require_equal(require_type(_spec_at(specs, position), FLOATS, state), w, f"{state} and w")
    return (w,) * (1 + len(states))


def _require_fraction(attrs: Attrs, key: str) -> None:
    if not 0 <= pick(attrs, key) < 1:
        raise SpecError(f"{key} = {pick(attrs, key)} must be at least 0 and less than 1")


def _momentum_states(specs: Specs, attrs: Attrs, position: int) -> list[str]:
    """Return the momentum state, if the attribute momentum is not 0. Raises SpecError for a state without momentum."""
    if pick(attrs, "momentum"):
        return ["momentum"]
    if _spec_at(specs, position) is not None:
        raise SpecError(f"momentum = 0 keeps no state: omit input {position}, or pass the attribute momentum")
    return []


def _sgd_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    if pick(attrs, "nesterov") and (pick(attrs, "momentum") <= 0 or pick(attrs, "dampening")):
        raise SpecError("nesterov = 1 needs a momentum greater than 0 and dampening = 0")
    return _infer_update(specs, *_momentum_states(specs, attrs, 3))


def _adam_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _require_fraction(attrs, "beta1")
    _require_fraction(attrs, "beta2")
    outputs = _infer_update(specs, "m", "v")
    _require_scalar(specs, 5, STEP, "step")
    return outputs


def _rmsprop_infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _require_fraction(attrs, "alpha")
    return _infer_update(specs, "v", *_momentum_states(specs, attrs, 4))


def _sgd(
    w: Any,
    grad: Any,
    lr: Any,
    before: Any = None,
    *,
    momentum: float,
    dampening: float,
    decay: float,
    nesterov: int,
) -> Any:
    """Compute SGD as torch.optim.SGD (Sutskever et al., 2013): the momentum does not include the rate."""
    grad = grad + decay * w
    if before is None:
        return w - float(lr) * grad
    kept = momentum * before + (1 - dampening) * grad
    return w - float(lr) * (grad + momentum * kept if nesterov else kept), kept


def _adam_direction(
    grad: Any, m: Any, v: Any, step: Any, *, beta1: float, beta2: float, epsilon: float
) -> tuple[Any, Any, Any]:
    """Return the direction of Adam, and the new means of the gradient and of the squared gradient.

    The direction is the mean over the root of the mean square, both corrected for starting at 0.
    """
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
    mean, square = m / (1 - beta1 ** int(step)), v / (1 - beta2 ** int(step))
    return mean / (np.sqrt(square) + epsilon), m, v


def _adam(w: Any, grad: Any, lr: Any, m: Any, v: Any, step: Any, *, decay: float, **rates: float) -> Any:
    direction, m, v = _adam_direction(grad + decay * w, m, v, step, **rates)
    return w - float(lr) * direction, m, v


def _adamw(w: Any, grad: Any, lr: Any, m: Any, v: Any, step: Any, *, decay: float, **rates: float) -> Any:
    direction, m, v = _adam_direction(grad, m, v, step, **rates)
    return w - float(lr) * (decay * w + direction), m, v


def _lamb(w: Any, grad: Any, lr: Any, m: Any, v: Any, step: Any, *, decay: float, **rates: float) -> Any:
    """Compute LAMB (You et al., 2020, algorithm 2) with phi(z) = z: the update has the norm of the weights.

    The trust ratio is 1 if a norm is 0.
    """
    direction, m, v = _adam_direction(grad, m, v, step, **rates)
    update = direction + decay * w
    sizes = float(np.linalg.norm(w.reshape(-1))), float(np.linalg.norm(update.reshape(-1)))
    trust = sizes[0] / sizes[1] if all(size > 0 for size in sizes) else 1.0
    return w - float(lr) * trust * update, m, v


def _rmsprop(
    w: Any,
    grad: Any,
    lr: Any,
    v: Any,
    before: Any = None,
    *,
    alpha: float,
    momentum: float,
    epsilon: float,
    decay: float,
) -> Any:
    """Compute RMSProp as torch.optim.RMSprop (Tieleman and Hinton, 2012): epsilon is added to the root."""
    grad = grad + decay * w
    v = alpha * v + (1 - alpha) * grad**2
    step = grad / (np.sqrt(v) + epsilon)
    if before is None:
        return w - float(lr) * step, v
    kept = momentum * before + step
    return w - float(lr) * kept, v, kept


def _adaptive_command(name: str, text: str, compute: Callable[..., Any], epsilon: float, decay: float) -> Command:
    """Return the command `<name>(w, grad, lr, m, v, step) -> (w', m', v')`."""
    return Command(
        name,
        text,
        _adam_infer,
        compute,
        attrs={"beta1": 0.9, "beta2": 0.999, "epsilon": epsilon, "decay": decay},
        inputs=(6, 6),
        outputs=(3, 3),
        inplace=overwrite_unless_repeated((0, 0), (1, 3), (2, 4)),
        slices=no_slices if name == "lamb" else elementwise_axes,
    )


COMMANDS = (
    Command(
        "sgd",
        "Gradient descent, with momentum (Sutskever et al. 2013): (w, grad, lr, momentum?) -> (w', momentum'?).",
        _sgd_infer,
        _sgd,
        attrs={"momentum": 0.0, "dampening": 0.0, "decay": 0.0, "nesterov": False},
        inputs=(3, 4),
        outputs=(1, 2),
        inplace=overwrite_unless_repeated((0, 0), (1, 3)),
        slices=elementwise_axes,
    ),
    _adaptive_command(
        "adam",
        "Adam (Kingma and Ba 2015): (w, grad, lr, m, v, step) -> (w', m', v'); step counts from 1.",
        _adam,
        1e-8,
        0.0,
    ),
    _adaptive_command(
        "adamw",
        "Adam with decoupled weight decay (Loshchilov and Hutter 2019); arguments as of nn.adam.",
        _adamw,
        1e-8,
        0.01,
    ),
    _adaptive_command(
        "lamb",
        "LAMB: Adam with the update scaled to the norm of the weights (You et al. 2020); arguments as of nn.adam.",
        _lamb,
        1e-6,
        0.0,
    ),
    Command(
        "rmsprop",
        "RMSProp (Tieleman and Hinton 2012): (w, grad, lr, v, momentum?) -> (w', v', momentum'?).",
        _rmsprop_infer,
        _rmsprop,
        attrs={"alpha": 0.99, "momentum": 0.0, "epsilon": 1e-8, "decay": 0.0},
        inputs=(4, 5),
        outputs=(2, 3),
        inplace=overwrite_unless_repeated((0, 0), (1, 3), (2, 4)),
        slices=elementwise_axes,
    ),
)
