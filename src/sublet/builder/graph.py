"""Writing a graph: `g = Graph(); x = g.input("x", (8, 16)); y = nn.relu(x @ w + b); g.output("y", y)`.

Every node remembers the line of the user's program that made it, and every mistake is told by its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.builder.control import Branch, Loop
from sublet.builder.levels import Levels
from sublet.builder.lines import at_line, user_line
from sublet.builder.tensor import Operand, Tensor, dtype_of
from sublet.errors import SpecError, SubletError
from sublet.frontends.model import Constant, Model
from sublet.ir import graph as ir
from sublet.ir.emitter import Emitter, Literals, Names
from sublet.ir.graph import Value
from sublet.ir.verify import verify
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.shapes import FLOATS
from sublet.runtime.dtypes import NUMPY
from sublet.tensor import DType, TensorSpec

Array = NDArray[Any]
DTYPES = {array: dtype for dtype, array in NUMPY.items()}

MAX_LITERAL = 16
"""A constant of more elements is a weight with content, not a literal."""


@dataclass(frozen=True)
class Content:
    """The initial content of a parameter."""

    content: Array

    def array(self) -> Array:
        return self.content


class Graph:
    """A graph that is being written [NNC: symbolic graph]."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
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
        self._updatable: set[str] = set()  # the names of inputs and weights

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

    def input(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32") -> Tensor:
        """A tensor that the caller gives at each run. Raises SpecError for a bad shape or type, or a taken name."""
        value = self._declared(name, shape, dtype)
        self._inputs.append(value)
        self._updatable.add(value.name)
        return self._levels.tensor(value)

    def parameter(
        self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = None
    ) -> Tensor:
        """A tensor known before the run, a weight. Without `initial`, its content is given when it is compiled."""
        if initial is not None:
            content = np.asarray(initial)
            shape, dtype = shape or content.shape, dtype
        value = self._declared(name, shape, dtype)
        if initial is not None:
            spec = value.spec
            assert isinstance(spec, TensorSpec)
            if content.shape != spec.shape:
                raise SpecError(at_line(f"the content of {name!r} has the shape {list(content.shape)}, not {spec}"))
            self._contents[value.name] = Content(np.array(content, NUMPY[spec.dtype], order="C"))
        self._weights.append(value)
        self._updatable.add(value.name)
        self._trainable.append(value)
        return self._levels.tensor(value)

    @property
    def parameters(self) -> list[Tensor]:
        """The floating-point parameters in the order they were declared, without states and constants."""
        return [
            self._levels.tensor(value, self._levels.open[0])
            for value in self._trainable
            if spec_of(value).dtype in FLOATS
        ]

    def fill(self, parameter: Tensor, content: Constant) -> None:
        """What a parameter contains at first; `content.array()` is asked for when the graph is compiled."""
        self._contents[self._levels.read(parameter).name] = content

    def state(self, name: str, shape: Sequence[int] = (), dtype: DType | str = "f32", initial: Any = 0) -> Tensor:
        """A parameter that starts as the same number everywhere, or as an array, and that `update` changes."""
        spec = self._spec(shape, dtype)
        content = np.broadcast_to(np.asarray(initial, NUMPY[spec.dtype]), spec.shape)
        return self._fixed(self._declared(name, spec.shape, spec.dtype), np.array(content, order="C"))

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """A tensor that never changes: a number or an array."""
        array = np.asarray(content) if dtype is None else np.asarray(content, NUMPY[dtype_of(dtype)])
        kind = DTYPES.get(array.dtype)
        if kind is None:
            raise SpecError(at_line(f"{content!r} is no number or array of numbers"))
        spec = TensorSpec(kind, array.shape)
        if array.size <= MAX_LITERAL:
            value = self._literals.of(tuple(array.reshape(-1).tolist()), spec)
            return self._levels.tensor(value, self._levels.open[0])
        return self._fixed(Value(self._root.names.fresh("constant"), spec), np.array(array, order="C"))

    def output(self, name: str, tensor: Tensor) -> None:
        """Give `tensor` back from each run, under this name."""
        value = self._levels.read(tensor)
        self._levels.require_root("an output is declared")
        if name in self._outputs:
            raise SpecError(at_line(f"there is an output {name!r} already"))
        self._outputs[name] = value

    def update(self, target: Tensor, source: Tensor) -> None:
        """At the end of each run `target`, a parameter or input, takes the content of `source`, in place if it can."""
        into, value = self._levels.read(target), self._levels.read(source)
        if into.name not in self._updatable:
            raise SpecError(at_line(f"{target!r} is no parameter and no input: only these are updated"))
        if into.spec != value.spec:
            raise SpecError(at_line(f"{target!r} cannot take the content of {source!r}: they differ"))
        if into.name in self._updates:
            raise SpecError(at_line(f"{target!r} is updated twice"))
        self._levels.require_root("a parameter is updated")
        self._updates[into.name] = (into, value)

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """The outputs of a new node of `op`, as "nn.relu". Numbers and arrays among the inputs become constants.

        Raises SpecError, which begins with the user's line, when the command does not take such inputs.
        """
        emit = self.emit
        like = next(
            (given.dtype for given in inputs if isinstance(given, Tensor) and given.dtype is not DType.BOOL), None
        )
        values = [self._operand(given, like) for given in inputs]
        emit.source = user_line()
        try:
            made = emit.several(op, *values, **attrs)
        except SubletError as error:
            raise SpecError(at_line(f"{op}: {error}")) from None
        return tuple(self._levels.tensor(value) for value in made)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside begin with `name/`: the plan then tells which layer a tensor belongs to."""
        emit = self.emit
        before, emit.scope = emit.scope, f"{emit.scope}{name}/"
        try:
            yield
        finally:
            emit.scope = before

    def while_(
        self,
        carried: Mapping[str, Tensor] | None = None,
        *,
        over: Mapping[str, Tensor] | None = None,
        rounds: int | None = None,
        max_trips: int | None = None,
        backwards: bool = False,
        name: str = "loop",
    ) -> Loop:
        """A loop, see `Loop`: `with g.while_({"h": h0}, over={"x": xs}) as loop: ... loop.next(h=...)`.

        carried    initial values by name; each round must say what comes next
        over       sequences by name; a round sees one step along axis 0
        rounds     how many there are, where that is known; the length of `over` when nothing is said
        max_trips  how many there are at most, where a check decides
        backwards  take the steps of `over` from the end, and stack rows from the end
        """
        return Loop(self._levels, dict(carried or {}), dict(over or {}), rounds, max_trips, backwards, name)

    def case_of(self, index: Tensor, fallback: Sequence[Tensor] = (), name: str = "case") -> Branch:
        """A branch, see `Branch`: arm i is taken when the index is i; False is 0, True is 1.

        An index below 0 takes no arm, and the results are `fallback`.
        """
        return Branch(self._levels, index, tuple(fallback), name)

    def model(self) -> Model:
        """The graph with what its parameters contain, for `sublet.compile`. Raises GraphError if it is not legal."""
        self._levels.require_root("a graph is finished")
        weights = (*self._weights, *self._literals.added)
        graph = ir.Graph(
            self.name,
            tuple(self._inputs),
            tuple(self._root.nodes),
            tuple(self._outputs.values()),
            weights,
            updates=tuple(self._updates.values()),
        )
        verify(graph)
        names = tuple(value.name for value in self._inputs)
        return Model(graph, weights=dict(self._contents), inputs=names, outputs=tuple(self._outputs))

    def _fixed(self, value: Value, content: Array) -> Tensor:
        """A weight that is not trained."""
        self._weights.append(value)
        self._updatable.add(value.name)
        self._contents[value.name] = Content(content)
        return self._levels.tensor(value, self._levels.open[0])

    def _operand(self, given: Operand, like: DType | None) -> Value | None:
        if given is None:
            return None
        if isinstance(given, Tensor):
            return self._levels.read(given)
        if isinstance(given, bool | int | float):
            if like is None:
                raise SpecError(at_line(f"the type of {given!r} is not clear here: use g.constant"))
            return self._levels.read(self.constant(given, like))
        return self._levels.read(self.constant(given))

    def _declared(self, name: str, shape: Sequence[int], dtype: DType | str) -> Value:
        self._levels.require_root(f"{name!r} is declared")
        full = self._root.scope + name
        if not name or self._root.names.fresh(full) != full:
            raise SpecError(at_line(f"the name {full!r} is taken; give another"))
        return Value(full, self._spec(shape, dtype))

    @staticmethod
    def _spec(shape: Sequence[int], dtype: DType | str) -> TensorSpec:
        if isinstance(shape, int) or not all(isinstance(extent, int) for extent in shape):
            raise SpecError(at_line(f"the shape {shape!r} must be a sequence of integers"))
        try:
            return TensorSpec(dtype_of(dtype), tuple(shape))
        except SubletError as error:
            raise SpecError(at_line(str(error))) from None


def graph_of(tensor: Tensor) -> Graph:
    """The graph that a tensor belongs to."""
    assert isinstance(tensor.graph, Graph)
    return tensor.graph
