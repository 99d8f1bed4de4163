"""The dependencies of a training step: each is part of the plan's key, followed at run time, or refused by name.

A step is planned from one trace. Any change of the eager loop's computation must be detected before the next step:
`setting_of` returns all facts in the key, and `require_plain` raises for unsupported facts.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.integrations.torch.reader.exported_program import is_users, tracing_lock
from sublet.integrations.torch.reader.traced_tensor import torch

if TYPE_CHECKING:
    from types import CellType

    from torch import Tensor, dtype
    from torch.nn import Module
    from torch.optim import Optimizer

MODULE_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
"""Registries of module hooks run in an eager step. A trace calls the hooks; a planned step would not."""

MODULE_HOOKS_ELSEWHERE = (
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
"""Registries of module hooks run only when weights are saved or loaded."""

GLOBAL_HOOKS = (
    "_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_with_kwargs",
    "_global_forward_hooks_always_called", "_global_backward_pre_hooks", "_global_backward_hooks",
)  # fmt: skip
"""The hook registries for all modules, in `torch.nn.modules.module`."""

TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")

REGISTRIES = {
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_flat_weights",  # the parameters of recurrent layers once more
    *MODULE_HOOKS,
    *MODULE_HOOKS_ELSEWHERE,
}
PLAIN = (bool, int, float, complex, str, bytes, type(None))
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
MAX_DEPTH = 3
"""Containers and objects inside each other that are part of the key. Deeper ones are described by type and length."""
MAX_ELEMENTS = 4096
"""Elements of a container that are part of the key. A longer container is described by type and length."""

Setting = Hashable


def require_plain(module: Module, optimizer: Optimizer) -> None:
    """Raise ModelError for hooks called by an eager step only, and for modes with another computation than a plain
    step.

    Args:
        module: the network and its loss, as one module.
        optimizer: an optimizer of torch.optim.
    """
    _require_no_modes()
    _require_no_hooks(require("torch.nn.modules.module", extra="torch"), GLOBAL_HOOKS, "torch.nn.Module")
    for path, each in module.named_modules():
        _require_no_hooks(each, MODULE_HOOKS, path or type(each).__name__)
    for name, parameter in module.named_parameters():
        _require_no_hooks(parameter, TENSOR_HOOKS, name)
    _require_no_hooks(optimizer, OPTIMIZER_HOOKS, type(optimizer).__name__)
    _require_no_hooks(require("torch.optim.optimizer", extra="torch"), GLOBAL_OPTIMIZER_HOOKS, "torch.optim.Optimizer")
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise ModelError(
            f"{type(optimizer).__name__}.step is replaced by another function, which a plan would not call"
        )


def _require_no_hooks(owner: object, registries: Sequence[str], where: str) -> None:
    """Raise ModelError if a hook registry of `owner` is not empty."""
    for registry in registries:
        if getattr(owner, registry, None):
            raise ModelError(f"{where} has hooks ({registry}), which a planned step would not call: remove the hooks")


def _require_no_modes() -> None:
    """Raise ModelError in a mode with changed computation or recording of operators."""
    t = torch()
    c, stack = t._C, require("torch.overrides", extra="torch")._get_current_function_mode_stack
    default = require("torch.utils._device", extra="torch").DeviceContext  # set by `torch.set_default_device`
    modes = {
        "torch.inference_mode(), and a step needs gradients": t.is_inference_mode_enabled(),
        "torch.no_grad(), and a step needs gradients": not t.is_grad_enabled(),
        "torch.autograd.detect_anomaly(), and a plan looks for no NaN": _is_on(t.is_anomaly_enabled),
        "a transform of torch.func": c._functorch.peek_interpreter_stack() is not None,
        "a TorchFunctionMode": any(not isinstance(each, default) for each in stack()),
        "a TorchDispatchMode": c._len_torch_dispatch_stack() > 0,
        "saved_tensors_hooks": c._autograd._top_saved_tensors_default_hooks(True) is not None,
        "forward-mode differentiation": require("torch.autograd.forward_ad", extra="torch")._current_level >= 0,
        "torch.compiler, while it traces": _is_on(t.compiler.is_compiling),
    }
    for what, active in modes.items():
        if active:
            raise ModelError(f"a step in {what}: call the step outside of it")


def _is_on(mode: Callable[[], bool]) -> bool:
    """True if a mode of the process is on, but not for a trace in another thread."""
    if not mode():
        return False
    with tracing_lock():
        return mode()


def setting_of(
    module: Module, loss: Callable[..., object], groups: Sequence[Mapping[str, Sequence[Tensor]]]
) -> tuple[tuple[tuple[str, Setting], ...], Setting]:
    """Return all facts a trace of the step depends on, besides arguments and the optimizer's numbers.

    The attributes by name come first, then all others.

    Args:
        module: the network and its loss, as one module.
        loss: the loss as passed by the user.
        groups: the parameter groups of the optimizer.
    """
    t = torch()
    members = {id(each): (i, j) for i, group in enumerate(groups) for j, each in enumerate(group["params"])}
    first: dict[int, int] = {}
    tensors = []
    for i, (name, each) in enumerate(named_tensors(module).items()):
        same = first.setdefault(id(each), i)
        tensors.append((name, same, tensor_setting(each), each.requires_grad, members.get(id(each))))
    surroundings = (
        t.is_autocast_enabled("cpu"), t.get_autocast_dtype("cpu"), t.is_autocast_cache_enabled(), t.get_default_dtype(),
        str(t.get_default_device()),
        t.are_deterministic_algorithms_enabled(), t.is_deterministic_algorithms_warn_only_enabled(),
        t.utils.deterministic.fill_uninitialized_memory, t.get_float32_matmul_precision(),
    )  # fmt: skip
    modules = tuple((path, type(each)) for path, each in module.named_modules())
    of_loss = () if isinstance(loss, t.nn.Module) else function_setting(loss)
    return tuple(attributes_of(module).items()), (surroundings, tuple(tensors), modules, of_loss)


def named_tensors(module: Module) -> dict[str, Tensor]:
    """Return the parameters, buffers and plain tensor attributes of a module and the modules inside, by name.

    A tensor with several names is there several times.
    """
    plain = {
        f"{path}.{name}" if path else name: value
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if isinstance(value, torch().Tensor)
    }
    registered = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {**dict(registered), **plain}


def tensor_setting(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], dtype, str]:
    """Return shape, strides, dtype and device of a tensor.

    Raises ModelError for a tensor without plain bytes in memory.
    """
    t = torch()
    if type(tensor) not in (t.Tensor, t.nn.Parameter, t.nn.Buffer) or tensor.layout is not t.strided:
        raise ModelError(f"a tensor of type {type(tensor).__name__}, layout {tensor.layout}: plain ones are planned")
    if tensor.is_conj() or tensor.is_neg() or tensor.dtype.is_complex:
        raise ModelError(f"a tensor of {tensor.dtype}, conjugated or negated: a step takes real numbers")
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)


def attributes_of(module: Module) -> dict[str, Setting]:
    """Return all that the Python code of a module and of the modules inside may read, by "path.name".

    Attributes of the modules, plain attributes of the user's classes, and what `function_setting` finds of `forward`.
    """
    found: dict[str, Setting] = {}
    known: dict[int, Setting] = {}
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if name not in REGISTRIES:
                found[f"{path}.{name}" if path else name] = _value_setting(value, known)
    classes = dict.fromkeys(type(each) for each in module.modules())
    for kind in dict.fromkeys(base for each in classes for base in each.__mro__):
        for name, value in vars(kind).items() if is_users(kind) else ():
            if name == "forward":
                found[f"{kind.__qualname__}.{name}"] = function_setting(value)
            elif isinstance(value, PLAIN) and not name.startswith("__"):
                found[f"{kind.__qualname__}.{name}"] = type(value), value
    return found


def _value_setting(value: object, known: dict[int, Setting], depth: int = 0) -> Setting:
    """Return a hashable description of a value.

    Plain values are described by themselves, containers by their elements, functions, classes, modules and tensors by
    their identities, and other objects by their attributes; `known` holds the descriptions of objects, by id.
    """
    if isinstance(value, PLAIN):
        return type(value), value
    t = torch()
    if isinstance(value, list | tuple | set | frozenset | dict):
        if len(value) > MAX_ELEMENTS or depth > MAX_DEPTH:
            return type(value), len(value)
        elements = (each for pair in value.items() for each in pair) if isinstance(value, dict) else value
        settings = (_value_setting(each, known, depth + 1) for each in elements)
        return type(value), frozenset(settings) if isinstance(value, set | frozenset) else tuple(settings)
    if isinstance(value, (t.Tensor, t.nn.Module, type, *FUNCTIONS)):
        return id(value)
    if id(value) not in known:
        known[id(value)] = type(value), id(value)  # an object that contains itself ends here
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())] if depth < MAX_DEPTH else []
        settings = ((name, _value_setting(getattr(value, name, None), known, depth + 1)) for name in names)
        known[id(value)] = type(value), str(value) if isinstance(value, t.dtype | t.device) else tuple(settings)
    return known[id(value)]


def changed_names(before: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    """Return the names with different descriptions, in the order of `before`, then of `now`."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


