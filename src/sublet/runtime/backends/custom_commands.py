"""Custom commands of the user: an op with its facts, and a Python function as its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.errors import RunError, SpecError, SubletError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.op import Attrs, Gradient, Op, Shares, Specs, is_registered, no_shares, overwrite_any, register
from sublet.runtime.kernel import Array, Call, Kernel, Operand, store

# User-defined dialects: ops by name, under a prefix without a built-in dialect.

_ops: dict[str, dict[str, Op]] = {}


def define_op(op: Op) -> None:
    """Register the op; an op with the same name is replaced.

    Raises RunError if the name has no prefix, or a prefix of a built-in dialect.
    """
    prefix, _, rest = op.name.partition(".")
    if not prefix or not rest:
        raise RunError(f"{op.name!r} has no dialect prefix: name it 'prefix.name', as in 'mine.scale'")
    if prefix not in _ops:
        if is_registered(prefix):
            raise RunError(f"{op.name!r}: the dialect {prefix!r} is in use; choose another prefix")
        _ops[prefix] = {}
        register(prefix, partial(_find_op, prefix))
    _ops[prefix][op.name] = op


def _find_op(prefix: str, name: str) -> Op:
    try:
        return _ops[prefix][name]
    except KeyError:
        raise SubletError(f"there is no op {name!r}; {prefix!r} has {', '.join(sorted(_ops[prefix]))}") from None


Compute = Callable[..., Any]
Scratch = int | Callable[[Node], int]
InferSpecs = Callable[..., TensorSpec | Sequence[TensorSpec]]


def command(
    name: str,
    kernel: Compute,
    *,
    inplace: Sequence[int] | Shares = (),
    views: Shares = no_shares,
    scratch: Scratch = 0,
    inputs: tuple[int, int] | None = None,
    outputs: tuple[int, int] | None = (1, 1),
    pure: bool = True,
    infer: InferSpecs | None = None,
    gradient: Gradient | None = None,
) -> None:
    """Define a custom op, planned and run like any other.

    `name` is "prefix.name", with a prefix used by no dialect. A graph may then contain

        %y: f32[8] = mine.scale(%x) {factor = 2}

    kernel    `kernel(x, out=y, factor=2)`: an array for each input (None for an omitted input), `out` the array of
              the output, or a tuple for several results, and the attributes by name. The kernel writes
              all of `out`, as NumPy's functions do: `np.negative` is a kernel. A returned result is copied
              to `out`. An array of a type below 8 bits is its packed bytes.
    inplace   the inputs that the output may overwrite, given the same shape and element size: their
              positions, or a function of the node returning `Share`s. The kernel must read each element of such
              an input before writing the same element of the output, and may receive the same array twice.
    views     a function of the node returning `Share`s: the outputs that are bytes of an input. If the views cover
              all outputs, the kernel is not called; otherwise the kernel must not write bytes already in place.
    scratch   the bytes needed by the kernel during a call, or a function of the node. Scratch is planned
              like a tensor; the kernel receives `scratch`, an array of bytes with arbitrary content.
    inputs, outputs   the least and the most operands of a node; None for any number
    pure      True if equal inputs give equal outputs, without side effects
    infer     shape inference, `infer(x, factor=2)`: from the specs of the inputs to a `TensorSpec`, or a tuple of them.
              Required to apply the op in Python, `g.apply("mine.scale", x, factor=2)`, also in a dynamic graph
    gradient  the rule of reverse mode, `gradient(emit, node, grads)`: the gradients of the inputs, None for zero,
              as `[emit("nn.mul", grads[0], node.inputs[1]), None]`; `grads` has None for outputs without readers

    A second definition of a name replaces the first. Raises RunError for a name without a separate prefix. During a
    run, an exception of the kernel, or a result that does not fit, raises a KernelError naming the node.
    """
    facts = inplace if callable(inplace) else overwrite_any(*inplace)
    made = None if infer is None else partial(_infer_specs, name, infer)
    define_op(Op(name, views, inplace=facts, pure=pure, inputs=inputs, outputs=outputs, infer=made, gradient=gradient))
    _commands[name] = (kernel, scratch)


def _infer_specs(name: str, infer: InferSpecs, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the specs inferred by a function of the user. Raises SpecError for every foreign exception."""
    try:
        inferred = infer(*specs, **attrs)
    except SubletError:
        raise
    except Exception as error:
        shown = ", ".join("nothing" if spec is None else str(spec) for spec in specs)
        raise SpecError(f"{name} of {shown}: {type(error).__name__}: {error}") from error
    results = tuple(inferred) if isinstance(inferred, tuple | list) else (inferred,)
    if not all(isinstance(spec, TensorSpec) for spec in results):
        raise SpecError(f"{name}: `infer` returned {inferred!r}, expected a TensorSpec or a tuple of TensorSpecs")
    return results


_commands: dict[str, tuple[Compute, Scratch]] = {}


def uses_commands(graph: Graph) -> bool:
    """True if a node of the graph has an op defined by `command`."""
    return any(node.op in _commands for node in graph.walk())


@dataclass(frozen=True)
class CustomCommands:
    """The backend of the ops defined by `command`."""

    name: str = "command"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of a custom op. Raises RunError when the node has values outside the plan."""
        if node.op not in _commands:
            return None
        for value in (*node.uses, *node.defs):
            if not value.plannable:
                raise RunError(
                    f"node {node.name}, {node.op}: {value} is {value.spec}, expected a tensor of known type and shape"
                )
        compute, scratch = _commands[node.op]
        return _CustomKernel(node, compute, scratch if isinstance(scratch, int) else scratch(node))


@dataclass(frozen=True)
class _CustomKernel:
    """The kernel of a custom op: calls the function of the user."""

    node: Node
    compute: Compute
    scratch: int
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        out = tuple(outputs) if len(outputs) != 1 else outputs[0]
        given = {**self.node.attrs, "out": out} | ({} if scratch is None else {"scratch": scratch})
        compute, operands = self.compute, tuple(inputs)
        what = f"node {self.node.name}, {self.node.op}: the kernel's result"

        def run() -> None:
            returned = compute(*operands, **given)
            if returned is not None and returned is not out:
                _store(returned, out, what)

        return run


def _store(returned_value: Any, out: Any, what: str) -> None:
    """Copy the results returned by a kernel to their outputs, unless already there."""
    results = list(out) if isinstance(out, tuple) else [out]
    returned = list(returned_value) if isinstance(out, tuple) else [returned_value]
    if len(returned) != len(results):
        raise ValueError(f"the kernel returned {len(returned)} results, expected {len(results)}")
    for content, to in zip(returned, results, strict=True):
        if to is not None and content is not to:
            store(content, to, what)
