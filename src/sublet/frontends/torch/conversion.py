"""The state of a conversion of a PyTorch program: names, weights, and the graphs under construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.tensor import DType, TensorSpec
from sublet.frontends.torch.tensors import Extents, Tensor, layout_of, spec_and_layout, torch
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.aten import AS_STRIDED, DEVICE, Argument, Call, Named, Strided, encode, other_version
from sublet.ops.emitter import Emitter, Literals, Names
from sublet.ops.verify import verify

NUMBERS = (bool, int, float, str)
COUNT = TensorSpec(DType.I64)


@dataclass
class Conversion:
    """The program under construction.

    weights        the contents of the weights, PyTorch tensors
    extents        extents of the symbols
    piece_sources  for copied pieces of a value: the piece as a view of the value
    pending_reads  tensors read by each unfinished collective, until the wait for the result
    device         the device of the operators, "cuda:0", with PyTorch's own operators only; "" for the CPU
    eager_tensors  PyTorch tensors with the eager layout, for tensors of another layout in the program or in the trace
    """

    names: Names = field(default_factory=Names)
    weights: dict[Value, Any] = field(default_factory=dict)
    where: str = ""
    extents: Extents = field(default_factory=dict)
    parts: dict[Value, Tensor] = field(default_factory=dict)
    begun: dict[Value, tuple[Tensor, ...]] = field(default_factory=dict)
    device: str = ""
    eager: dict[Tensor, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.literals = Literals(self.names)

    def root(self) -> Level:
        """Return the level of the whole program. Raises ModelError for a PyTorch version without operator facts."""
        wrong = other_version(torch().__version__)
        if wrong:
            raise ModelError(wrong)
        return Level(self, Emitter(self.names, self.literals))

    def given(self, hint: str, fake: Any) -> Tensor:
        """Return a tensor over a new value with PyTorch's layout: an input, a weight or a result."""
        spec, layout = spec_and_layout(fake, self.extents, hint)
        return Tensor(Value(self.names.fresh(hint), spec), layout)

    def weight(self, hint: str, tensor: Any) -> Tensor:
        """Return a new weight with its content."""
        weight = self.given(hint, tensor)
        self.weights[weight.value] = tensor
        return weight

    def note_eager(self, made: Any, eager: Any, corrected: bool) -> None:
        """Record the eager layouts of a node's results.

        For a corrected node all results are recorded, else only results with another layout in the program.
        """
        several = isinstance(made, list | tuple) and isinstance(eager, list | tuple)
        for each, lies in zip(made, eager, strict=False) if several else ((made, eager),):
            if not isinstance(each, Tensor) or not hasattr(lies, "stride"):
                continue
            if corrected or layout_of(lies, self.extents, self.where).normal.stride != each.layout.normal.stride:
                self.eager[each] = lies

    def home(self, tensor: Tensor) -> Tensor:
        """Return the same elements as a view of the defining value; copied pieces are traced back to the whole."""
        while tensor.value in self.parts:
            whole, layout = self.parts[tensor.value], tensor.layout
            if tensor.is_whole:  # keeps the strides of axes with one element too
                tensor = whole
                continue
            tensor = Tensor(whole.value, Strided(layout.size, layout.stride, whole.layout.offset + layout.offset))
        return tensor

    def constant(self, name: str, tensor: Any) -> Tensor:
        """Return the weight of a tensor held by a graph; equal tensors share one weight."""
        for value, known in self.weights.items():
            if known is tensor:
                return Tensor(value, spec_and_layout(tensor, self.extents, name)[1])
        return self.weight(name, tensor)


