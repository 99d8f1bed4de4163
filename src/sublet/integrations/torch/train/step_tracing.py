"""Forward and backward of a training step as one graph of ATen operators, traced as run by the eager loop."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from sublet.base.errors import ModelError, SubletError
from sublet.base.optional_imports import require
from sublet.integrations.torch.reader.exported_program import error_summary, silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.reader.tracing_rules import decompositions, keep_operators
from sublet.integrations.torch.train.step_setting import PLAIN, changed_names
from sublet.nn.source_location import PACKAGE

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule
    from torch.nn import Module
    from torch.utils._pytree import TreeSpec

Pytree = Any
"""Tensors and plain values in tuples, lists and dicts, as the user's functions take and return them."""

GraphSignature = Any
"""AOTAutograd's signature of a graph: names of nodes and tensors by role. The class is private to PyTorch."""

Loss = Callable[..., Pytree]


class StepArguments:
    """The arguments of a step: tensors become inputs of the plan, plain values become part of the plan's key.

    Containers are flattened by PyTorch's `pytree`.

    Raises ModelError for an argument neither tensor nor plain value, and for a tensor requiring a gradient.
    """

    def __init__(self, inputs: Pytree, targets: Sequence[Pytree], keywords: Mapping[str, Pytree]) -> None:
        t, pytree = torch(), require("torch.utils._pytree", extra="torch")
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        self._leaves, self._spec = pytree.tree_flatten((args, tuple(targets), dict(keywords)))
        self._unflatten = pytree.tree_unflatten
        self.tensors = [each for each in self._leaves if isinstance(each, t.Tensor)]
        known = (*PLAIN, t.dtype, t.device, t.layout, t.memory_format)
        for each in self._leaves:
            if not isinstance(each, (t.Tensor, *known)):
                raise ModelError(f"an argument of type {type(each).__name__}: a step takes tensors and plain values")
            if isinstance(each, t.Tensor) and each.requires_grad:
                raise ModelError(
                    "an argument that requires a gradient: a step gives none of its arguments; detach() it"
                )

    @property
    def setting(self) -> Hashable:
        """The structure of the arguments and the plain values, for the plan's key."""
        t = torch()
        plain = tuple(None if isinstance(each, t.Tensor) else (type(each), each) for each in self._leaves)
        return self._spec, plain

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[Pytree, Pytree, Pytree]:
        """Return the module's arguments, the loss's arguments and the module's keywords, with new tensors."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(each, torch().Tensor) else each for each in self._leaves]
        rebuilt: tuple[Pytree, Pytree, Pytree] = self._unflatten(leaves, self._spec)
        return rebuilt


def module_with_loss(module: Module, loss: Loss) -> Module:
    """Return the module and the loss as one module of tensors, to be traced within `trace_context`.

    The results are the loss, then all further tensors returned by the loss, detached. In a scaled step the last
    argument is the scale, and the scaled loss is the first result. Raises ModelError for an object other than a module.
    """
    t = torch()
    if not isinstance(module, t.nn.Module):
        raise ModelError(f"{type(module).__name__} is no module of PyTorch's")

    class Judged(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = module
            self.__dict__["apart"] = False
            self.loss = loss

        @property
        def training(self) -> bool:
            return bool(module.training)

        @training.setter
        def training(self, mode: bool) -> None:
            pass

        def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Any:
            """Yield each module once, so a parameter of a module with several names has one name in the trace."""
            return super().named_modules(memo, prefix)

        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            arguments, results, scaled, autocast = self.__dict__["traced"]
            args, targets, keywords = arguments.with_tensors(tensors)
            with autocast(), kept_state(self), kept_generator():
                call = self.network if not self.apart else partial(_call_with_views, self.network)
                judged = self.loss(call(*args, **keywords), *targets)
            loss, *others = results.flatten_result(judged)
            return (loss * tensors[-1], loss.detach(), *others) if scaled else (loss, *others)

    return Judged()


def register_plain_tensors(module: Module) -> None:
    """Make each plain tensor attribute of a module and the modules inside a buffer, so the trace reads its memory.

    Raises ModelError for such a tensor with a gradient.
    """
    t = torch()
    for path, each in module.named_modules():
        tensors = {name: value for name, value in vars(each).items() if isinstance(value, t.Tensor)}
        for name, value in tensors.items():
            if value.requires_grad:
                raise ModelError(
                    f"{path}.{name} requires a gradient and is no parameter: register_parameter makes it one"
                )
            del vars(each)[name]
            each._buffers[name] = value


@contextmanager
def kept_state(module: Module) -> Iterator[None]:
    """Refuse a forward pass that replaces a parameter, buffer or module, or its memory or gradient; a context manager.

    PyTorch's trace drops the replacement. Raises ModelError with the name.
    """
    before = _registered_state(module)
    yield
    for name in changed_names(before, _registered_state(module)):
        raise ModelError(
            f"{name}, its memory or its gradient is replaced in forward, and a planned step keeps its tensors and "
            "modules: write into the tensor, as by `copy_`"
        )


def _registered_state(module: Module) -> dict[str, Hashable]:
    """Return identity, memory and gradient of each parameter, buffer and module inside a module, by "path.name"."""
    fake = require("torch._subclasses.fake_tensor", extra="torch").FakeTensor
    found: dict[str, Hashable] = {}
    for path, each in module.named_modules():
        for name, value in chain(each._parameters.items(), each._buffers.items(), each._modules.items()):
            memory: Hashable = getattr(value, "requires_grad", None)
            if type(value) is fake:
                place = value.untyped_storage()._cdata, value.storage_offset(), value.dtype
                memory = memory, id(value.grad), place, tuple(value.shape), value.stride()
            found[f"{path}.{name}" if path else name] = id(value), memory
    return found


def _generator_error(method: str) -> ModelError:
    """Return the error for a forward pass that calls a method of the random generator."""
    return ModelError(
        f"forward sets the state of PyTorch's random generator ({method}), and a planned step runs no Python: set the "
        "state before the step"
    )


class _KeptGenerator:
    """PyTorch's default generator, whose state one thread must not set."""

    def __init__(self, generator: Any) -> None:
        self._generator, self._thread = generator, get_ident()

    def __getattr__(self, name: str) -> Any:
        if name in ("manual_seed", "seed", "set_state") and get_ident() == self._thread:
            raise _generator_error(name)
        return getattr(self._generator, name)


