"""Reading and validation of untrusted ONNX files: size, format, operator sets, local functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require

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
