"""Tensors of a `.pt2` file: types, layouts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import MAX_AXES, MAX_BYTES
from sublet.integrations.torch.reader.pt2_schema import field_error
from sublet.integrations.torch.reader.traced_tensor import torch

# PyTorch's numbers of enumerations: ScalarType, Layout and MemoryFormat in torch/_export/serde/schema.py.
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu",
    34: "uint32", 35: "uint64",
}  # fmt: skip
STRIDED = 7


@dataclass(frozen=True)
class Payload:
    """The content of a tensor in the file; `is_parameter` is True for a parameter."""

    tensor: Any
    is_parameter: bool


def meta_dtype(meta: Mapping[str, Any], where: str) -> Any:
    """Return the PyTorch dtype of a "meta" record. Raises ModelError for an unknown number."""
    return dtype_of_number(meta["dtype"], where)


def dtype_of_number(number: int, where: str) -> Any:
    """Return the PyTorch dtype of a number in the file. Raises ModelError for an unknown number."""
    if number not in DTYPES:
        raise field_error(where, f"elements of type {number} are not known")
    return getattr(torch(), DTYPES[number])


def meta_layout(meta: Mapping[str, Any], where: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return extents, strides and offset of a "meta" record, in elements.

    Raises:
        ModelError: for an open or negative extent, more than `MAX_AXES` axes, a tensor beyond `MAX_BYTES` bytes, and a
            tensor without strides.
    """
    if meta["layout"] != STRIDED:
        raise field_error(where, f"a tensor of layout {meta['layout']} cannot be planned; {STRIDED} is strided")
    numbers = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
    if any("as_int" not in each for each in numbers):
        raise field_error(where, "an extent is open: export with fixed extents")
    size, stride = (tuple(each["as_int"] for each in meta[key]) for key in ("sizes", "strides"))
    offset = meta["storage_offset"]["as_int"]
    if len(size) > MAX_AXES or len(size) != len(stride):
        raise field_error(where, f"{len(size)} extents and {len(stride)} steps; at most {MAX_AXES} axes, one step each")
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0
    if min([offset, 0, *size, *stride]) < 0 or max(prod(size), reach + offset, *size, 0) > MAX_BYTES // 16:
        raise field_error(where, f"extents {str(list(size))[:80]} and steps {str(list(stride))[:80]} are out of range")
    return size, stride, offset


def tensor_over_bytes(content: bytes, meta: Mapping[str, Any], where: str) -> Any:
    """Return a tensor over a copy of the bytes. Raises ModelError for a tensor longer than the bytes."""
    size, stride, offset = meta_layout(meta, where)
    dtype, held = meta_dtype(meta, where), bytearray(content)
    count = len(held) // dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else offset - 1
    if last >= count:
        raise field_error(where, f"is said to be longer than its {len(held)} bytes")
    flat = torch().frombuffer(held, dtype=dtype, count=count) if count else torch().empty(0, dtype=dtype)
    return flat.as_strided(size, stride, offset)


# The inputs and outputs of a `.pt2` program: weights, the user's inputs, results, updated weights.


class Pt2Weights:
    """The weights of a program, renamed to `weight_0`, `weight_1`, ...

    own_names  Sublet's names by the names in the file
    state      parameters and persistent buffers by Sublet's name
    constants  non-persistent buffers and tensor constants by Sublet's name
    """

    def __init__(self, where: str, payloads: Mapping[str, Payload]) -> None:
        self.where, self.payloads = where, payloads
        self.own_names: dict[str, str] = {}
        self.state: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}

    @property
    def names(self) -> Mapping[str, str]:
        """The names in the file by Sublet's names."""
        return {own: name for name, own in self.own_names.items()}

    def own_name(self, name: str) -> str:
        """Return Sublet's name of a weight. Raises ModelError for an updated weight missing among the inputs."""
        if name not in self.own_names:
            raise ModelError(f"{self.where}: the weight {name[:80]!r} is changed, and is no input of the program")
        return self.own_names[name]

    def add_weight(self, name: str, into: dict[str, Any]) -> str:
        """Add a weight to `into`, and return Sublet's name. Raises ModelError for a weight without content."""
        if name not in self.payloads:
            raise ModelError(f"{self.where}: the content of the weight {name[:80]!r} is missing")
        own = self.own_names.setdefault(name, f"weight_{len(self.own_names)}")
        payload = self.payloads[name]
        parameter = (
            torch().nn.Parameter(payload.tensor, requires_grad=False) if payload.is_parameter else payload.tensor
        )
        into[own] = parameter
        return own

    def input_spec(self, record: Mapping[str, Any], node: Any) -> Any:
        """Return the InputSpec of an input of the program."""
        signature = torch().export.graph_signature
        ((kind, spec),) = record.items()
        kinds, argument = signature.InputKind, signature.TensorArgument(node.name)
        if kind == "parameter":
            return signature.InputSpec(kinds.PARAMETER, argument, self.add_weight(spec["parameter_name"], self.state))
        if kind == "buffer":
            into = self.state if spec["persistent"] else self.constants
            return signature.InputSpec(
                kinds.BUFFER, argument, self.add_weight(spec["buffer_name"], into), spec["persistent"]
            )
        if kind == "tensor_constant":
            name = self.add_weight(spec["tensor_constant_name"], self.constants)
            return signature.InputSpec(kinds.CONSTANT_TENSOR, argument, name)
        if kind == "constant_input":
            argument = signature.ConstantArgument(node.name, node.meta["val"])
        return signature.InputSpec(kinds.USER_INPUT, argument, None)

    def output_spec(self, record: Mapping[str, Any], result: Any, nodes: Mapping[str, Any]) -> Any:
        """Return the OutputSpec of a result of the program. `nodes` holds the nodes by the names in the file.

        Raises ModelError for an update of a missing input or weight.
        """
        signature = torch().export.graph_signature
        ((kind, spec),) = record.items()
        kinds = signature.OutputKind
        is_node = isinstance(result, torch().fx.Node)
        argument = signature.TensorArgument(result.name) if is_node else signature.ConstantArgument("", result)
        if kind == "user_output":
            return signature.OutputSpec(kinds.USER_OUTPUT, argument, None)
        if kind == "user_input_mutation":
            if spec["user_input_name"] not in nodes:
                raise ModelError(f"{self.where}: the input {spec['user_input_name'][:80]!r} is changed, and is none")
            return signature.OutputSpec(kinds.USER_INPUT_MUTATION, argument, nodes[spec["user_input_name"]].name)
        if kind == "buffer_mutation":
            return signature.OutputSpec(kinds.BUFFER_MUTATION, argument, self.own_name(spec["buffer_name"]))
        return signature.OutputSpec(kinds.PARAMETER_MUTATION, argument, self.own_name(spec["parameter_name"]))


def call_signature(inputs: int, outputs: int) -> Any:
    """Return the signature of the program's call: a tuple of inputs in, a tuple of outputs out."""
    pytree = require("torch.utils._pytree", extra="torch")
    exported = require("torch.export", extra="torch")
    given = pytree.tree_structure(((0,) * inputs, {}))
    results = pytree.tree_structure((0,) * outputs)
    call = exported.ModuleCallSignature(inputs=[], outputs=[], in_spec=given, out_spec=results)
    return exported.ModuleCallEntry("", call)
