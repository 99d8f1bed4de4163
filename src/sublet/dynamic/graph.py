"""The dynamic graph: `d = DynamicGraph(); x = d.tensor(array); y = nn.relu(x @ w)`, and y is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import numpy as np

from sublet.base.errors import GradientError, RunError, SpecError
from sublet.base.forks import renew_in_children
from sublet.base.tensor import DType
from sublet.dynamic.block import Block
from sublet.dynamic.call import Call
from sublet.dynamic.declared import Declared
from sublet.dynamic.eager import Eager
from sublet.dynamic.gradients import Held, gradients
from sublet.dynamic.presence import Presence, by_one_thread, holding
from sublet.dynamic.remembered import Plans, Remembered
from sublet.dynamic.storage import Storage
from sublet.dynamic.tensor import EagerTensor, NumberTensor, Parameter, tensors_of
from sublet.dynamic.weights import Weights
from sublet.ir.graph import Graph as Plain
from sublet.ir.model import Model
from sublet.nn.controlled import Controlled
from sublet.nn.graph import RUN
from sublet.nn.lines import at_line
from sublet.nn.naming import Named
from sublet.nn.optimizers import Optimizer
from sublet.nn.tensor import Operand, Tensor, dtype_of, told
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.shapes import FLOATS
from sublet.runtime.backends import small
from sublet.runtime.backends.by_name import AUTO, backends_of, names_of
from sublet.runtime.backends.commands import Commands
from sublet.runtime.kernel import Backend

NN_BACKENDS = ("torch", "reference")
"""Those that compute commands."""


class DynamicGraph(Controlled):
    """Computes each command at once, and records what gradients may ask for [NNC: dynamic graph].

    Commands, layers, operators and optimisers are those of `sublet.Graph`. A tensor can be looked at as soon as it is
    made: `float(loss)`, `if x.sum() > 0:`, `print(x)`, `x.numpy()`. What nobody holds and no gradient needs is freed.
    The body of a loop or branch is written, not computed: it is one command, computed when it is over.
    `jit` remembers what a function does, and does it by a proven plan from then on.
    `backend` is as for `sublet.compile`; `plans` is the number of plans that are kept. `training` is what layers and
    modules ask for that differ in use; see `evaluation` too. One thread at a time may use it: a second
    one gets a RunError while the first computes, or is in a remembered function, a scope or a loop.
    """

    def __init__(
        self, backend: str | Backend | Sequence[str | Backend] = AUTO, *, plans: int = 32, training: bool = True
    ) -> None:
        self.training = training
        self.presence = Presence()
        names = [name for name in names_of(backend) if backend != AUTO or name in NN_BACKENDS]
        self.backends = backends_of(names, Model(Plain("eager", (), (), ()))) if names else []
        quick = [small.Small()] if backend == AUTO and small.available() else []
        self._eager = Eager(self, [Commands(), *self.backends], quick)
        self._declared = Declared(self, self._eager)
        self._plans = Plans(plans)
        self.calling: Call | Block | None = None
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
        """Give back the memory of the graph. Its tensors can still be looked at, but not computed with."""
        self._eager.close()
        self._plans.clear()

    def jit(self, function: Callable[..., Any]) -> Remembered:
        """A decorator: what the function does is remembered, and done by a proven plan the next time.

        The first call computes command by command. From then on Python runs again in each call, but what it does is
        only held against what was seen before; it is computed by one plan in one arena, when a value is looked at
        or at the end. Where Python does something else, that is computed at once, and remembered too.
        Parameters that a call updates are updated in place when it ends; when it raises they hold what they held
        before. Gradients are asked for inside: the record of a call ends with it.
        """
        return Remembered(self, function, self._plans)

    @property
    def used_bytes(self) -> int:
        """Bytes that tensors take now: those the user holds, and those that gradients may need."""
        return self._eager.pool.used_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that tensors took before, kept for the next ones."""
        return self._eager.pool.free_bytes

    @by_one_thread
    def tensor(self, content: Any, dtype: DType | str | None = None) -> EagerTensor:
        """A tensor with a copy of an array, or of a number."""
        return self._eager.made(content, None if dtype is None else dtype_of(dtype))

    @by_one_thread
    def constant(self, content: Any, dtype: DType | str | None = None) -> EagerTensor:
        """The same as `tensor`. A number may change from call to call of a remembered function."""
        kind = None if dtype is None else dtype_of(dtype)
        if self.calling is None or not isinstance(content, bool | int | float | np.generic):
            return self._eager.made(content, kind)
        like = self._eager.made(content, kind)
        return NumberTensor(self, like, content)

    @by_one_thread
    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Parameter:
        """The parameter of this name in the scopes that are open: made when it is asked for first, and the same later.

        `initial` is an array, a number for every element, or a function that draws it, as `layers.normal(0.02)`; it
        is looked at only when the parameter is made.
        """
        return self._declared.parameter(name, shape, dtype, initial, trained=True)

    @by_one_thread
    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Parameter:
        """The state of this name: like a parameter, but not among those that are trained."""
        return self._declared.parameter(name, shape, dtype, initial, trained=False)

    @property
    def parameters(self) -> list[EagerTensor]:
        """The floating-point parameters in the order they were made, without states."""
        return [one for one in self._declared.all.values() if one.trained and one.dtype in FLOATS]

    @property
    def weights(self) -> Weights:
        """All parameters and states by name: to read, to set, and to save; see `Weights`."""
        return Weights(self, self._declared)

    @by_one_thread
    def key(self, seed: int = 0) -> EagerTensor:
        """A key of random numbers, another one each time: a state of the name "key", which starts as `seed`."""
        with self._declared.anew(), self.calling.aside() if isinstance(self.calling, Block) else nullcontext():
            state = self.state("key", (), DType.I64, seed)
            now = self.detached(state)
            self.update(state, state + RUN)
        return now

    @by_one_thread
    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[EagerTensor, ...]:
        """The outputs of a command, as "nn.relu". Numbers and arrays among the inputs become tensors.

        Raises SpecError, which begins with the user's line, when the command does not take such inputs, KernelError
        when it fails.
        """
        computing: Any = self.calling or self._eager
        made: tuple[EagerTensor, ...] = computing.apply(op, inputs, attrs)
        return made

    @by_one_thread
    def update(self, target: Tensor, source: Tensor) -> None:
        """Let a parameter or state hold the content of `source` from now on."""
        self._outside("a parameter is updated")
        into, value = tensors_of(self, (target, source))
        if not isinstance(into, Parameter):
            raise SpecError(at_line(f"{told(into)} is no parameter or state: only these are updated"))
        if into._kind is not value._kind:
            raise SpecError(at_line(f"{into.name!r}, {into._kind.spec}, cannot take the content of {told(value)}"))
        if isinstance(self.calling, Call):
            self.calling.update(into, value)
        else:
            self._eager.require_open()
            into.take(self._storage(value))

    @by_one_thread
    def detached(self, tensor: EagerTensor) -> EagerTensor:
        """The same elements, through which no gradient goes; `tensor.detach()` is this."""
        if isinstance(self.calling, Block):
            return self.apply(STOP_GRADIENT, tensor)[0]
        (tensor,) = tensors_of(self, (tensor,))
        if isinstance(self.calling, Call):
            return self.calling.detached(tensor)
        return EagerTensor(self, tensor._kind, self._storage(tensor))

    def stop_gradient(self, tensor: EagerTensor) -> EagerTensor:
        """The same as `tensor.detach()`."""
        return self.detached(tensor)

    @holding
    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Inside, nothing is recorded: no gradient goes through what is computed there."""
        before, self._eager.recording = self._eager.recording, False
        try:
            yield
        finally:
            self._eager.recording = before

    @by_one_thread
    def gradients(self, of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None) -> list[Tensor]:
        """What `sublet.gradients` gives: the gradients of a tensor by others. They are recorded too, for gradients of
        gradients, unless they are asked for in `no_grad`."""
        self._outside("gradients are asked for")
        target, *others = tensors_of(self, (of, *wrt))
        start = None if seed is None else tensors_of(self, (seed,))[0]
        if start is not None and start._kind is not target._kind:
            raise GradientError(at_line(f"the seed {told(seed)} must be like {told(of)}"))
        self._eager.require_open()
        if isinstance(self.calling, Call):
            return list(self.calling.gradients(target, others, start))
        at = None if start is None else self._held(start)
        found = gradients(self._eager, self._held(target), [self._held(one) for one in others], at, None)
        made: list[Tensor] = []
        for held in found:
            held.symbol.held = True
            made.append(EagerTensor(self, held.symbol.kind, held.storage, held.symbol))
        return made

    @by_one_thread
    def minimize(self, loss: Tensor, optimizer: Optimizer, parameters: Sequence[Tensor] | None = None) -> None:
        """Let `optimizer` update the parameters, all there are unless said, by the gradients of `loss`.

        Its state is made when it is needed first, in a scope "step".
        """
        if isinstance(optimizer, type) or not hasattr(optimizer, "write"):
            raise SpecError(at_line(f"{optimizer!r} is no optimiser: give one like sublet.SGD(0.1)"))
        chosen = self.parameters if parameters is None else tensors_of(self, list(parameters))
        if tensors_of(self, (loss,))[0].shape != ():
            raise GradientError(at_line(f"the loss is {told(loss)}: it must be one number; take its mean"))
        if not chosen:
            raise GradientError(at_line("there are no parameters to train"))
        with self.no_grad(), self._declared.anew(), self.scope("step"):
            optimizer.write(self, chosen, self.gradients(loss, chosen))

    @holding
    def scope(self, name: str) -> AbstractContextManager[None]:
        """Names made inside begin with `name/`. Entered again, it finds the parameters that were made in it."""
        return self._declared.scope(name)

    @holding
    def module(self, module: Named) -> AbstractContextManager[None]:
        """Around what a module computes: names begin with its scope, the same in every call."""
        return self._declared.module(module)

    @property
    def repeated(self) -> int:
        """0: every call of a module has a key of random numbers of its own."""
        return 0

    def after(self, target: Tensor) -> Tensor:
        """What a parameter or state holds: itself, for updates happen at once."""
        return target

    def unused(self, name: str) -> str:
        """A name for a scope that was not open yet since the one around it was entered."""
        return self._declared.unused(name)

    @property
    def prefix(self) -> str:
        """What names begin with here: the scopes that are open."""
        return self._declared.prefix

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Inside, layers are as in use: running statistics normalise, nothing is dropped."""
        with self.presence.held(), super().evaluation():
            yield

    def renew_in_child(self) -> None:
        """Close the graph in the child of a fork if another thread was in the graph: half of its call is left."""
        if self.presence.renewed():
            self.calling = None
            self.close()

    def _written(self) -> Block:
        """What the next loop or branch is written in: the one around it, or one of its own."""
        return self.calling if isinstance(self.calling, Block) else Block(self)

    def _outside(self, what: str) -> None:
        if isinstance(self.calling, Block):
            self.calling.require_root(what)

    def observed(self, tensor: EagerTensor) -> Storage:
        """What a tensor holds, for the user to see."""
        if self.calling is None or (type(tensor) is EagerTensor and tensor._call is None):
            return self._storage(tensor)
        with self.presence.held():
            return self._storage(tensor) if self.calling is None else self.calling.looked_at(tensor)

    @staticmethod
    def _storage(tensor: EagerTensor) -> Storage:
        if tensor._storage is None:
            raise RunError(at_line("the tensor was made in a call that failed, and never computed"))
        return tensor._storage

    def _held(self, tensor: EagerTensor) -> Held:
        return Held(tensor.symbol, self._storage(tensor))
