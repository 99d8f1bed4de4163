"""Commands of the user's own: an op with its facts, and a Python function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.errors import RunError, SpecError, SubletError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.custom import define
from sublet.ops.onnx_inplace import elementwise
from sublet.ops.op import Attrs, Gradient, Op, Shares, Specs, none
from sublet.runtime.calls import store
from sublet.runtime.kernel import Array, Call, Kernel, Operand

Compute = Callable[..., Any]
Scratch = int | Callable[[Node], int]
Makes = Callable[..., TensorSpec | Sequence[TensorSpec]]


def command(
    name: str,
    kernel: Compute,
    *,
    inplace: Sequence[int] | Shares = (),
    views: Shares = none,
    scratch: Scratch = 0,
    inputs: tuple[int, int] | None = None,
    outputs: tuple[int, int] | None = (1, 1),
    pure: bool = True,
    infer: Makes | None = None,
    gradient: Gradient | None = None,
) -> None:
    """Define an op of your own, which is planned and run like any other.

    `name` is "prefix.name", with a prefix that no dialect has. Then a graph may say

        %y: f32[8] = mine.scale(%x) {factor = 2}

    kernel    `kernel(x, out=y, factor=2)`: an array for each input (None for an omitted one), `out` the array of
              the output, or a tuple where the node has several results, and the attributes by name. It writes
              all of `out`, as NumPy's functions do: `np.negative` is a kernel. What it returns instead is copied
              there. An array of a type below 8 bits is its packed bytes.
    inplace   which inputs the output may be written over when they have its shape and size of elements: their
              positions, or a function of the node that gives `Share`s. The kernel must read each element of such
              an input before it writes that of the output, and may be given the same array twice.
    views     a function of the node that gives `Share`s: which outputs are bytes of an input. Where they explain
              all that the node does, the kernel is not called; where not, it must leave alone what lies there already.
    scratch   bytes that the kernel needs while it runs, or a function of the node that gives them. They are planned
              like a tensor; the kernel gets them as `scratch`, an array of bytes with anything in it.
    inputs, outputs   how many a node has, at least and at most; None for any number
    pure      the same inputs give the same outputs, and nothing else happens
    infer     `infer(x, factor=2)`: what it makes of inputs of such specs, a `TensorSpec` or a tuple of them. Then the
              op can be written in Python: `g.apply("mine.scale", x, factor=2)`, in a dynamic graph too
    gradient  the rule of reverse mode, `gradient(emit, node, grads)`: the gradients of the inputs, None for zero, as
              `[emit("nn.mul", grads[0], node.inputs[1]), None]`; of outputs that nobody reads `grads` has None

    A second definition of a name replaces the first. Raises RunError for a name without a prefix of its own. When it
    runs, whatever the kernel raises is a KernelError that names the node, and so is a result that does not fit.
    """
    facts = inplace if callable(inplace) else elementwise(tuple(inplace))
    made = None if infer is None else partial(_made, name, infer)
    define(Op(name, views, inplace=facts, pure=pure, inputs=inputs, outputs=outputs, infer=made, gradient=gradient))
    _commands[name] = (kernel, scratch)


def _made(name: str, infer: Makes, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """What a function of the user's says that an op gives. Raises SpecError for whatever it raises."""
    try:
        found = infer(*specs, **attrs)
    except SubletError:
        raise
    except Exception as error:
        shown = ", ".join("nothing" if spec is None else str(spec) for spec in specs)
        raise SpecError(f"{name} of {shown}: {type(error).__name__}: {error}") from error
    several = tuple(found) if isinstance(found, tuple | list) else (found,)
    if not all(isinstance(spec, TensorSpec) for spec in several):
        raise SpecError(f"{name}: `infer` gave {found!r}, it must be a TensorSpec or a tuple of them")
    return several


_commands: dict[str, tuple[Compute, Scratch]] = {}


def uses_commands(graph: Graph) -> bool:
    """Whether a node of the graph is of an op that `command` defined."""
    return any(node.op in _commands for node in graph.walk())


@dataclass(frozen=True)
class Commands:
    """The backend of the ops that `command` defined."""

    name: str = "command"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The kernel of an op of the user's. Raises RunError when the node has values outside the plan."""
        if node.op not in _commands:
            return None
        for value in (*node.uses, *node.defs):
            if not value.plannable:
                raise RunError(f"node {node.name}, {node.op}: {value} is {value.spec}; a command takes planned tensors")
        compute, scratch = _commands[node.op]
        return _CommandKernel(node, compute, scratch if isinstance(scratch, int) else scratch(node))


@dataclass(frozen=True)
class _CommandKernel:
    node: Node
    compute: Compute
    scratch: int
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        out = tuple(outputs) if len(outputs) != 1 else outputs[0]
        given = {**self.node.attrs, "out": out} | ({} if scratch is None else {"scratch": scratch})
        compute, operands = self.compute, tuple(inputs)
        what = f"node {self.node.name}, {self.node.op}: what the kernel returned"

        def run() -> None:
            found = compute(*operands, **given)
            if found is not None and found is not out:
                _store(found, out, what)

        return run


def _store(found: Any, out: Any, what: str) -> None:
    """Copy what a kernel returned to where its results lie, unless it lies there."""
    results = list(out) if isinstance(out, tuple) else [out]
    returned = list(found) if isinstance(out, tuple) else [found]
    if len(returned) != len(results):
        raise ValueError(f"the kernel returned {len(returned)} results instead of {len(results)}")
    for content, to in zip(returned, results, strict=True):
        if to is not None and content is not to:
            store(content, to, what)
