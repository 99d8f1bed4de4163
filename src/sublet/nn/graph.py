"""Construction of symbolic graphs: `g = Graph(); x = g.input("x", (8, 16)); y = nn.relu(x @ w + b); g.output("y", y)`.

Every node remembers the line of the user's program, and every error message begins with the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import index as integer
from typing import Any, Protocol

import numpy as np

from sublet.base.arrays import array_of, has_memory
from sublet.base.errors import RunError, SpecError, SubletError
from sublet.base.names import NameGenerator
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.ir import graph as ir
from sublet.ir.graph import Value
from sublet.ir.model import Constant, Model
from sublet.nn.control import ControlFlowWriter
from sublet.nn.level_stack import LevelStack
from sublet.nn.source_location import Array, ArrayContent, NamedModule, RandomContent, ScopeNames, at_line
from sublet.nn.tensor import Operand, Tensor, describe, dtype_of
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.rules import FLOATS
from sublet.ops.verify import verify

DTYPE_OF_NUMPY = {array: dtype for dtype, array in NUMPY.items()}
"""Sublet's types by NumPy's types."""

MAX_LITERAL_ELEMENTS = 16
"""Maximum elements of a literal; a larger constant becomes a weight with content."""


KEY_STEP_PER_RUN = 1 << 32
"""Increment of the random key a run: the key plus the number of an iteration never equals the key of another run."""


class Graph(ControlFlowWriter):
    """A graph under construction [NNC: symbolic graph].

    `training` selects the mode of layers and modules depending on the mode: normalisation, dropout; see also
    `evaluation`. All methods raise SpecError, beginning with the user's line, for bad arguments.
    """

    def __init__(self, name: str = "graph", *, training: bool = True) -> None:
        self.name = name
        self.training = training
        names = NameGenerator()
        self._literals = LiteralPool(names)
        self._root = Emitter(names, self._literals)
        self._levels = LevelStack(self, self._root)
        self._inputs: list[Value] = []
        self._weights: list[Value] = []
        self._trainable: list[Value] = []
        self._contents: dict[str, Constant] = {}
        self._outputs: dict[str, Value] = {}
        self._updates: dict[str, tuple[Value, Value]] = {}
        self._updatable: dict[str, Value] = {}  # inputs, parameters and states by name
        self._naming = ScopeNames()
        self._freed: set[str] = set()  # names of undone declarations, free again
        self._key: Tensor | None = None

    def value_of(self, tensor: Tensor) -> Value:
        """Return the value of a tensor. Raises SpecError for a tensor of another graph, or of a closed level."""
        return self._levels.value_of(tensor)

    def tensor_of(self, value: Value) -> Tensor:
        """Return the tensor of a value made by `emit` at the innermost open level."""
        return self._levels.new_tensor(value)

    @property
    def emit(self) -> Emitter:
        """The emitter appending nodes at the innermost open level."""
        return self._levels.emit

    @property
    def enclosing_emitters(self) -> list[Emitter]:
        """The emitters of the levels around the innermost open level, from the root down."""
        return [level.emit for level in self._levels.open_levels[:-1]]

    @property
    def prefix(self) -> str:
        """The prefix of new names: the open scopes."""
        return self.emit.scope

    def input(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32") -> Tensor:
        """Declare a tensor given by the caller at each run.

        Raises SpecError for a bad shape or type, for a taken name, and inside a loop or branch.
        """
        self._levels.require_root(f"the input {name!r} is declared")
        value = self._declare_value(name, spec_for(shape, dtype))
        self._inputs.append(value)
        return self._levels.new_tensor(value)

    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Tensor:
        """Declare a trainable tensor, a weight known before the run; one weight serves all iterations of a loop.

        `initial` is an array, a number for every element, or a function drawing the array, as `layers.normal(0.02)`.
        Without `initial`, the caller gives the content when the graph is compiled. Without `shape`, the shape is that
        of `initial`. A module called again on the graph receives the parameter of the first call. Raises SpecError for
        a bad shape or type, a taken name, or an initial array of another shape.
        """
        if shape is None:
            shape = () if initial is None or callable(initial) else np.shape(initial)
        spec = spec_for(shape, dtype)
        earlier = self._earlier_declaration(name, spec, trained=True)
        if earlier is not None:
            return earlier
        content = None if initial is None else self._initial_content(name, spec, initial)
        value = self._declare_value(name, spec)
        if content is not None:
            self._contents[value.name] = content
        self._weights.append(value)
        self._trainable.append(value)
        return self._levels.new_tensor(value, self._levels.open_levels[0])

    @property
    def parameters(self) -> list[Tensor]:
        """The floating-point parameters in order of declaration, without states and constants."""
        return [
            self._levels.new_tensor(value, self._levels.open_levels[0])
            for value in self._trainable
            if spec_of(value).dtype in FLOATS
        ]

    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Tensor:
        """Declare a tensor whose content is kept from run to run without training; `update` changes the content.

        `initial` is as for a parameter. Raises SpecError for a bad shape or type, a taken name, or an initial array of
        another shape.
        """
        spec = spec_for(shape, dtype)
        earlier = self._earlier_declaration(name, spec, trained=False)
        if earlier is not None:
            return earlier
        content = self._initial_content(name, spec, initial)
        return self._add_state(self._declare_value(name, spec), content)

    def key(self, seed: int = 0) -> Tensor:
        """Return the key of random numbers, an i64 scalar: a state "key", starting as `seed`, different in each run.

        In a loop, `g.key() + loop.counter` differs in each iteration.
        """
        if self._key is None:
            value = self._claim_name("key", TensorSpec(DType.I64, ()))
            self._key = self._add_state(value, ArrayContent(np.array(seed, np.int64)))
            after = self._root("nn.add", value, self._literals.constant_of((KEY_STEP_PER_RUN,), value.spec))  # type: ignore[arg-type]
            self._updates[value.name] = (value, after)
        return self._key

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """Return a constant tensor with the content of a number or an array.

        Raises SpecError for a content without a matching type, and for a number not representable in `dtype`.
        """
        array = as_array(content, None if dtype is None else dtype_of(dtype))
        spec = TensorSpec(DTYPE_OF_NUMPY[array.dtype], array.shape)
        if array.size <= MAX_LITERAL_ELEMENTS:
            value = self._literals.constant_of(tuple(array.reshape(-1).tolist()), spec)
            return self._levels.new_tensor(value, self._levels.open_levels[0])
        value = Value(self._root.names.fresh("constant"), spec)
        return self._add_state(value, ArrayContent(np.array(array, order="C")))

    def output(self, name: str, tensor: Tensor) -> None:
        """Return `tensor` from each run as the output `name`; an updated tensor returns the content before the update.

        Raises SpecError for a name already in use, and inside a loop or branch.
        """
        value = self._levels.value_of(tensor)
        self._levels.require_root("an output is declared")
        if not isinstance(name, str):
            raise SpecError(at_line(f"{name!r} is not the name of an output: call g.output(name, tensor)"))
        if name in self._outputs:
            raise SpecError(at_line(f"there is already an output {name!r}: use another name"))
        self._outputs[name] = value

    def update(self, target: Tensor, source: Tensor) -> None:
        """Copy `source` to `target`, a parameter, state or input, at the end of each run; in place where possible.

        Raises SpecError for another kind of target, a source of another shape or type, a second update of a target, and
        inside a loop or branch.
        """
        into, value = self._levels.value_of(target), self._levels.value_of(source)
        if into.name not in self._updatable:
            raise SpecError(
                at_line(f"{describe(target)} is not a parameter, state or input: only these can be updated")
            )
        if into.spec != value.spec:
            raise SpecError(
                at_line(f"{describe(target)} cannot be updated with {describe(source)}: shape or type differs")
            )
        if into.name in self._updates and not self._naming.is_repeated_call:
            raise SpecError(at_line(f"{describe(target)} is updated twice"))
        self._levels.require_root("a parameter is updated")
        self._updates[into.name] = (into, value)

    def after(self, target: Tensor) -> Tensor:
        """Return the content of a parameter, state or input after the run: the source of its update, or itself."""
        into = self._levels.value_of(target)
        return Tensor(self, self._updates.get(into.name, (into, into))[1])

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """Append a node of `op`, such as "nn.relu", and return the outputs.

        Numbers and arrays in `inputs` become constants. Raises SpecError, beginning with the user's line, for inputs or
        attributes not accepted by the command.
        """
        return tuple(
            self._levels.new_tensor(value) for value in self._levels.append_node(op, inputs, attrs, self._operand_value)
        )

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Begin names made inside `with` by `name/`: in the plan, the names show the layer of a tensor.

        On an error inside, all writing inside is undone; the block can be written again.
        """
        path = f"{self.emit.scope}{name}/"
        with self.rollback_on_error(), self._naming.enter_scope(path):
            before, self.emit.scope = self.emit.scope, path
            yield
            self.emit.scope = before

    @contextmanager
    def module(self, module: NamedModule) -> Iterator[None]:
        """Open the scope of a module inside `with`. A module called again finds the parameters of the first call."""
        with self.rollback_on_error():
            path = self._naming.scope_of_module(self.emit.scope, module)
            with self._naming.enter_scope(path, module):
                before, self.emit.scope = self.emit.scope, path
                yield
                self.emit.scope = before

    @property
    def prior_calls(self) -> int:
        """The number of earlier calls of the module being written, used to draw different random numbers."""
        return self._naming.prior_calls

    @contextmanager
    def rollback_on_error(self) -> Iterator[None]:
        """Undo all writing inside `with` if an error ends the block: nodes, declarations, outputs and updates."""
        emit, nodes = self.emit, list(self.emit.nodes)
        scope, source, key, updates = emit.scope, emit.source, self._key, dict(self._updates)
        naming = self._naming
        tables = (self._contents, self._outputs, naming.scopes, naming.paths, self._levels.level_of_value)
        growing: list[list[Any] | dict[Any, Any]] = [self._inputs, self._weights, self._trainable, *tables]
        lengths, declared_count = [len(each) for each in growing], len(self._updatable)
        try:
            yield
        except BaseException:
            emit.nodes, emit.scope, emit.source, self._key, self._updates = nodes, scope, source, key, updates
            for each, length in zip(growing, lengths, strict=True):
                while len(each) > length:
                    each.popitem() if isinstance(each, dict) else each.pop()
            while len(self._updatable) > declared_count:
                self._freed.add(self._updatable.popitem()[0])
            raise

    def unused_scope_name(self, name: str) -> str:
        """Return a name for a new scope: the first unused of `name`, `name_2`, `name_3`, ..."""
        return self._naming.unused_scope_name(self.emit.scope, name)

    def _level_stack(self) -> LevelStack:
        """Return the stack of open levels."""
        return self._levels

    def model(self) -> Model:
        """Return the graph with the contents of its parameters, for `sublet.compile`.

        Raises GraphError for an illegal graph, and SpecError inside a loop or branch.
        """
        self._levels.require_root("a graph is finished")
        last = Emitter(self._root.names, self._literals)
        outputs = [  # an updated tensor is copied before the update: the output is the old content
            last("nn.copy", value) if value.name in self._updates else value for value in self._outputs.values()
        ]
        graph = ir.Graph(
            self.name,
            tuple(self._inputs),
            (*self._root.nodes, *last.nodes),
            tuple(outputs),
            (*self._weights, *self._literals.added),
            updates=tuple(self._updates.values()),
        )
        verify(graph)
        names = tuple(value.name for value in self._inputs)
        constants = frozenset(value.name for value in self._weights if value.name not in self._updatable)
        contents = dict(self._contents)
        return Model(graph, weights=contents, inputs=names, outputs=tuple(self._outputs), constants=constants)

    def _add_state(self, value: Value, content: Constant) -> Tensor:
        """Add a weight that is not trained, and return the tensor."""
        self._weights.append(value)
        self._contents[value.name] = content
        return self._levels.new_tensor(value, self._levels.open_levels[0])

    def _operand_value(self, given: Operand, like: DType | None) -> Value | None:
        """Return the value of an operand; a number takes the type `like`. Raises SpecError for an unclear type."""
        if given is None:
            return None
        if isinstance(given, Tensor):
            return self._levels.value_of(given)
        if not isinstance(given, bool | int | float | np.generic):
            return self._levels.value_of(self.constant(given))
        if like is None and isinstance(given, bool | np.bool_):
            like = DType.BOOL
        if like is None:
            raise SpecError(at_line(f"the type of {describe(given)} cannot be inferred: convert with g.constant"))
        if like not in FLOATS and isinstance(given, float | np.floating):
            raise SpecError(
                at_line(
                    f"{describe(given)} would be rounded to a number of {like}: call astype('f32') on the tensor first"
                )
            )
        return self._levels.value_of(self.constant(given, like))

    def _declare_value(self, name: str, spec: TensorSpec) -> Value:
        """Declare a new value in the open scope."""
        if not isinstance(name, str) or not name:
            raise SpecError(at_line(f"{name!r} is not a name: pass a non-empty string"))
        return self._claim_name(self.emit.scope + name, spec)

    def _earlier_declaration(self, name: str, spec: TensorSpec, *, trained: bool) -> Tensor | None:
        """Return the tensor declared by an earlier call of the module; None in a first call."""
        value = self._updatable.get(self.emit.scope + str(name)) if self._naming.is_repeated_call else None
        if value is None:
            return None
        if value.spec != spec or (value in self._trainable) != trained:
            raise SpecError(
                at_line(f"%{value.name}: the first call of the module declared {value.spec}, this call declares {spec}")
            )
        return self._levels.new_tensor(value, self._levels.open_levels[0])

    def _claim_name(self, full: str, spec: TensorSpec) -> Value:
        """Return a new value with a full name. Raises SpecError for a taken name."""
        if full in self._freed:
            self._freed.discard(full)
        elif self._root.names.fresh(full) != full:
            raise SpecError(at_line(f"the name {full!r} is taken: use another name"))
        value = self._updatable[full] = Value(full, spec)
        return value

    def _initial_content(self, name: str, spec: TensorSpec, initial: Any) -> Constant:
        """Return the initial content of a parameter or state."""
        if callable(initial):
            return RandomContent(self.emit.scope + str(name), spec, initial)
        array = as_array(initial, spec.dtype)
        if array.shape not in ((), spec.shape):
            raise SpecError(at_line(f"the initial content of {name!r} has shape {list(array.shape)}; expected {spec}"))
        return ArrayContent(np.array(np.broadcast_to(array, spec.shape), order="C"))


