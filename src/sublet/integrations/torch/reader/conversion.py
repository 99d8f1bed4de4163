"""The state of a conversion of a PyTorch program: names, weights, and the graphs under construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.dialect import (
    AS_STRIDED,
    DEVICE,
    Argument,
    NamedConstant,
    OperatorCall,
    StridedLayout,
    encode,
)
from sublet.integrations.torch.operator_facts import require_supported_version
from sublet.integrations.torch.reader.traced_tensor import Extents, TracedTensor, layout_of, spec_and_layout, torch
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.emitter import Emitter, LiteralPool
from sublet.ops.verify import verify

PLAIN_TYPES = (bool, int, float, str)
COUNTER_SPEC = TensorSpec(DType.I64)


@dataclass
class TorchConversion:
    """The program under construction.

    weights        the contents of the weights, PyTorch tensors
    extents        extents of the symbols
    piece_sources  for copied pieces of a value: the piece as a view of the value
    pending_reads  tensors read by each unfinished collective, until the wait for the result
    device         the device of the operators, "cuda:0", with PyTorch's own operators only; "" for the CPU
    eager_tensors  PyTorch tensors with the eager layout, for tensors of another layout in the program or in the trace
    """

    names: NameGenerator = field(default_factory=NameGenerator)
    weights: dict[Value, Any] = field(default_factory=dict)
    where: str = ""
    extents: Extents = field(default_factory=dict)
    piece_sources: dict[Value, TracedTensor] = field(default_factory=dict)
    pending_reads: dict[Value, tuple[TracedTensor, ...]] = field(default_factory=dict)
    device: str = ""
    eager_tensors: dict[TracedTensor, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.literals = LiteralPool(self.names)

    def root_level(self) -> ConversionLevel:
        """Return the level of the whole program. Raises ModelError for a version of PyTorch that is too old."""
        require_supported_version(torch().__version__, ModelError)
        return ConversionLevel(self, Emitter(self.names, self.literals))

    def new_tensor(self, hint: str, fake: Any) -> TracedTensor:
        """Return a tensor over a new value with PyTorch's layout: an input, a weight or a result."""
        spec, layout = spec_and_layout(fake, self.extents, hint)
        return TracedTensor(Value(self.names.fresh(hint), spec), layout)

    def add_weight(self, hint: str, tensor: Any) -> TracedTensor:
        """Return a new weight with its content."""
        weight = self.new_tensor(hint, tensor)
        self.weights[weight.value] = tensor
        return weight

    def record_eager(self, made: Any, eager: Any, corrected: bool) -> None:
        """Record the eager layouts of a node's results.

        For a corrected node all results are recorded, else only results with another layout in the program.
        """
        several = isinstance(made, list | tuple) and isinstance(eager, list | tuple)
        for each, lies in zip(made, eager, strict=False) if several else ((made, eager),):
            if not isinstance(each, TracedTensor) or not hasattr(lies, "stride"):
                continue
            if corrected or layout_of(lies, self.extents, self.where).canonical.stride != each.layout.canonical.stride:
                self.eager_tensors[each] = lies

    def in_defining_value(self, tensor: TracedTensor) -> TracedTensor:
        """Return the same elements as a view of the defining value; copied pieces are traced back to the whole."""
        while tensor.value in self.piece_sources:
            whole, layout = self.piece_sources[tensor.value], tensor.layout
            if tensor.is_whole:  # keeps the strides of axes with one element too
                tensor = whole
                continue
            tensor = TracedTensor(
                whole.value, StridedLayout(layout.size, layout.stride, whole.layout.offset + layout.offset)
            )
        return tensor

    def constant_weight(self, name: str, tensor: Any) -> TracedTensor:
        """Return the weight of a tensor held by a graph; equal tensors share one weight."""
        for value, known in self.weights.items():
            if known is tensor:
                return TracedTensor(value, spec_and_layout(tensor, self.extents, name)[1])
        return self.add_weight(name, tensor)