@contextmanager
def unchanged_attributes(module: Module) -> Iterator[None]:
    """Refuse a trace that changes attributes or draws random numbers of Python or NumPy, as a context manager.

    Raises ModelError with the name of the attribute, also in place of an error inside: many errors of PyTorch follow
    from such a change.
    """
    before, python, numpy = attributes_of(module), random.getstate(), np.random.get_state()
    error: ModelError | None = None
    try:
        yield
    except ModelError as raised:
        error = raised
    once = "a module's Python runs only while a step is planned"
    for name in changed_names(before, attributes_of(module)):
        raise ModelError(
            f"{name} changes in forward, and {once}: if only the first call changes it, call the module once before"
        ) from error
    is_drawn = random.getstate() != python or not all(map(np.array_equal, np.random.get_state(), numpy))
    if is_drawn and threading.active_count() == 1:  # another thread may have drawn
        random.setstate(python)
        np.random.set_state(numpy)
        raise ModelError(f"forward draws random numbers of Python or NumPy, and {once}: draw them by torch") from error
    if error is not None:
        raise error


def function_setting(function: Callable[..., object]) -> Setting:
    """Return the values in a function's closure and defaults, the plain globals that it reads, and the object of a
    method.
    """
    if isinstance(function, functools.partial):
        return (
            function_setting(function.func),
            _value_setting(function.args, {}),
            _value_setting(tuple(function.keywords.items()), {}),
        )
    code = getattr(function, "__code__", None)
    owner = _value_setting(getattr(function, "__self__", function), {})  # the object of a method; an object itself
    if code is None:
        return id(function), owner
    cells = tuple(_cell_setting(cell) for cell in function.__closure__ or ())
    read = function.__globals__
    names = tuple((name, read[name]) for name in code.co_names if name in read and isinstance(read[name], PLAIN))
    types = tuple(type(value) for _, value in names)
    return id(function), owner, cells, _value_setting(function.__defaults__ or (), {}), names, types


def _cell_setting(cell: CellType) -> Setting:
    """Return a description of a closure cell's content; None for an empty cell."""
    try:
        return _value_setting(cell.cell_contents, {})
    except ValueError:  # an empty cell
        return None