def spec_for(shape: Sequence[int], dtype: DType | str) -> TensorSpec:
    """Return the spec of a declared tensor. Raises SpecError, with the user's line, for a bad shape or type."""
    try:
        extents = tuple(integer(extent) for extent in shape)
    except TypeError:
        raise SpecError(at_line(f"the shape {shape!r} must be a sequence of integers")) from None
    try:
        kind = dtype_of(dtype)
        return TensorSpec(kind, extents)
    except SpecError:
        raise
    except SubletError as error:
        raise SpecError(at_line(str(error))) from None


def as_array(content: Any, dtype: DType | None = None) -> Array:
    """Return a number or array as an array of a tensor type. Raises SpecError for other content or inexact numbers."""
    try:
        array = array_of(content, "it") if has_memory(content) else np.asarray(content)
        array = array if dtype is None or array.dtype.kind in "SUO" else array.astype(NUMPY[dtype])
        exact = not isinstance(content, int | float) or array.dtype.kind not in "iu" or array == content
    except (RunError, ValueError, TypeError, OverflowError) as error:
        raise SpecError(at_line(f"{describe(content)} is not an array of numbers: {error}")) from None
    if array.dtype not in DTYPE_OF_NUMPY:
        raise SpecError(at_line(f"{describe(content)} is not a number or an array of numbers"))
    if not exact:
        raise SpecError(at_line(f"{describe(content)} is not exact as a number of {dtype}"))
    return array