@dataclass
class ConversionLevel:
    """One graph of the program under construction."""

    conversion: TorchConversion
    emitter: Emitter

    def for_subgraph(self) -> ConversionLevel:
        """Return a level for an inner graph."""
        return ConversionLevel(self.conversion, self.emitter.for_subgraph())

    def add_call(
        self, op: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Any], source: str = ""
    ) -> list[TracedTensor | None]:
        """Append a node calling an operator, and return its results.

        `results` are traced tensors like the results, None for an omitted result.
        """
        inputs: dict[Value, int] = {}
        call_args = tuple(_encodable_argument(argument, inputs, name) for argument in args)
        call_kwargs = tuple((key, _encodable_argument(argument, inputs, name)) for key, argument in kwargs.items())
        outputs: list[TracedTensor | None] = []
        for i, fake in enumerate(results):
            hint = name if i == 0 else f"{name}.{i}"
            outputs.append(None if fake is None else self.conversion.new_tensor(hint, fake))
        layouts = tuple(None if made is None else made.layout_or_none for made in outputs)
        values = tuple(None if made is None else made.value for made in outputs)
        attrs = encode(OperatorCall(call_args, call_kwargs, layouts))
        if self.conversion.device:
            attrs[DEVICE] = self.conversion.device
        node = Node(self.conversion.names.fresh(name), op, tuple(inputs), values, attrs, source)
        self.emitter.nodes.append(node)
        return outputs

    def as_row_major(self, tensor: TracedTensor, source: str = "") -> TracedTensor:
        """Return a row-major tensor with the same elements, over a value with exactly these elements.

        The planner may coalesce the new value with the old value.
        """
        if tensor.is_whole:
            return tensor
        spec = TensorSpec(tensor.spec.dtype, tensor.layout.size)
        return self._add_copy(tensor, "dense", spec, StridedLayout.contiguous(spec.shape), source)

    def with_layout_of(self, tensor: TracedTensor, home: TracedTensor) -> TracedTensor:
        """Return a tensor with the same elements in the layout of `home`."""
        if tensor.spec == home.spec and tensor.layout.canonical == home.layout.canonical:
            return tensor
        return self._add_copy(tensor, "new", home.spec, home.layout)

    def with_eager_layout(self, tensor: TracedTensor) -> TracedTensor:
        """Return a tensor with the same elements and the strides of the eager result."""
        eager = self.conversion.eager_tensors.get(tensor)
        if eager is None:
            return tensor
        layout = layout_of(eager, self.conversion.extents, tensor.value.name).canonical
        return self.with_layout(tensor, layout) if layout.is_dense and layout.size == tensor.layout.size else tensor

    def with_layout(self, tensor: TracedTensor, layout: StridedLayout) -> TracedTensor:
        """Return a tensor with the same elements in a dense layout."""
        if tensor.layout.canonical.stride == layout.stride:
            return tensor
        shape = layout.size if layout.is_contiguous else layout.extents_in_memory
        return self._add_copy(tensor, "laid", TensorSpec(tensor.spec.dtype, shape), layout)

    def _add_copy(
        self, tensor: TracedTensor, hint: str, spec: TensorSpec, layout: StridedLayout, source: str = ""
    ) -> TracedTensor:
        """Append a node copying the elements of a tensor to a new layout; the planner may coalesce source and copy."""
        name = self.conversion.names.fresh(f"{tensor.value.name}.{hint}")
        copied = TracedTensor(Value(name, spec), layout)
        attrs = encode(OperatorCall((tensor.as_argument(0),), (), (copied.layout_or_none,)))
        self.emitter.nodes.append(Node(name, AS_STRIDED, (tensor.value,), (copied.value,), attrs, source))
        return copied

    def program_graph(
        self, inputs: Sequence[Value], outputs: Sequence[Value], updates: Sequence[tuple[Value, Value]] = ()
    ) -> Graph:
        """Return the nodes of the level as the graph of the whole program, verified."""
        conversion = self.conversion
        weights = (*conversion.weights, *conversion.literals.added)
        nodes = tuple(self.emitter.nodes)
        graph = Graph(conversion.where, tuple(inputs), nodes, tuple(outputs), weights, tuple(updates))
        verify(graph)
        return graph

    def inner_graph(self, hint: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
        """Return the nodes of the level as an inner graph."""
        return Graph(self.conversion.names.fresh(hint), tuple(inputs), tuple(self.emitter.nodes), tuple(outputs))


def _encodable_argument(argument: Any, inputs: dict[Value, int], where: str) -> Argument:
    """Return an argument in encodable form; values read by the argument are appended to `inputs`.

    Raises ModelError for an argument of an unsupported type.
    """
    if isinstance(argument, TracedTensor):
        return argument.as_argument(inputs.setdefault(argument.value, len(inputs)))
    if argument is None or isinstance(argument, PLAIN_TYPES):
        return argument
    if isinstance(argument, list | tuple):
        return tuple(_encodable_argument(inner, inputs, where) for inner in argument)
    kind, name = type(argument).__name__, str(argument)
    if kind in ("dtype", "layout", "memory_format"):
        return NamedConstant(kind, name.removeprefix("torch."))
    if kind == "device":
        return NamedConstant(kind, name)
    raise ModelError(f"{where}: an argument of type {kind} ({name[:60]}) cannot be written into a plan")
