"""Reading and validation of untrusted ONNX files: size, format, operator sets, local functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.names import unused_name
from sublet.base.optional_imports import require
from sublet.integrations.onnx.dialect import always_written_outputs

if TYPE_CHECKING:
    import onnx

MAX_FILE_BYTES = (1 << 31) - 1
MAX_OPSET_VERSION = (1 << 31) - 1
MAX_INLINED_NODES = 1_000_000
FunctionKey = tuple[str, str]


def read_model(path: Path) -> onnx.ModelProto:
    """Read the model at `path`; external data is not read.

    Raises ModelError when the file cannot be read or is not an ONNX model.
    """
    message = require("google.protobuf.message", extra="onnx")
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{path}: {size} bytes; a protobuf file has at most 2 GiB: store weights as external data")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    model: onnx.ModelProto = require("onnx", extra="onnx").ModelProto()
    try:
        model.ParseFromString(content)
    except (message.DecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not an ONNX model, or a truncated one ({error})") from None
    return model


def opsets_of(model: onnx.ModelProto, where: str) -> dict[str, int]:
    """Return the version of every imported operator set by domain, "" for the default domain.

    Raises ModelError without a graph or operator set, and when the `onnx` package is too old for the model.
    """
    onnx = require("onnx", extra="onnx")
    if not model.HasField("graph") or not model.ir_version:
        raise ModelError(f"{where}: not an ONNX model: it has no {'graph' if model.ir_version else 'IR version'}")
    if not model.opset_import:
        raise ModelError(f"{where}: names no operator set; the file may be truncated")
    opsets = {domain_of(opset.domain): int(opset.version) for opset in model.opset_import}
    newest = int(onnx.defs.onnx_opset_version())
    if not 1 <= opsets.get("", 1) <= newest:
        raise ModelError(
            f"{where}: operator set {opsets['']}; the installed onnx package knows 1 to {newest}: upgrade it"
        )
    for domain, version in opsets.items():
        if not 1 <= version <= MAX_OPSET_VERSION:
            raise ModelError(
                f"{where}: the operator set {domain!r} has no version {version}; the file may be corrupted"
            )
    return opsets


def require_utf8(message: Any, where: str) -> None:
    """Raise ModelError for any string in a protobuf message with invalid UTF-8, which protobuf returns as bytes."""
    for field, content in message.ListFields():
        if field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_STRING:
            for text in content if field.is_repeated else (content,):
                if not isinstance(text, str):
                    raise ModelError(f"{where}: the {field.name} {text!r} is not UTF-8")
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            for inner in content if field.is_repeated else (content,):
                require_utf8(inner, where)


BRANCHES = "sublet.branches"
"""The domain of the local functions of `inline_branches`."""

TakenBranches = dict[tuple[str, ...], bool]
"""The branches of Ifs with a constant condition: True for then. The key is the first output of the If, after the first
outputs of the Ifs around the If, outermost first."""


def domain_of(domain: str) -> str:
    """Return the canonical domain: "ai.onnx" is an alias of the default domain, ""."""
    return "" if domain == "ai.onnx" else domain


def inline_functions(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return the model with calls of local functions replaced by the function bodies.

    Raises ModelError for recursive functions, and for functions expanding to more than a million nodes.
    """
    if not model.functions:
        return model
    _check_inlined_size(model, where)
    inliner = require("onnx.inliner", extra="onnx")
    try:
        result: onnx.ModelProto = inliner.inline_local_functions(model)
    except Exception as error:  # the binding passes on every C++ exception
        raise ModelError(f"{where}: the model's local functions cannot be inlined: {error}") from None
    if result.functions:
        raise ModelError(f"{where}: local functions of another operator set version cannot be inlined")
    return result


def inline_branches(model: onnx.ModelProto, taken: TakenBranches, where: str) -> onnx.ModelProto:
    """Return the model with one branch in place of every If in `taken`.

    A branch becomes the body of a local function, because ONNX's inliner renames the values of a body. Initialisers of
    the branch become initialisers of the model. Raises ModelError if the inliner refuses the model.
    """
    if not taken:
        return model
    changed = type(model)()
    changed.CopyFrom(model)
    names = set(_value_names(model))
    for node in changed.graph.node:
        path = (first_output(node),)
        if path in taken:
            node.CopyFrom(_call_of_branch(changed, node, path, taken, names))
    changed.opset_import.append(require("onnx.helper", extra="onnx").make_opsetid(BRANCHES, 1))
    return inline_functions(changed, where)


