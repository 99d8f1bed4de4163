"""The dynamic graph: `d = DynamicGraph(); x = d.tensor(array); y = nn.relu(x @ w)` computes `y` at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import numpy as np

from sublet.base.errors import GradientError, RunError, SpecError
from sublet.base.interrupts import renew_in_children
from sublet.base.tensor import DType
from sublet.dynamic import specialized_commands
from sublet.dynamic.deferred_block import DeferredBlock
from sublet.dynamic.eager_executor import EagerExecutor
from sublet.dynamic.exclusive_access import ExclusiveAccess, exclusive_context, exclusive_method
from sublet.dynamic.jit_call import JitCall
from sublet.dynamic.jit_function import JitFunction, PlanCache
from sublet.dynamic.parameter_registry import DynamicWeights, ParameterRegistry
from sublet.dynamic.record_gradients import RecordedValue, gradients
from sublet.dynamic.tensor import EagerTensor, NumberTensor, Parameter, require_own_tensors
from sublet.dynamic.tensor_storage import TensorStorage
from sublet.ir.graph import Graph as Plain
from sublet.ir.model import Model
from sublet.nn.control import ControlFlowWriter
from sublet.nn.graph import KEY_STEP_PER_RUN
from sublet.nn.source_location import NamedModule, at_line
from sublet.nn.tensor import Operand, Tensor, describe, dtype_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.rules import FLOATS
from sublet.runtime.backends import AUTO, backend_names, backends_of
from sublet.runtime.backends.custom_commands import CustomCommands
from sublet.runtime.kernel import Backend
from sublet.training.optimizers import Optimizer

COMMAND_BACKENDS = ("torch", "reference")
"""Backends with kernels for commands of `sublet.nn`."""


class DynamicGraph(ControlFlowWriter):
    """A graph computing each command at once, and recording commands for gradients [NNC: dynamic graph].

    Commands, layers, operators and optimisers are shared with `sublet.Graph`. A tensor can be observed immediately:
    `float(loss)`, `if x.sum() > 0:`, `print(x)`, `x.numpy()`. The memory of a tensor is freed when neither the user
    holds the tensor nor a gradient may need it. The body of a loop or branch is first written, and computed as a single
    command when the `with` block ends. `jit` records the commands of a function, and computes later calls by a checked
    plan.

    backend   the sources of kernels in order of preference, as for `sublet.compile`; "auto" uses only backends for
              commands of `sublet.nn`
    plans     the maximum number of plans kept for jit functions; beyond, the least recently used plan is dropped
    training  True for layers and modules in training mode; see also `evaluation`

    One thread at a time may use the graph. A second thread gets a RunError while the first computes, or is in a jit
    function, a scope or a loop.
    """

    def __init__(
        self, backend: str | Backend | Sequence[str | Backend] = AUTO, *, plans: int = 32, training: bool = True
    ) -> None:
        self.training = training
        self.exclusive_access = ExclusiveAccess()
        names = [name for name in backend_names(backend) if backend != AUTO or name in COMMAND_BACKENDS]
        self.backends = backends_of(names, Model(Plain("eager", (), (), ()))) if names else []
        quick = (
            [specialized_commands.SmallTensors()]
            if backend == AUTO and specialized_commands.has_context_errors()
            else []
        )
        self._eager = EagerExecutor(self, [CustomCommands(), *self.backends], quick)
        self._declared = ParameterRegistry(self, self._eager)
        self._plans = PlanCache(plans)
        self.calling: JitCall | DeferredBlock | None = None
        renew_in_children(self)

    def __enter__(self) -> DynamicGraph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DynamicGraph: {len(self._declared.all)} parameters and states, {self.used_bytes:,} bytes in use>"

    def close(self) -> None:
        """Free the memory of the graph. Existing tensors can still be observed, but computing raises SpecError."""
        self._eager.close()
        self._plans.clear()

    def jit(self, function: Callable[..., Any]) -> JitFunction:
        """Return a jit function: later calls with equal steps are computed by a checked plan. A decorator.

        The first call computes command by command and records the steps. In every later call Python still runs the
        function, but commands are deferred and only matched with the recorded steps. When the user observes a value,
        and at the end of the call, one plan in one arena computes the deferred values. A step without a match is
        computed at once, with all deferred values, and the new steps are recorded as well.

        Parameters updated by a call change in place at the end of the call; after an exception all parameters have the
        content from before the call. Gradients must be requested inside the function: the record of a call ends with
        the call.
        """
        return JitFunction(self, function, self._plans)

    @property
    def used_bytes(self) -> int:
        """The bytes of tensors in use: tensors held by the user, and tensors saved for gradients."""
        return self._eager.pool.used_bytes

    @property
    def free_bytes(self) -> int:
        """The bytes of freed tensors, kept for later tensors."""
        return self._eager.pool.free_bytes

    @exclusive_method
    def tensor(self, content: Any, dtype: DType | str | None = None) -> EagerTensor:
        """Return a tensor with a copy of an array or a number. `dtype` defaults to the type of the content.

        Raises SpecError for a closed graph, and for content of an unsupported type.
        """
        return self._eager.tensor_from_array(content, None if dtype is None else dtype_of(dtype))

    @exclusive_method
    def constant(self, content: Any, dtype: DType | str | None = None) -> EagerTensor:
        """Return a tensor with a copy of an array or a number, as `tensor`.

        In a jit function a number may change from call to call: a changed number becomes an input of the plan.
        """
        kind = None if dtype is None else dtype_of(dtype)
        if self.calling is None or not isinstance(content, bool | int | float | np.generic):
            return self._eager.tensor_from_array(content, kind)
        like = self._eager.tensor_from_array(content, kind)
        return NumberTensor(self, like, content)

    @exclusive_method
    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Parameter:
        """Return the parameter `name` in the open scopes; create the parameter at the first request.

        shape    the extents; by default those of `initial`
        dtype    the element type
        initial  an array, a number for every element, or a function drawing the content, as `layers.normal(0.02)`; used
                 only for a new parameter

        Raises SpecError for a new parameter without `initial`, and for a known parameter of another shape or type.
        """
        return self._declared.parameter(name, shape, dtype, initial, trained=True)

    @exclusive_method
    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Parameter:
        """Return the state `name` in the open scopes: a parameter excluded from training.

        The parameters and errors are those of `parameter`; by default a state is a single 0.
        """
        return self._declared.parameter(name, shape, dtype, initial, trained=False)

    @property
    def parameters(self) -> list[EagerTensor]:
        """The floating-point parameters in order of creation, without states."""
        return [one for one in self._declared.all.values() if one.trained and one.dtype in FLOATS]

    @property
    def weights(self) -> DynamicWeights:
        """All parameters and states by name, to read, set and save; see `DynamicWeights`."""
        return DynamicWeights(self, self._declared)

    @exclusive_method
    def key(self, seed: int = 0) -> EagerTensor:
        """Return a key of random numbers, an i64 scalar, different in each call.

        The key comes from a state named "key", with the initial content `seed`.
        """
        with (
            self._declared.restart_numbering(),
            self.calling.outside_block() if isinstance(self.calling, DeferredBlock) else nullcontext(),
        ):
            state = self.state("key", (), DType.I64, seed)
            now = self.detach(state)
            self.update(state, state + KEY_STEP_PER_RUN)
        return now

    @exclusive_method
    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[EagerTensor, ...]:
        """Return the outputs of a command, such as "nn.relu". Numbers and arrays are converted to tensors.

        Raises SpecError, beginning with the user's line, for inputs not accepted by the command; KernelError for a
        failed kernel.
        """
        computing: Any = self.calling or self._eager
        outputs: tuple[EagerTensor, ...] = computing.apply(op, inputs, attrs)
        return outputs

    @exclusive_method
    def update(self, target: Tensor, source: Tensor) -> None:
        """Assign the content of `source` to a parameter or state.

        Raises SpecError for a target other than a parameter or state, for a source of another shape or type, and inside
        a loop or branch.
        """
        self._require_outside_block("a parameter is updated")
        source = self.constant(source) if isinstance(source, np.ndarray) else source
        into, value = require_own_tensors(self, (target, source))
        if not isinstance(into, Parameter):
            raise SpecError(at_line(f"{describe(into)} is not a parameter or state: only these can be updated"))
        if into._kind is not value._kind:
            raise SpecError(
                at_line(
                    f"{into.name!r}, {into._kind.spec}, cannot be updated with {describe(value)}: shape or type differs"
                )
            )
        if isinstance(self.calling, JitCall):
            self.calling.update(into, value)
        else:
            self._eager.require_open()
            into.take(self._storage(value))

    @exclusive_method
    def detach(self, tensor: EagerTensor) -> EagerTensor:
        """Return a tensor of the same elements without gradients; the function of `tensor.detach()`."""
        if isinstance(self.calling, DeferredBlock):
            return self.apply(STOP_GRADIENT, tensor)[0]
        (tensor,) = require_own_tensors(self, (tensor,))
        if isinstance(self.calling, JitCall):
            return self.calling.detach(tensor)
        return EagerTensor(self, tensor._kind, self._storage(tensor))

    def stop_gradient(self, tensor: EagerTensor) -> EagerTensor:
        """Return a tensor of the same elements without gradients, as `tensor.detach()`."""
        return self.detach(tensor)

    @exclusive_context
    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Record nothing inside `with`: no gradient passes through commands inside."""
        before, self._eager.recording = self._eager.recording, False
        try:
            yield
        finally:
            self._eager.recording = before

    @exclusive_method
    def gradients(self, of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None) -> list[Tensor]:
        """Return the gradients of `of` with respect to each tensor in `wrt`, with the shapes and types of `wrt`.

        `seed` is the gradient of `of` itself, 1 everywhere by default. The gradients are recorded too, for gradients of
        gradients, except in `no_grad`. The function of `sublet.gradients` for a dynamic graph.

        Raises GradientError for a seed of another shape or type, and under the conditions of `sublet.gradients`;
        SpecError inside a loop or branch.
        """
        self._require_outside_block("gradients are computed")
        target, *others = require_own_tensors(self, (of, *wrt))
        seed = self.constant(seed) if isinstance(seed, np.ndarray) else seed
        start = None if seed is None else require_own_tensors(self, (seed,))[0]
        if start is not None and start._kind is not target._kind:
            raise GradientError(at_line(f"the seed {describe(seed)} must have the shape and type of {describe(of)}"))
        self._eager.require_open()
        if isinstance(self.calling, JitCall):
            return list(self.calling.gradients(target, others, start))
        at = None if start is None else self._recorded_value(start)
        results = gradients(
            self._eager, self._recorded_value(target), [self._recorded_value(one) for one in others], at, None
        )
        tensors: list[Tensor] = []
        for held in results:
            held.symbol.held = True
            tensors.append(EagerTensor(self, held.symbol.kind, held.storage, held.symbol))
        return tensors

    @exclusive_method
    def minimize(self, loss: Tensor, optimizer: Optimizer, parameters: Sequence[Tensor] | None = None) -> None:
        """Let `optimizer` update parameters, by default all parameters of the graph, by the gradients of `loss`.

        The state of the optimiser is created at the first use, in a scope "step".

        Raises SpecError for an object other than an optimiser, GradientError for a loss with axes, and without
        parameters.
        """
        if isinstance(optimizer, type) or not hasattr(optimizer, "write"):
            raise SpecError(at_line(f"{optimizer!r} is not an optimiser: pass one like sublet.SGD(0.1)"))
        chosen = self.parameters if parameters is None else require_own_tensors(self, list(parameters))
        if require_own_tensors(self, (loss,))[0].shape != ():
            raise GradientError(at_line(f"the loss is {describe(loss)}: expected one number, such as its mean"))
        if not chosen:
            raise GradientError(at_line("there are no parameters to train"))
        with self.no_grad(), self._declared.restart_numbering(), self.scope("step"):
            optimizer.write(self, chosen, self.gradients(loss, chosen))

    @exclusive_context
    def scope(self, name: str) -> AbstractContextManager[None]:
        """Begin names inside `with` with `name/`. A scope entered again finds its parameters."""
        return self._declared.scope(name)

    @exclusive_context
    def module(self, module: NamedModule) -> AbstractContextManager[None]:
        """Begin names inside `with` with the scope of a module, equal in all calls of the module."""
        return self._declared.module(module)

    @property
    def prior_calls(self) -> int:
        """The number of earlier calls of the running module: always 0, as each call draws another key."""
        return 0

    def after(self, target: Tensor) -> Tensor:
        """Return `target` itself: the content is the content after all updates, as updates happen at once."""
        return target

    def unused_scope_name(self, name: str) -> str:
        """Return a scope name based on `name`, not used since the enclosing scope was entered."""
        return self._declared.unused_scope_name(name)

    @property
    def prefix(self) -> str:
        """The prefix of new names: the open scopes."""
        return self._declared.prefix

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Set evaluation mode inside `with`: normalise by running statistics, drop nothing."""
        with self.exclusive_access.held_inside(), super().evaluation():
            yield

    def renew_in_child(self) -> None:
        """Close the graph in the child of a fork if a thread of the parent was inside.

        The call of the thread is incomplete in the child.
        """
        if self.exclusive_access.release_in_child():
            self.calling = None
            self.close()

    def _level_stack(self) -> DeferredBlock:
        """Return the stack of levels for the next loop or branch: the open block, or a new block."""
        return self.calling if isinstance(self.calling, DeferredBlock) else DeferredBlock(self)

    def _require_outside_block(self, what: str) -> None:
        """Raise SpecError inside a loop or branch: `what` must be done outside."""
        if isinstance(self.calling, DeferredBlock):
            self.calling.require_root(what)

    def materialize(self, tensor: EagerTensor) -> TensorStorage:
        """Return the storage of a tensor observed by the user; a deferred tensor is computed first."""
        if self.calling is None or (type(tensor) is EagerTensor and tensor._call is None):
            return self._storage(tensor)
        with self.exclusive_access.held_inside():
            return self._storage(tensor) if self.calling is None else self.calling.materialize(tensor)

    @staticmethod
    def _storage(tensor: EagerTensor) -> TensorStorage:
        """Return the storage of a computed tensor. Raises RunError for a tensor of a failed call."""
        if tensor._storage is None:
            raise RunError(at_line("the tensor belongs to a call that failed, and has no content"))
        return tensor._storage

    def _recorded_value(self, tensor: EagerTensor) -> RecordedValue:
        """Return the symbol and storage of a tensor."""
        return RecordedValue(tensor.symbol, self._storage(tensor))