@contextmanager
def kept_generator() -> Iterator[None]:
    """Refuse a forward pass that sets the state of the random generator, as by `fork_rng`; a context manager.

    A planned step draws all numbers one after the other. Raises ModelError.
    """
    generator = torch().default_generator
    before = generator.initial_seed()
    with patch.object(torch().random, "default_generator", _KeptGenerator(generator)):
        yield
    if generator.initial_seed() != before:
        raise _generator_error("manual_seed")


def _call_with_views(network: Module, *args: Pytree, **keywords: Pytree) -> Pytree:
    """Call a module with a view in place of each parameter, so each parameter has a gradient node of its own."""
    views = {name: each.view_as(each) for name, each in network.named_parameters()}
    return torch().func.functional_call(network, views, args, keywords)


@contextmanager
def trace_context(judged: Module, arguments: StepArguments, results: LossResults, scaled: bool) -> Iterator[None]:
    """Provide arguments and results to a combined module while the module is traced.

    The module itself enters the caller's autocast for the forward pass and the loss. The body of this context runs
    without autocast, as an eager backward pass does. AOTAutograd traces the traced graph once more, operator by
    operator. Under autocast the second trace would cast operands again, such as the f32 matrix product inside
    `scaled_dot_product_attention`.
    """
    t = torch()
    enabled, dtype = t.is_autocast_enabled("cpu"), t.get_autocast_dtype("cpu")
    autocast = partial(t.autocast, "cpu", dtype, enabled, cache_enabled=False)  # the cache would keep traced tensors
    judged.__dict__["traced"] = (arguments, results, scaled, autocast)
    try:
        with t.autocast("cpu", enabled=False):
            yield
    finally:
        del judged.__dict__["traced"]
        judged.__dict__["apart"] = False


class LossResults:
    """The traced result of the loss: the structure, and the identity of tensors returned several times."""

    def __init__(self) -> None:
        self._spec: TreeSpec | None = None
        self._leaves: list[tuple[int | None, object]] = []

    def flatten_result(self, result: Pytree) -> tuple[Tensor, ...]:
        """Return the different tensors of a result, the loss first, all further tensors detached.

        Raises ModelError if the first leaf is not a tensor without axes and with a gradient.
        """
        t, pytree = torch(), require("torch.utils._pytree", extra="torch")
        leaves, self._spec = pytree.tree_flatten(result)
        if not leaves or not isinstance(leaves[0], t.Tensor) or leaves[0].dim() or not leaves[0].requires_grad:
            raise ModelError(
                "the loss returns no number with a gradient first: expected a tensor without axes, computed from "
                f"parameters that require gradients, got {_tensor_text(leaves[0]) if leaves else 'nothing'}"
            )
        different: list[Tensor] = []
        self._leaves = []
        for each in leaves:
            if not isinstance(each, t.Tensor):
                self._leaves.append((None, each))
                continue
            if not any(each is other for other in different):
                different.append(each)
            self._leaves.append((next(i for i, other in enumerate(different) if other is each), None))
        return (different[0], *(each.detach() for each in different[1:]))

    def restore_structure(self, tensors: Sequence[Tensor]) -> Pytree:
        """Return the structure of the loss's result, with `tensors` as the tensors."""
        pytree = require("torch.utils._pytree", extra="torch")
        return pytree.tree_unflatten([each if i is None else tensors[i] for i, each in self._leaves], self._spec)