def first_output(node: onnx.NodeProto) -> str:
    """Return the name of the first named output; "" without one."""
    return next(filter(None, node.output), "")


def _call_of_branch(
    model: onnx.ModelProto, node: onnx.NodeProto, path: tuple[str, ...], taken: TakenBranches, names: set[str]
) -> onnx.NodeProto:
    """Return the call of a new local function of `model`, the taken branch of the If `node`.

    `names` are the names in use. The initialisers of the branch are passed to the function.
    """
    helper, graph = require("onnx.helper", extra="onnx"), model.graph
    side = "then_branch" if taken[path] else "else_branch"
    branch = next(attribute.g for attribute in node.attribute if attribute.name == side)
    arguments = {name: name for name in free_names(branch)}
    for tensor in branch.initializer:
        arguments[tensor.name] = unused_name(tensor.name, names)
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = arguments[tensor.name]
    for sparse in branch.sparse_initializer:
        arguments[sparse.values.name] = unused_name(sparse.values.name, names)
        graph.sparse_initializer.add().CopyFrom(sparse)
        graph.sparse_initializer[-1].values.name = arguments[sparse.values.name]
    body = list(branch.node)
    for i, inner in enumerate(body):
        inner_path = (*path, first_output(inner))
        if inner_path in taken:
            body[i] = _call_of_branch(model, inner, inner_path, taken, names)
            arguments.update((name, name) for name in body[i].input if name not in names_read_by(inner))
    outputs = zip(node.output, branch.output, strict=False)
    results = {unused_name(f"{name}.out", names): value.name for name, value in outputs if name}
    body += [helper.make_node("Identity", [source], [name]) for name, source in results.items()]
    title, parameters = f"branch{len(model.functions)}", list(arguments)
    function = helper.make_function(BRANCHES, title, parameters, list(results), body, model.opset_import)
    model.functions.append(function)
    call: onnx.NodeProto = helper.make_node(
        title, list(arguments.values()), list(filter(None, node.output)), domain=BRANCHES
    )
    return call


