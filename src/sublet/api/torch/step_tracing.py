"""Forward and backward of a step as one graph of ATen operators, traced as the eager loop would run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from sublet.api.torch.step_setting import PLAIN
from sublet.base.errors import ModelError, SubletError
from sublet.base.extras import require
from sublet.frontends.torch.exported import first_line, quietly
from sublet.frontends.torch.tensors import torch

Loss = Callable[..., Any]


class Arguments:
    """The arguments of a step: tensors, which are inputs of the plan, and plain values, which are part of its key.

    Raises ModelError for an argument that is neither, as deep as PyTorch's `pytree` looks into containers.
    """

    def __init__(self, inputs: Any, targets: Sequence[Any], keywords: Mapping[str, Any]) -> None:
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
    def setting(self) -> Any:
        """What a plan depends on besides tensors: the structure, and the plain values."""
        t = torch()
        plain = tuple(None if isinstance(each, t.Tensor) else (type(each), each) for each in self._leaves)
        return self._spec, plain

    def rebuilt(self, tensors: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return arguments of the module, arguments of the loss, and the module's keywords, with other tensors."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(each, torch().Tensor) else each for each in self._leaves]
        found: tuple[Any, Any, Any] = self._unflatten(leaves, self._spec)
        return found


def judged_module(module: Any, loss: Loss) -> Any:
    """Return the module with its loss as one module of tensors, to be traced within `traced_with`.

    Its results are the loss, then all other tensors that the loss returns, detached. Of a scaled step the last argument
    is the scale, and the scaled loss is the first result. Raises ModelError for what is no module.
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

        def forward(self, *tensors: Any) -> Any:
            arguments, results, scaled = self.__dict__["traced"]
            args, targets, keywords = arguments.rebuilt(tensors)
            called = self.network(*args, **keywords) if not self.apart else _with_views(self.network, args, keywords)
            loss, *others = results.flattened(self.loss(called, *targets))
            return (loss * tensors[-1], loss.detach(), *others) if scaled else (loss, *others)

    return Judged()


def _with_views(network: Any, args: Any, keywords: Any) -> Any:
    """Call a module with a view of each parameter in its place, so that each has a gradient of its own."""
    views = {name: each.view_as(each) for name, each in network.named_parameters()}
    return torch().func.functional_call(network, views, args, keywords)


@contextmanager
def traced_with(judged: Any, arguments: Arguments, results: Results, scaled: bool) -> Iterator[None]:
    """Tell a judged module how its tensors are arguments, and where the structure of its results goes."""
    judged.__dict__["traced"] = (arguments, results, scaled)
    try:
        yield
    finally:
        del judged.__dict__["traced"]
        judged.__dict__["apart"] = False


class Results:
    """What the loss returned when it was traced: its structure, and which of its tensors are one tensor."""

    def __init__(self) -> None:
        self._spec: Any = None
        self._leaves: list[Any] = []

    def flattened(self, result: Any) -> tuple[Any, ...]:
        """Return the different tensors of a result, the loss first, the others detached. Raises ModelError."""
        t, pytree = torch(), require("torch.utils._pytree", extra="torch")
        leaves, self._spec = pytree.tree_flatten(result)
        if not leaves or not isinstance(leaves[0], t.Tensor) or leaves[0].dim() or not leaves[0].requires_grad:
            raise ModelError(
                "the loss returns no number with a gradient first: expected a tensor without axes, computed from "
                f"parameters that require gradients, got {_described(leaves[0]) if leaves else 'nothing'}"
            )
        different: list[Any] = []
        self._leaves = []
        for each in leaves:
            if not isinstance(each, t.Tensor):
                self._leaves.append((None, each))
                continue
            if not any(each is other for other in different):
                different.append(each)
            self._leaves.append((next(i for i, other in enumerate(different) if other is each), None))
        return (different[0], *(each.detach() for each in different[1:]))

    def rebuilt(self, tensors: Sequence[Any]) -> Any:
        """Return the structure that the loss returned, with other tensors."""
        pytree = require("torch.utils._pytree", extra="torch")
        return pytree.tree_unflatten([each if i is None else tensors[i] for i, each in self._leaves], self._spec)


def _described(value: Any) -> str:
    if not isinstance(value, torch().Tensor):
        return type(value).__name__
    return f"{value.dtype} {list(value.shape)}{'' if value.requires_grad else ' without a gradient'}"