def _tensor_text(value: object) -> str:
    """Return a short text about a value for an error message."""
    if not isinstance(value, torch().Tensor):
        return type(value).__name__
    return f"{value.dtype} {list(value.shape)}{'' if value.requires_grad else ' without a gradient'}"


def trace_step(judged: Module, tensors: Sequence[Tensor]) -> tuple[GraphModule, GraphSignature]:
    """Return forward and backward as one graph, and the graph's signature.

    Raises ModelError for a step without a trace.
    """
    fake_tensor = require("torch._subclasses.fake_tensor", extra="torch")
    try:
        # Restore the random generator: the trace draws numbers, the eager loop does not. Switch oneDNN off: its LSTM
        # operator keeps a workspace, and cannot be called again from its arguments.
        without_onednn = torch().backends.mkldnn.flags(enabled=False)
        drawn = torch().random.fork_rng(devices=[])
        changed = (silence_tracing(), keep_operators(), drawn, without_onednn, script_functions_in_python())
        with ExitStack() as stack, checkpoints_run_once(judged) as notes:
            for each in changed:
                stack.enter_context(each)
            try:
                traced = _export_joint(judged, tensors)
            except fake_tensor.DataDependentOutputException:
                # transformers' models ask `is_compiling`, and then take the branch for any content of a tensor
                with patch.object(torch().compiler, "_is_compiling_flag", True):
                    traced = _export_joint(judged, tensors)
        graph, signature = traced
    except SubletError:
        raise
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"the step cannot be traced: {_reason(error)}") from error
    notes.require_one_run(graph, signature)
    for name in signature.user_inputs_to_mutate.values():
        number = list(signature.user_inputs).index(name) + 1
        raise ModelError(
            f"the module or the loss writes into its argument (tensor {number} of the call), and a planned step leaves "
            "the caller's tensors as they are: write into a copy, as of `x.clone()`"
        )
    return graph, signature


def _reason(error: Exception) -> str:
    """Return the place of an error in the user's code, and the reason; what to do for errors known here."""
    fake_tensor = require("torch._subclasses.fake_tensor", extra="torch")
    reason = error_summary(error)
    if isinstance(error, fake_tensor.DataDependentOutputException):
        reason = (
            "the code reads a number from a tensor, but a planned step runs no Python. "
            'torch.compile(module, backend="sublet") divides the network at such a line'
        )
    elif any(text in str(error) for text in ("convert all Tensors to FakeTensors", "Mixing fake modes")):
        reason = (
            "the code reads a tensor that is no argument and no parameter, buffer or attribute of a module, such as a "
            "global tensor or one in a list or a cache: make the tensor an attribute of a module"
        )
    elif "requires gradients, and received a mutation" in str(error):
        reason = "the code writes into a parameter that requires a gradient"
    libraries = (PACKAGE, str(Path(str(torch().__file__)).parent))
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((*libraries, "<"))]  # no generated code
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}: {reason}" if own else reason


def _export_joint(judged: Module, tensors: Sequence[Tensor]) -> tuple[GraphModule, GraphSignature]:
    """Return forward and backward as traced by AOTAutograd."""
    whole = require("torch._functorch.aot_autograd", extra="torch").aot_export_module
    export = partial(whole, trace_joint=True, output_loss_index=0, decompositions=decompositions())
    traced: tuple[GraphModule, GraphSignature]
    with _without_gradients(judged, _unused_parameters(judged, tensors)):
        try:
            traced = export(judged, tensors)
        except AssertionError as error:  # two gradients are one node, as for the biases of an LSTM
            if "gradients_to_parameters" not in str(error):
                raise
            judged.__dict__["apart"] = True
            traced = export(judged, tensors)
    return traced


