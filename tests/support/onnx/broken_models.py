"""ONNX models with something wrong in them: what a broken exporter, or somebody with bad intentions, might write."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import AttributeProto as Attribute

from sublet.integrations.onnx.reader.model_file import all_nodes

NUMBERS = (-1, 0, 1, 2, 5, 99, -99, 1 << 31, 1 << 40, -(1 << 63), (1 << 63) - 1)
TYPES = (*range(28), 99)
KINDS = (Attribute.INT, Attribute.FLOAT, Attribute.STRING, Attribute.INTS, Attribute.TENSOR, Attribute.GRAPH, 0)
OPERATORS = (
    *("Relu", "Conv", "Einsum", "GatherND", "ScatterND", "Resize", "Range", "OneHot", "If", "Loop", "Scan", "Constant"),
    *("QLinearConv", "StringNormalizer", "SequenceAt", "Optional", "Cast"),
)
Break = Callable[[random.Random, onnx.ModelProto, onnx.NodeProto], None]


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    nodes = list(all_nodes(iter(model.graph.node)))
    held = [attribute.t for node in nodes for attribute in node.attribute if attribute.HasField("t")]
    inner = [tensor for node in nodes for attribute in node.attribute for tensor in attribute.g.initializer]
    return [*model.graph.initializer, *held, *inner]


def _number(rng: random.Random, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    attribute = rng.choice(node.attribute)
    if attribute.type == Attribute.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.ints and rng.random() < 0.7:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    else:
        attribute.ints.append(rng.choice(NUMBERS))


def _attribute(rng: random.Random, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    if rng.random() < 0.5:
        del node.attribute[rng.randrange(len(node.attribute))]
    else:
        rng.choice(node.attribute).type = rng.choice(KINDS)


def _operand(rng: random.Random, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    way = rng.randrange(4)
    if way == 0:
        node.input[rng.randrange(len(node.input))] = rng.choice(("", "nowhere"))
    elif way == 1:
        node.input.append(rng.choice(list(node.input)))
    elif way == 2:
        del node.input[-1]
    else:
        node.output.append(rng.choice(("", "extra")))


def _operator(rng: random.Random, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    if rng.random() < 0.3:
        node.domain = rng.choice(("", "com.microsoft", "local", "ai.onnx.ml", "elsewhere"))
    else:
        node.op_type = rng.choice(OPERATORS)


def _content(rng: random.Random, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    tensor, way = rng.choice(_tensors(model)), rng.randrange(4)
    if way == 0:
        tensor.data_type = rng.choice(TYPES)
    elif way == 1:
        tensor.raw_data = tensor.raw_data[:-1]
    elif way == 2:
        tensor.raw_data = b"\xff" * len(tensor.raw_data)
    else:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)


def _version(rng: random.Random, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    rng.choice(model.opset_import).version = rng.choice((*NUMBERS, 7, 11, 13, 18, 26))


BREAKS: tuple[Break, ...] = (_number, _attribute, _operand, _operand, _operator, _content, _content, _version)


def broken(rng: random.Random, model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with one to three things changed."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = list(all_nodes(iter(made.graph.node)))
    for _ in range(rng.choice((1, 1, 2, 3)) if nodes else 0):
        try:
            rng.choice(BREAKS)(rng, made, rng.choice(nodes))
        except (IndexError, ValueError, TypeError):  # there is nothing of that kind to break
            continue
    return made