def trace(judged: Any, tensors: Sequence[Any]) -> tuple[Any, Any]:
    """Return forward and backward as one graph, and its signature. Raises ModelError for a step that has no trace."""
    aot = require("torch._functorch.aot_autograd", extra="torch")
    try:
        # Tracing draws random numbers, which the eager loop does not. oneDNN's LSTM is an operator that computes in
        # memory of its own, and cannot be called again by its arguments.
        without = torch().backends.mkldnn.flags(enabled=False)
        with quietly(), plain_checkpoints() as notes, torch().random.fork_rng(devices=[]), without:
            unused = _unused(judged, tensors)
            with _frozen(unused):
                try:
                    found = aot.aot_export_module(judged, tensors, trace_joint=True, output_loss_index=0)
                except AssertionError as error:  # two parameters whose gradients are one node, as two biases of an LSTM
                    if "gradients_to_parameters" not in str(error):
                        raise
                    judged.__dict__["apart"] = True
                    found = aot.aot_export_module(judged, tensors, trace_joint=True, output_loss_index=0)
        graph, signature = found
    except SubletError:
        raise
    except Exception as error:  # whatever tracing a program of somebody else's meets
        raise ModelError(f"the step cannot be traced: {first_line(error)}") from error
    notes.require_one_run(judged, graph, signature)
    return graph, signature


def _unused(judged: Any, tensors: Sequence[Any]) -> list[Any]:
    """The parameters that the loss does not depend on: torch.optim leaves them as they are."""
    t = torch()
    mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode(allow_non_fake_inputs=True)
    trained = {name: each for name, each in judged.named_parameters() if each.requires_grad}
    fakes = {name: mode.from_tensor(each) for name, each in (*judged.named_parameters(), *judged.named_buffers())}
    with mode:
        loss, *_ = t.func.functional_call(judged, fakes, tuple(map(mode.from_tensor, tensors)))
        with t.autocast("cpu", enabled=False):
            found = t.autograd.grad(loss, [fakes[name] for name in trained], allow_unused=True)
    return [each for each, gradient in zip(trained.values(), found, strict=True) if gradient is None]


@contextmanager
def _frozen(parameters: Sequence[Any]) -> Iterator[None]:
    """While they ask for no gradients."""
    for each in parameters:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in parameters:
            each.requires_grad_(True)


@dataclass
class Checkpoints:
    """What was called within `torch.utils.checkpoint` while a step was traced."""

    modules: list[Any] = field(default_factory=list)
    draws_anew: bool = False

    def require_one_run(self, judged: Any, graph: Any, signature: Any) -> None:
        """Raise ModelError where running the function of a checkpoint twice, as the eager loop does, changes more than
        running it once: for statistics that a module updates, and for random numbers that the second run draws anew."""
        for name in signature.buffers_to_mutate.values():
            owner = judged.get_submodule(name.rpartition(".")[0])
            if any(owner is each for each in self.modules):
                raise ModelError(
                    f"{name} changes within torch.utils.checkpoint: the eager loop changes it twice. Take "
                    f"{type(owner).__name__} out of the checkpoint, or call it in evaluation"
                )
        random = torch().Tag.nondeterministic_seeded
        if self.draws_anew and any(random in getattr(node.target, "tags", ()) for node in graph.graph.nodes):
            raise ModelError(
                "checkpoint(preserve_rng_state=False) with random numbers: the eager loop draws them twice"
            )

    @contextmanager
    def within(self, preserve: bool) -> Iterator[None]:
        """Note the modules that are called."""
        hooks = require("torch.nn.modules.module", extra="torch")
        handle = hooks.register_module_forward_pre_hook(lambda module, _: self.modules.append(module))
        self.draws_anew |= not preserve
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def plain_checkpoints() -> Iterator[Checkpoints]:
    """Let `torch.utils.checkpoint` run its function once: the planner decides what is computed again."""
    checkpoint = require("torch.utils.checkpoint", extra="torch")
    notes = Checkpoints()

    def generator(function: Any, preserve: bool, *_: Any, **__: Any) -> Iterator[None]:
        with notes.within(preserve):
            yield

    class Reentrant:
        @staticmethod
        def apply(function: Any, preserve: bool, *args: Any) -> Any:
            with notes.within(preserve):
                if any(isinstance(each, torch().Tensor) and each.requires_grad for each in args):
                    return function(*args)
                with torch().no_grad():  # the eager form gives parameters within no gradient then
                    return function(*args)

    with ExitStack() as stack:
        stack.enter_context(patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator))
        stack.enter_context(patch.object(checkpoint, "CheckpointFunction", Reentrant))
        yield notes
