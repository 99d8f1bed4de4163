"""What a conversion knows of a program: names, weights, and the levels that nodes are written to."""

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
    """A program, as far as it is written.

    weights   the contents of its weights, tensors of PyTorch's
    extents   what its symbols stand for
    parts     the tensors that values with a name of their own are pieces of
    begun     what collectives that have begun may read until somebody waits for their results
    device    what its operators run on, "cuda:0": they stay PyTorch's own there; "" for the CPU
    eager     of tensors that lie otherwise eagerly than they do here, or otherwise than they are traced: tensors of
              PyTorch's that lie as they do eagerly
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
        """The level of the whole program. Raises ModelError for a PyTorch that the operators' facts are not of."""
        wrong = other_version(torch().__version__)
        if wrong:
            raise ModelError(wrong)
        return Level(self, Emitter(self.names, self.literals))

    def given(self, hint: str, fake: Any) -> Tensor:
        """An input or weight that lies as PyTorch says."""
        spec, layout = spec_and_layout(fake, self.extents, hint)
        return Tensor(Value(self.names.fresh(hint), spec), layout)

    def weight(self, hint: str, tensor: Any) -> Tensor:
        """A weight, with its content."""
        made = self.given(hint, tensor)
        self.weights[made.value] = tensor
        return made

    def note_eager(self, made: Any, eager: Any, corrected: bool) -> None:
        """Keep how results lie eagerly: of a node that is traced wrongly all, else those that lie otherwise here."""
        several = isinstance(made, list | tuple) and isinstance(eager, list | tuple)
        for each, lies in zip(made, eager, strict=False) if several else ((made, eager),):
            if not isinstance(each, Tensor) or not hasattr(lies, "stride"):
                continue
            if corrected or layout_of(lies, self.extents, self.where).normal.stride != each.layout.normal.stride:
                self.eager[each] = lies

    def home(self, tensor: Tensor) -> Tensor:
        """The same elements, of the value that they were computed in."""
        while tensor.value in self.parts:
            whole, layout = self.parts[tensor.value], tensor.layout
            if tensor.is_whole:  # with the steps of axes of one element, too
                tensor = whole
                continue
            tensor = Tensor(whole.value, Strided(layout.size, layout.stride, whole.layout.offset + layout.offset))
        return tensor

    def constant(self, name: str, tensor: Any) -> Tensor:
        """A tensor that a graph holds, the same one each time."""
        for value, known in self.weights.items():
            if known is tensor:
                return Tensor(value, spec_and_layout(tensor, self.extents, name)[1])
        return self.weight(name, tensor)


@dataclass
class Level:
    """One graph of the program that nodes are appended to."""

    conversion: Conversion
    emitter: Emitter

    def inside(self) -> Level:
        """A level for a graph below."""
        return Level(self.conversion, self.emitter.inside())

    def call(
        self, op: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Any], source: str = ""
    ) -> list[Tensor | None]:
        """Append a node that calls an operator; `results` are traced tensors like those it gives, None for none."""
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
        """A row-major tensor of its own value with the same elements, which may be the same bytes."""
        if tensor.is_whole:
            return tensor
        spec = TensorSpec(tensor.spec.dtype, tensor.layout.size)
        return self._copied(tensor, "dense", spec, Strided.contiguous(spec.shape), source)

    def like(self, tensor: Tensor, home: Tensor) -> Tensor:
        """A tensor with the same elements that lies as another one does."""
        if tensor.spec == home.spec and tensor.layout.normal == home.layout.normal:
            return tensor
        return self._copied(tensor, "new", home.spec, home.layout)

    def as_eager(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the same elements whose strides are those of the eager result."""
        lies = self.conversion.eager.get(tensor)
        if lies is None:
            return tensor
        layout = layout_of(lies, self.conversion.extents, tensor.value.name).normal
        return self.laid_out(tensor, layout) if layout.is_dense and layout.size == tensor.layout.size else tensor

    def laid_out(self, tensor: Tensor, layout: Strided) -> Tensor:
        """Return a tensor with the same elements in a dense layout."""
        if tensor.layout.normal.stride == layout.stride:
            return tensor
        shape = layout.size if layout.is_contiguous else layout.in_memory
        return self._copied(tensor, "laid", TensorSpec(tensor.spec.dtype, shape), layout)

    def _copied(self, tensor: Tensor, hint: str, spec: TensorSpec, layout: Strided, source: str = "") -> Tensor:
        """A value with the elements of a tensor, laid out so; it may be the same bytes."""
        name = self.conversion.names.fresh(f"{tensor.value.name}.{hint}")
        made = Tensor(Value(name, spec), layout)
        attrs = encode(Call((tensor.use(0),), (), (made.strides,)))
        self.emitter.nodes.append(Node(name, AS_STRIDED, (tensor.value,), (made.value,), attrs, source))
        return made

    def whole_program(
        self, inputs: Sequence[Value], outputs: Sequence[Value], updates: Sequence[tuple[Value, Value]] = ()
    ) -> Graph:
        """The nodes of this level as the graph of the whole program, verified."""
        conversion = self.conversion
        weights = (*conversion.weights, *conversion.literals.added)
        nodes = tuple(self.emitter.nodes)
        graph = Graph(conversion.where, tuple(inputs), nodes, tuple(outputs), weights, tuple(updates))
        verify(graph)
        return graph

    def graph(self, hint: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
        """The nodes of this level as a graph."""
        return Graph(self.conversion.names.fresh(hint), tuple(inputs), tuple(self.emitter.nodes), tuple(outputs))


def _argument(argument: Any, inputs: dict[Value, int], where: str) -> Argument:
    """An argument as data; the values it reads are appended to `inputs`."""
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