@dataclass
class Level:
    """One graph of the program under construction."""

    conversion: Conversion
    emitter: Emitter

    def inside(self) -> Level:
        """Return a level for an inner graph."""
        return Level(self.conversion, self.emitter.inside())

    def call(
        self, op: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Any], source: str = ""
    ) -> list[Tensor | None]:
        """Append a node calling an operator, and return its results.

        `results` are traced tensors like the results, None for an omitted result.
        """
        inputs: dict[Value, int] = {}
        call_args = tuple(_argument(argument, inputs, name) for argument in args)
        call_kwargs = tuple((key, _argument(argument, inputs, name)) for key, argument in kwargs.items())
        outputs: list[Tensor | None] = []
        for i, fake in enumerate(results):
            hint = name if i == 0 else f"{name}.{i}"
            outputs.append(None if fake is None else self.conversion.given(hint, fake))
        layouts = tuple(None if made is None else made.strides for made in outputs)
        values = tuple(None if made is None else made.value for made in outputs)
        attrs = encode(Call(call_args, call_kwargs, layouts))
        if self.conversion.device:
            attrs[DEVICE] = self.conversion.device
        node = Node(self.conversion.names.fresh(name), op, tuple(inputs), values, attrs, source)
        self.emitter.nodes.append(node)
        return outputs

    def whole(self, tensor: Tensor, source: str = "") -> Tensor:
        """Return a row-major tensor with the same elements, over a value with exactly these elements.

        The planner may coalesce the new value with the old value.
        """
        if tensor.is_whole:
            return tensor
        spec = TensorSpec(tensor.spec.dtype, tensor.layout.size)
        return self._copied(tensor, "dense", spec, Strided.contiguous(spec.shape), source)

    def like(self, tensor: Tensor, home: Tensor) -> Tensor:
        """Return a tensor with the same elements in the layout of `home`."""
        if tensor.spec == home.spec and tensor.layout.normal == home.layout.normal:
            return tensor
        return self._copied(tensor, "new", home.spec, home.layout)

    def as_eager(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the same elements and the strides of the eager result."""
        eager = self.conversion.eager.get(tensor)
        if eager is None:
            return tensor
        layout = layout_of(eager, self.conversion.extents, tensor.value.name).normal
        return self.laid_out(tensor, layout) if layout.is_dense and layout.size == tensor.layout.size else tensor

    def laid_out(self, tensor: Tensor, layout: Strided) -> Tensor:
        """Return a tensor with the same elements in a dense layout."""
        if tensor.layout.normal.stride == layout.stride:
            return tensor
        shape = layout.size if layout.is_contiguous else layout.in_memory
        return self._copied(tensor, "laid", TensorSpec(tensor.spec.dtype, shape), layout)

    def _copied(self, tensor: Tensor, hint: str, spec: TensorSpec, layout: Strided, source: str = "") -> Tensor:
        """Append a node copying the elements of a tensor to a new layout; the planner may coalesce source and copy."""
        name = self.conversion.names.fresh(f"{tensor.value.name}.{hint}")
        copied = Tensor(Value(name, spec), layout)
        attrs = encode(Call((tensor.use(0),), (), (copied.strides,)))
        self.emitter.nodes.append(Node(name, AS_STRIDED, (tensor.value,), (copied.value,), attrs, source))
        return copied

    def whole_program(
        self, inputs: Sequence[Value], outputs: Sequence[Value], updates: Sequence[tuple[Value, Value]] = ()
    ) -> Graph:
        """Return the nodes of the level as the graph of the whole program, verified."""
        conversion = self.conversion
        weights = (*conversion.weights, *conversion.literals.added)
        nodes = tuple(self.emitter.nodes)
        graph = Graph(conversion.where, tuple(inputs), nodes, tuple(outputs), weights, tuple(updates))
        verify(graph)
        return graph

    def graph(self, hint: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
        """Return the nodes of the level as an inner graph."""
        return Graph(self.conversion.names.fresh(hint), tuple(inputs), tuple(self.emitter.nodes), tuple(outputs))


def _argument(argument: Any, inputs: dict[Value, int], where: str) -> Argument:
    """Return an argument in encodable form; values read by the argument are appended to `inputs`.

    Raises ModelError for an argument of an unsupported type.
    """
    if isinstance(argument, Tensor):
        return argument.use(inputs.setdefault(argument.value, len(inputs)))
    if argument is None or isinstance(argument, NUMBERS):
        return argument
    if isinstance(argument, list | tuple):
        return tuple(_argument(inner, inputs, where) for inner in argument)
    kind, name = type(argument).__name__, str(argument)
    if kind in ("dtype", "layout", "memory_format"):
        return Named(kind, name.removeprefix("torch."))
    if kind == "device":
        return Named(kind, name)
    raise ModelError(f"{where}: an argument of type {kind} ({name[:60]}) cannot be written into a plan")