class EagerGraph(ControlFlowWriter, Protocol):
    """The interface of a graph computing at once, for layers, optimisers and gradients (`sublet.DynamicGraph`)."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """Return the outputs of a command."""

    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Tensor:
        """Return the parameter of a name, created at the first request."""

    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Tensor:
        """Return the state of a name, created at the first request."""

    def key(self, seed: int = 0) -> Tensor:
        """Return a key of random numbers, different in each call."""

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """Return a number or an array as a tensor."""

    def update(self, target: Tensor, source: Tensor) -> None:
        """Assign the content of `source` to a parameter or state."""

    def after(self, target: Tensor) -> Tensor:
        """Return the content of a parameter or state after all updates so far."""

    def module(self, module: NamedModule) -> AbstractContextManager[None]:
        """Enter the scope of a module inside `with`."""

    @property
    def prior_calls(self) -> int:
        """The number of earlier calls of the running module, where needed to draw different random numbers."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Begin names made inside `with` by `name/`."""

    def unused_scope_name(self, name: str) -> str:
        """Return a name for a new scope."""

    @property
    def prefix(self) -> str:
        """The prefix of new names."""

    def gradients(self, of: Tensor, wrt: Sequence[Tensor], seed: Tensor | None = None) -> list[Tensor]:
        """Return the gradients of `of` with respect to each tensor in `wrt`."""


LIST_HINT = ": make an array with numpy.array for a jit function, or a tensor with d.tensor or g.constant"
"""The hint for a list in place of a tensor. A jit function converts arrays, not lists."""


def graph_of(tensor: Tensor) -> Graph | EagerGraph:
    """Return the graph of a tensor. Raises SpecError for other than a tensor."""
    if not isinstance(tensor, Tensor):
        hint = ": pass one item of the tuple, as nn.softmax_cross_entropy(...)[0]" if isinstance(tensor, tuple) else ""
        hint = ": convert the array with d.tensor or g.constant" if isinstance(tensor, np.ndarray) else hint
        hint = LIST_HINT if isinstance(tensor, list) else hint
        raise SpecError(at_line(f"{type(tensor).__name__} is not a Tensor{hint}"))
    graph: Any = tensor.graph
    return graph  # type: ignore[no-any-return]