def _unused_parameters(judged: Module, tensors: Sequence[Tensor]) -> list[str]:
    """Return the names of parameters without influence on the loss; a tied parameter has several names.

    torch.optim leaves parameters without a gradient unchanged, so the step must not update these parameters.
    """
    t = torch()
    mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode(allow_non_fake_inputs=True)
    trained = [name for name, each in judged.named_parameters(remove_duplicate=False) if each.requires_grad]
    named = (*judged.named_parameters(remove_duplicate=False), *judged.named_buffers(remove_duplicate=False))
    fakes = {name: _distinct_fake(mode, each) for name, each in named}
    with mode:
        given = tuple(map(mode.from_tensor, tensors))
        loss, *_ = t.func.functional_call(judged, fakes, given, tie_weights=False)
        gradients = t.autograd.grad(loss, [fakes[name] for name in trained], allow_unused=True)
    return [name for name, gradient in zip(trained, gradients, strict=True) if gradient is None]


def _distinct_fake(mode: Any, tensor: Tensor) -> Tensor:
    """Return a new fake tensor for a parameter or buffer, distinct for each name of a tied parameter."""
    with mode:
        made: Tensor = torch().empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)


@contextmanager
def _without_gradients(judged: Module, names: Sequence[str]) -> Iterator[None]:
    """Give some names of parameters a parameter without gradient over the same memory, as a context manager."""
    parameters = dict(judged.named_parameters(remove_duplicate=False))
    places = [(judged.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], name) for name in names]
    try:
        for owner, last, name in places:
            owner._parameters[last] = torch().nn.Parameter(parameters[name].detach(), requires_grad=False)
        yield
    finally:
        for owner, last, name in places:
            owner._parameters[last] = parameters[name]


@contextmanager
def script_functions_in_python() -> Iterator[None]:
    """Run the Python function behind each function of TorchScript: the interpreter of TorchScript cannot be traced."""
    kind = torch().jit.ScriptFunction
    interpret = kind.__call__

    def call(self: Any, *args: Pytree, **keywords: Pytree) -> Pytree:
        function = getattr(self, "_torchdynamo_inline", None)  # none for a function from a file
        return interpret(self, *args, **keywords) if function is None else function(*args, **keywords)

    with patch.object(kind, "__call__", call):
        yield


@dataclass
class CheckpointCalls:
    """The modules and random draws within `torch.utils.checkpoint` during a trace.

    modules     the modules called within a checkpoint
    changed     the names of the buffers written within a checkpoint
    draws_anew  True if a checkpoint does not preserve the state of the random generator
    """

    judged: Module
    modules: list[Module] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    draws_anew: bool = False

    def require_one_run(self, graph: GraphModule, signature: GraphSignature) -> None:
        """Raise ModelError if a second run of a checkpointed function, as in the eager loop, would change the result.

        A second run changes the result through statistics updated by a module, and through random numbers drawn again.
        """
        for name in signature.buffers_to_mutate.values():
            owner = self.judged.get_submodule(name.rpartition(".")[0])
            if name in self.changed or any(owner is each for each in self.modules):
                raise ModelError(
                    f"{name} changes within torch.utils.checkpoint: the eager loop changes it twice. Take the change "
                    f"of {type(owner).__name__} out of the checkpoint, or call the module in evaluation"
                )
        random = torch().Tag.nondeterministic_seeded
        if self.draws_anew and any(random in getattr(node.target, "tags", ()) for node in graph.graph.nodes):
            raise ModelError(
                "checkpoint(preserve_rng_state=False) with random numbers: the eager loop draws them twice"
            )

    @contextmanager
    def record_calls(self, preserve: bool) -> Iterator[None]:
        """Record the modules called inside a checkpoint, as a context manager."""
        hooks = require("torch.nn.modules.module", extra="torch")
        handle = hooks.register_module_forward_pre_hook(lambda module, _: self.modules.append(module))
        self.draws_anew |= not preserve
        before = {name: (each, each._version) for name, each in self.judged.named_buffers()}
        try:
            yield
        finally:
            handle.remove()
            self.changed |= {name for name, (each, version) in before.items() if each._version != version}


@contextmanager
def checkpoints_run_once(judged: Module) -> Iterator[CheckpointCalls]:
    """Let `torch.utils.checkpoint` run its function once, as a context manager.

    The planner decides on rematerialization instead.
    """
    checkpoint = require("torch.utils.checkpoint", extra="torch")
    notes = CheckpointCalls(judged)

    def generator(function: Callable[..., Pytree], preserve: bool, *_: object, **__: object) -> Iterator[None]:
        with notes.record_calls(preserve):
            yield

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Pytree], preserve: bool, *args: Pytree) -> Pytree:
            with notes.record_calls(preserve):
                if any(isinstance(each, torch().Tensor) and each.requires_grad for each in args):
                    return function(*args)
                with torch().no_grad():  # as in the eager form: parameters inside get no gradient
                    return function(*args)

    with ExitStack() as stack:
        stack.enter_context(patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator))
        stack.enter_context(patch.object(checkpoint, "CheckpointFunction", Reentrant))
        yield notes
