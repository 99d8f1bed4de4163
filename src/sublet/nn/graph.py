"""Writing a graph: `g = Graph(); x = g.input("x", (8, 16)); y = nn.relu(x @ w + b); g.output("y", y)`.

Every node remembers the line of the user's program that made it, and every mistake is told by its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index as integer
from typing import Any

import numpy as np

from sublet.base.arrays import array_of, gives_memory
from sublet.base.errors import RunError, SpecError, SubletError
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import DType, TensorSpec
from sublet.ir import graph as ir
from sublet.ir.graph import Value
from sublet.ir.model import Constant, Model
from sublet.nn.content import Array, Content, Drawn
from sublet.nn.controlled import Controlled
from sublet.nn.levels import Levels
from sublet.nn.lines import at_line
from sublet.nn.naming import Named, Naming
from sublet.nn.tensor import Operand, Tensor, dtype_of, told
from sublet.ops.emitter import Emitter, Literals, Names
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.shapes import FLOATS
from sublet.ops.verify import verify

DTYPES = {array: dtype for dtype, array in NUMPY.items()}

MAX_LITERAL = 16
"""A constant of more elements is a weight with content, not a literal."""


RUN = 1 << 32
"""How far the key of random numbers goes on with each run: adding a number of rounds to it meets no other run's."""