def all_nodes(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield every node, including nodes of sub-graphs, a node before the nodes of the node's sub-graphs."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from all_nodes(iter(graph.node))


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_inlined_size(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError for recursive local functions, call depth above 100, or too many nodes after inlining."""
    bodies = {(domain_of(f.domain), f.name): tuple(all_nodes(iter(f.node))) for f in model.functions}
    calls = {key: _called_functions(nodes, bodies) for key, nodes in bodies.items()}
    sizes: dict[FunctionKey, int] = {}

    def size(key: FunctionKey, callers: tuple[FunctionKey, ...]) -> int:
        if key in callers:
            raise ModelError(f"{where}: the local function {key[1]!r} calls itself")
        if len(callers) > 100:
            raise ModelError(f"{where}: local functions call each other more than 100 deep")
        if key not in sizes:
            inner = sum(size(callee, (*callers, key)) for callee in calls[key])
            sizes[key] = len(bodies[key]) + inner
        return sizes[key]

    total = sum(size(key, ()) for key in _called_functions(tuple(all_nodes(iter(model.graph.node))), bodies))
    if total > MAX_INLINED_NODES:
        raise ModelError(f"{where}: its local functions unfold to {total} nodes, more than {MAX_INLINED_NODES}")


def _called_functions(
    nodes: tuple[onnx.NodeProto, ...], bodies: Mapping[FunctionKey, tuple[onnx.NodeProto, ...]]
) -> tuple[FunctionKey, ...]:
    """Return the local functions called by `nodes`, one entry per call."""
    keys = ((domain_of(node.domain), node.op_type) for node in nodes)
    return tuple(key for key in keys if key in bodies)


# Topological order of an ONNX graph's nodes, and the names read by nodes and sub-graphs.

if TYPE_CHECKING:
    import onnx


def free_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return the names read but not defined by a sub-graph, in order of first use."""
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    defined.update(name for node in graph.node for name in node.output)
    free: dict[str, None] = {}
    for node in graph.node:
        free.update((name, None) for name in names_read_by(node) if name not in defined)
    free.update((value.name, None) for value in graph.output if value.name not in defined)
    return tuple(free)


def names_read_by(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the distinct names read by a node, including the node's sub-graphs."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in graphs_of(node):
        names.update(dict.fromkeys(free_names(graph)))
    return tuple(names)


def node_title(node: onnx.NodeProto) -> str:
    """Return the node's text for messages: the operator, and the name or first output."""
    return f"{node.op_type} {node.name or next((name for name in node.output if name), '')!r}"


def sort_nodes(
    nodes: Sequence[onnx.NodeProto], known: Collection[str], outer: Collection[str], where: str
) -> list[onnx.NodeProto]:
    """Return `nodes` in topological order; the file order is kept where possible.

    `known` are the inputs and initialisers of the graph; `outer` are the names of the enclosing graphs. Raises
    ModelError for an undefined or doubly defined name, and for a cycle.
    """
    producer = _producers_of(nodes, known, where)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for name in names_read_by(node):
            if name in producer:
                waiting[i] += 1
                readers[producer[name]].append(i)
            elif name not in known and name not in outer:
                raise ModelError(f"{where}: node {node_title(node)} reads {name!r}, which nothing defines")
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heappush(ready, reader)
    if len(order) < len(nodes):
        raise ModelError(f"{where}: {_cycle_message(nodes, producer, waiting)}")
    return [nodes[i] for i in order]


def _producers_of(nodes: Sequence[onnx.NodeProto], known: Collection[str], where: str) -> dict[str, int]:
    """Return the position of the node defining each name. Raises ModelError for a doubly defined name."""
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producer or name in known:
                raise ModelError(f"{where}: {name!r} is defined twice, the second time by node {node_title(node)}")
            producer[name] = i
    return producer


def _cycle_message(nodes: Sequence[onnx.NodeProto], producer: dict[str, int], waiting: Sequence[int]) -> str:
    """Return a message naming the nodes of one cycle, found from an unsorted node back along unsorted producers."""
    current = next(i for i, count in enumerate(waiting) if count)
    visited: dict[int, None] = {}
    while current not in visited:
        visited[current] = None
        current = next(
            producer[name] for name in names_read_by(nodes[current]) if name in producer and waiting[producer[name]]
        )
    path = list(visited)
    members = path[path.index(current) :]
    return "the nodes " + " <- ".join(node_title(nodes[i]) for i in [*members, current]) + " form a cycle"


# Naming of unnamed outputs that a kernel writes anyway.
#
# Naming precedes every computation of the node, including constant folding in ONNX Runtime's optimiser.

if TYPE_CHECKING:
    import onnx


DISPUTED_DEFAULTS = {"STFT": ("onesided", 1)}
"""Attributes whose default differs in ONNX's shape inference, with the default of the specification and its kernels."""


def with_explicit_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a name for every output written by a kernel, and with disputed defaults as attributes."""
    if not any(_unnamed_written_outputs(node) or _disputed_default(node) for node in _nodes_of(model)):
        return model
    named = type(model)()
    named.CopyFrom(model)
    taken = set(_value_names(named))
    for node in _nodes_of(named):
        for i in _unnamed_written_outputs(node):
            while len(node.output) <= i:
                node.output.append("")
            node.output[i] = unused_name(f"{next(filter(None, node.output), node.op_type)}.{i}", taken)
        default = _disputed_default(node)
        if default is not None:
            node.attribute.append(require("onnx.helper", extra="onnx").make_attribute(*default))
    return named


def _disputed_default(node: onnx.NodeProto) -> tuple[str, int] | None:
    """Return the name and value of a disputed default that the node does not declare; None without one."""
    default = DISPUTED_DEFAULTS.get(node.op_type) if domain_of(node.domain) == "" else None
    is_declared = default is not None and any(attribute.name == default[0] for attribute in node.attribute)
    return None if is_declared else default


def _nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return all_nodes(iter(model.graph.node))


def _value_names(model: onnx.ModelProto) -> Iterator[str]:
    """Yield every value name of the model, including sub-graphs."""
    graphs = [model.graph]
    for node in _nodes_of(model):
        yield from (*node.input, *node.output)
        graphs += graphs_of(node)
    for graph in graphs:
        yield from (value.name for value in (*graph.input, *graph.initializer))


def _unnamed_written_outputs(node: onnx.NodeProto) -> list[int]:
    """Return the positions of unnamed outputs written by the kernel."""
    given = [bool(name) for name in node.input]
    written = always_written_outputs(domain_of(node.domain), node.op_type, given, len(node.output))
    return sorted(i for i in written if i >= len(node.output) or not node.output[i])


# Sessions of ONNX Runtime that read a model and run no kernel of it: for shapes, and for rewriting.


def session_options() -> Any:
    """Return options for a silent session without weight prepacking."""
    options = require("onnxruntime", extra="onnxruntime").SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(model: bytes, options: Any) -> Any:
    """Open a CPU session over a serialised model. May raise any exception."""
    ort = require("onnxruntime", extra="onnxruntime")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