class Graph(Controlled):
    """A graph that is being written [NNC: symbolic graph].

    `training` is what layers and modules ask for that differ in use: normalisation, dropout; see `evaluation` too.
    """

    def __init__(self, name: str = "graph", *, training: bool = True) -> None:
        self.name = name
        self.training = training
        names = Names()
        self._literals = Literals(names)
        self._root = Emitter(names, self._literals)
        self._levels = Levels(self, self._root)
        self._inputs: list[Value] = []
        self._weights: list[Value] = []
        self._trainable: list[Value] = []
        self._contents: dict[str, Constant] = {}
        self._outputs: dict[str, Value] = {}
        self._updates: dict[str, tuple[Value, Value]] = {}
        self._updatable: dict[str, Value] = {}  # inputs, parameters and states by name
        self._naming = Naming()
        self._freed: set[str] = set()  # names that were declared, and taken back
        self._key: Tensor | None = None

    def own(self, tensor: Tensor) -> Value:
        """The value of a tensor of this graph. Raises SpecError when it cannot be read here."""
        return self._levels.read(tensor)

    def tensor(self, value: Value) -> Tensor:
        """The tensor of a value that was made by `emit` at the innermost open level."""
        return self._levels.tensor(value)

    @property
    def emit(self) -> Emitter:
        """Appends nodes at the innermost open level."""
        return self._levels.emit

    @property
    def around(self) -> list[Emitter]:
        """Those of the levels around the innermost open one, from the root down."""
        return [level.emit for level in self._levels.open[:-1]]

    @property
    def prefix(self) -> str:
        """What names begin with here: the scopes that are open."""
        return self.emit.scope

    def input(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32") -> Tensor:
        """A tensor that the caller gives at each run. Raises SpecError for a bad shape or type, or a taken name."""
        self._levels.require_root(f"the input {name!r} is declared")
        value = self._declared(name, spec_for(shape, dtype))
        self._inputs.append(value)
        return self._levels.tensor(value)

    def parameter(
        self, name: str, shape: Sequence[int] | None = None, dtype: DType | str = "f32", initial: Any = None
    ) -> Tensor:
        """A tensor known before the run, a weight; inside a loop or branch it is one weight for all rounds.

        `initial` is an array, a number for every element, or a function that draws it, as `layers.normal(0.02)`.
        Without it, the content is given when the graph is compiled. Without `shape`, it is that of `initial`.
        """
        if shape is None:
            shape = () if initial is None or callable(initial) else np.shape(initial)
        spec = spec_for(shape, dtype)
        there = self._there(name, spec, trained=True)
        if there is not None:
            return there
        content = None if initial is None else self._content(name, spec, initial)
        value = self._declared(name, spec)
        if content is not None:
            self._contents[value.name] = content
        self._weights.append(value)
        self._trainable.append(value)
        return self._levels.tensor(value, self._levels.open[0])

    @property
    def parameters(self) -> list[Tensor]:
        """The floating-point parameters in the order they were declared, without states and constants."""
        return [
            self._levels.tensor(value, self._levels.open[0])
            for value in self._trainable
            if spec_of(value).dtype in FLOATS
        ]

    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Tensor:
        """A tensor that keeps its content from run to run and is not trained; `update` changes it.

        `initial` is as for a parameter.
        """
        spec = spec_for(shape, dtype)
        there = self._there(name, spec, trained=False)
        if there is not None:
            return there
        content = self._content(name, spec, initial)
        return self._fixed(self._declared(name, spec), content)

    def key(self, seed: int = 0) -> Tensor:
        """The key of random numbers, another one in each run: a state of the name "key", which starts as `seed`.

        In a loop `g.key() + loop.counter` is another one in each round.
        """
        if self._key is None:
            value = self._claimed("key", TensorSpec(DType.I64, ()))
            self._key = self._fixed(value, Content(np.array(seed, np.int64)))
            after = self._root("nn.add", value, self._literals.of((RUN,), value.spec))  # type: ignore[arg-type]
            self._updates[value.name] = (value, after)
        return self._key

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """A tensor that never changes: a number or an array."""
        array = as_array(content, None if dtype is None else dtype_of(dtype))
        spec = TensorSpec(DTYPES[array.dtype], array.shape)
        if array.size <= MAX_LITERAL:
            value = self._literals.of(tuple(array.reshape(-1).tolist()), spec)
            return self._levels.tensor(value, self._levels.open[0])
        value = Value(self._root.names.fresh("constant"), spec)
        return self._fixed(value, Content(np.array(array, order="C")))

    def output(self, name: str, tensor: Tensor) -> None:
        """Give `tensor` back from each run, under this name; of what is updated, the content before the update."""
        value = self._levels.read(tensor)
        self._levels.require_root("an output is declared")
        if not isinstance(name, str):
            raise SpecError(at_line(f"{name!r} is no name of an output: g.output(name, tensor)"))
        if name in self._outputs:
            raise SpecError(at_line(f"there is an output {name!r} already"))
        self._outputs[name] = value

    def update(self, target: Tensor, source: Tensor) -> None:
        """At the end of each run `target`, a parameter or input, takes the content of `source`, in place if it can."""
        into, value = self._levels.read(target), self._levels.read(source)
        if into.name not in self._updatable:
            raise SpecError(at_line(f"{told(target)} is no parameter, state or input: only these are updated"))
        if into.spec != value.spec:
            raise SpecError(at_line(f"{told(target)} cannot take the content of {told(source)}: they differ"))
        if into.name in self._updates and not self._naming.again:
            raise SpecError(at_line(f"{told(target)} is updated twice"))
        self._levels.require_root("a parameter is updated")
        self._updates[into.name] = (into, value)

    def after(self, target: Tensor) -> Tensor:
        """What a parameter, state or input holds when the run has ended: the source of its update, or itself."""
        into = self._levels.read(target)
        return Tensor(self, self._updates.get(into.name, (into, into))[1])

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """The outputs of a new node of `op`, as "nn.relu". Numbers and arrays among the inputs become constants.

        Raises SpecError, which begins with the user's line, when the command does not take such inputs.
        """
        return tuple(self._levels.tensor(value) for value in self._levels.write(op, inputs, attrs, self._operand))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside begin with `name/`: the plan then tells which layer a tensor belongs to.

        What is written inside is taken back when it ends by an error, so that it can be written again.
        """
        path = f"{self.emit.scope}{name}/"
        with self.whole(), self._naming.inside(path):
            before, self.emit.scope = self.emit.scope, path
            yield
            self.emit.scope = before

    @contextmanager
    def module(self, module: Named) -> Iterator[None]:
        """Around what a module writes: names begin with its scope. Called again, it finds the parameters it made."""
        with self.whole():
            path = self._naming.path(self.emit.scope, module)
            with self._naming.inside(path, module):
                before, self.emit.scope = self.emit.scope, path
                yield
                self.emit.scope = before

    @property
    def repeated(self) -> int:
        """How often the module that is written was written before: so that it draws other random numbers."""
        return self._naming.repeated

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is written inside is taken back when it ends by an error: nodes, declarations, outputs and updates."""
        emit, nodes = self.emit, list(self.emit.nodes)
        scope, source, key, updates = emit.scope, emit.source, self._key, dict(self._updates)
        naming = self._naming
        tables = (self._contents, self._outputs, naming.scopes, naming.paths, self._levels.homes)
        grown: list[list[Any] | dict[Any, Any]] = [self._inputs, self._weights, self._trainable, *tables]
        lengths, declared = [len(each) for each in grown], len(self._updatable)
        try:
            yield
        except BaseException:
            emit.nodes, emit.scope, emit.source, self._key, self._updates = nodes, scope, source, key, updates
            for each, length in zip(grown, lengths, strict=True):
                while len(each) > length:
                    each.popitem() if isinstance(each, dict) else each.pop()
            while len(self._updatable) > declared:
                self._freed.add(self._updatable.popitem()[0])
            raise

    def unused(self, name: str) -> str:
        """A name for a scope that has not been open yet: `name`, `name_2`, `name_3`, ..."""
        return self._naming.unused(self.emit.scope, name)

    def _written(self) -> Levels:
        return self._levels

    def model(self) -> Model:
        """The graph with what its parameters contain, for `sublet.compile`. Raises GraphError if it is not legal."""
        self._levels.require_root("a graph is finished")
        last = Emitter(self._root.names, self._literals)
        outputs = [  # what is updated holds its new content at the end: the old one is copied before
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

    def _fixed(self, value: Value, content: Constant) -> Tensor:
        """A state: a weight that is not trained."""
        self._weights.append(value)
        self._contents[value.name] = content
        return self._levels.tensor(value, self._levels.open[0])

    def _operand(self, given: Operand, like: DType | None) -> Value | None:
        if given is None:
            return None
        if isinstance(given, Tensor):
            return self._levels.read(given)
        if not isinstance(given, bool | int | float | np.generic):
            return self._levels.read(self.constant(given))
        if like is None and isinstance(given, bool | np.bool_):
            like = DType.BOOL
        if like is None:
            raise SpecError(at_line(f"the type of {told(given)} is not clear here: use g.constant"))
        if like not in FLOATS and isinstance(given, float | np.floating):
            raise SpecError(
                at_line(f"{told(given)} would be cut to a number of {like}: take astype('f32') of the tensor")
            )
        return self._levels.read(self.constant(given, like))

    def _declared(self, name: str, spec: TensorSpec) -> Value:
        if not isinstance(name, str) or not name:
            raise SpecError(at_line(f"{name!r} is no name: give a word"))
        return self._claimed(self.emit.scope + name, spec)

    def _there(self, name: str, spec: TensorSpec, *, trained: bool) -> Tensor | None:
        """What a module that is called again declared when it was called first."""
        value = self._updatable.get(self.emit.scope + str(name)) if self._naming.again else None
        if value is None:
            return None
        if value.spec != spec or (value in self._trainable) != trained:
            raise SpecError(at_line(f"%{value.name} is {value.spec} since the module was called first, and not {spec}"))
        return self._levels.tensor(value, self._levels.open[0])

    def _claimed(self, full: str, spec: TensorSpec) -> Value:
        if full in self._freed:
            self._freed.discard(full)
        elif self._root.names.fresh(full) != full:
            raise SpecError(at_line(f"the name {full!r} is taken; give another"))
        value = self._updatable[full] = Value(full, spec)
        return value

    def _content(self, name: str, spec: TensorSpec, initial: Any) -> Constant:
        """What is said of the initial content of a parameter or state."""
        if callable(initial):
            return Drawn(self.emit.scope + str(name), spec, initial)
        array = as_array(initial, spec.dtype)
        if array.shape not in ((), spec.shape):
            raise SpecError(at_line(f"the content of {name!r} has the shape {list(array.shape)}, not {spec}"))
        return Content(np.array(np.broadcast_to(array, spec.shape), order="C"))


def spec_for(shape: Sequence[int], dtype: DType | str) -> TensorSpec:
    """The spec of what a user declares. Raises SpecError, which begins with the user's line."""
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
    """A number or array, as an array of a type that tensors have."""
    try:
        array = array_of(content, "it") if gives_memory(content) else np.asarray(content)
        array = array if dtype is None or array.dtype.kind in "SUO" else array.astype(NUMPY[dtype])
        exact = not isinstance(content, int | float) or array.dtype.kind not in "iu" or array == content
    except (RunError, ValueError, TypeError, OverflowError) as error:
        raise SpecError(at_line(f"{told(content)} is no array of numbers: {error}")) from None
    if array.dtype not in DTYPES:
        raise SpecError(at_line(f"{told(content)} is no number or array of numbers"))
    if not exact:
        raise SpecError(at_line(f"{told(content)} is no number of {dtype}"))
    return array
