"""The JSON schema of a `.pt2` program: all records, fields and types read by Sublet, and the check of a file.

The records are the records of PyTorch's `torch/_export/serde/schema.py` (version 8). PyTorch's own reader resolves text
of the file to Python objects: tree specifications import modules, SymPy evaluates expressions, dotted names are walked.
Here, text stays text. A field missing in the list is an error. A field marked `UNREAD` is dropped before any use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.base.tensor import MAX_AXES, MAX_BYTES
from sublet.integrations.torch.reader.traced_tensor import torch

SCHEMA_MAJOR = 8
"""The version of the records. PyTorch raises the version if old readers cannot read new files."""

MAX_NAME = 4096
MAX_INT = (1 << 63) - 1
MAX_DEPTH = 64
"""Maximum depth of nested graphs."""

UNREAD = object()
"""The type of a dropped field: the content is neither parsed nor resolved."""

FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
"""Numbers without a JSON form, as written by PyTorch."""


@dataclass(frozen=True)
class Nullable:
    """A type, or null."""

    type: Any


Record = Mapping[str, Any]

REQUIRED: dict[str, Record] = {
    "program": {"graph_module": "graph_module", "schema_version": "version"},
    "graph_module": {"graph": "graph", "signature": "signature"},
    "version": {"major": int, "minor": int},
    "graph": {"inputs": ["argument"], "outputs": ["argument"], "nodes": ["node"], "tensor_values": {"": "meta"}},
    "node": {"target": str, "inputs": ["named"], "outputs": ["argument"], "metadata": {"": str}},
    "named": {"name": str, "arg": "argument"},
    "meta": {
        "dtype": int, "sizes": ["extent"], "requires_grad": bool, "device": "device", "strides": ["extent"],
        "storage_offset": "extent", "layout": int,
    },
    "device": {"type": str},
    "name": {"name": str},
    "subgraph": {"name": str, "graph": "graph"},
    "complex": {"real": float, "imag": float},
    "signature": {"input_specs": ["input"], "output_specs": ["output"]},
    "user": {"arg": "argument"},
    "constant": {"name": str, "value": "argument"},
    "parameter": {"arg": "name", "parameter_name": str},
    "buffer": {"arg": "name", "buffer_name": str, "persistent": bool},
    "tensor_constant": {"arg": "name", "tensor_constant_name": str},
    "changed_buffer": {"arg": "name", "buffer_name": str},
    "changed_parameter": {"arg": "name", "parameter_name": str},
    "changed_input": {"arg": "name", "user_input_name": str},
    "payloads": {"config": {"": "payload"}},
    "payload": {"path_name": str, "is_param": bool, "use_pickle": bool, "tensor_meta": Nullable("meta")},
}  # fmt: skip
"""The required fields of a record, by the record's name. `[t]` is a list of t, `{"": t}` an object of t by name."""

OPTIONAL: dict[str, Record] = {
    "program": {
        "opset_version": UNREAD, "range_constraints": UNREAD, "verifiers": UNREAD, "torch_version": UNREAD,
        "guards_code": UNREAD,
    },
    "graph_module": {"module_call_graph": UNREAD, "metadata": UNREAD, "treespec_namedtuple_fields": UNREAD},
    "graph": {
        "sym_int_values": {"": "extent"}, "sym_bool_values": {"": "extent"}, "sym_float_values": {"": "extent"},
        "is_single_tensor_return": bool, "custom_obj_values": UNREAD,
    },
    "node": {"is_hop_single_tensor_return": Nullable(bool), "name": Nullable(str)},
    "named": {"kind": Nullable(int)},
    "device": {"index": Nullable(int)},
}  # fmt: skip
"""The optional fields of a record: some were added in later versions of PyTorch."""

UNIONS: dict[str, Record] = {
    "argument": {
        "as_none": bool, "as_tensor": "name", "as_tensors": ["name"], "as_int": int, "as_ints": [int],
        "as_float": float, "as_floats": [float], "as_string": str, "as_bool": bool, "as_bools": [bool],
        "as_sym_int": "number", "as_sym_ints": ["number"], "as_sym_bool": "number", "as_sym_bools": ["number"],
        "as_sym_float": "number", "as_sym_floats": ["number"], "as_scalar_type": int, "as_memory_format": int,
        "as_layout": int, "as_device": "device", "as_graph": "subgraph", "as_complex": "complex",
        "as_optional_tensor": "optional", "as_optional_tensors": ["optional"],
    },
    "optional": {"as_tensor": "name", "as_none": bool},
    "number": {"as_int": int, "as_bool": bool, "as_float": float, "as_name": str},
    "extent": {"as_int": int, "as_bool": bool, "as_float": float, "as_expr": UNREAD},
    "input": {
        "user_input": "user", "parameter": "parameter", "buffer": "buffer", "tensor_constant": "tensor_constant",
        "constant_input": "constant",
    },
    "output": {
        "user_output": "user", "buffer_mutation": "changed_buffer", "parameter_mutation": "changed_parameter",
        "user_input_mutation": "changed_input",
    },
}  # fmt: skip
"""Records with exactly one of the listed fields."""


def check_json(raw: Any, kind: Any, where: str, depth: int = 0) -> Any:
    """Return decoded JSON after checking the type; unread fields are dropped.

    Args:
        raw: decoded JSON.
        kind: a Python type, the name of a record, `[t]`, `{"": t}` or `Maybe(t)`.
        where: the file and field for errors.
        depth: the number of records around the value.

    Raises:
        ModelError: for a value of another type, a missing or unknown field, a number beyond 64 bits, a name of more
            than `MAX_NAME` characters, and records nested too deep.
    """
    if depth > 12 * MAX_DEPTH:
        raise field_error(where, f"graphs within graphs, more than {MAX_DEPTH} deep")
    if isinstance(kind, Nullable):
        return None if raw is None else check_json(raw, kind.type, where, depth)
    if isinstance(kind, str):
        return _check_record(raw, kind, where, depth)
    if isinstance(kind, list):
        if not isinstance(raw, list):
            raise _type_error(raw, "a list", where)
        return [check_json(each, kind[0], f"{where}[{i}]", depth + 1) for i, each in enumerate(raw)]
    if isinstance(kind, dict):
        if not isinstance(raw, dict):
            raise _type_error(raw, "an object", where)
        return {_check_text(name, where): check_json(each, kind[""], where, depth + 1) for name, each in raw.items()}
    return _check_plain(raw, kind, where)


def _check_record(raw: Any, kind: str, where: str, depth: int) -> dict[str, Any]:
    """Return a record after checking its fields."""
    if not isinstance(raw, dict):
        raise _type_error(raw, "an object", where)
    if kind in UNIONS:
        known = UNIONS[kind]
        if len(raw) != 1:
            raise field_error(where, f"an object of {len(raw)} fields; expected one of {', '.join(known)}")
    else:
        known = {**REQUIRED[kind], **OPTIONAL.get(kind, {})}
    unknown = [name for name in raw if name not in known]
    if unknown:
        raise field_error(
            where,
            f"the field {_short_text(unknown[0])} cannot be planned. Export the program with fixed extents, "
            "without custom classes, with the PyTorch that Sublet is installed with",
        )
    missing = [] if kind in UNIONS else [name for name in REQUIRED[kind] if name not in raw]
    if missing:
        raise field_error(where, f"lacks the field {missing[0]!r}")
    return {
        name: None if known[name] is UNREAD else check_json(each, known[name], f"{where}.{name}", depth + 1)
        for name, each in raw.items()
    }


def _check_plain(raw: Any, kind: Any, where: str) -> Any:
    """Return a number, truth value or text after checking the type and the range."""
    if kind is float:
        if isinstance(raw, str) and raw in FLOATS:
            return FLOATS[raw]
        if isinstance(raw, float) or (isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) <= MAX_INT):
            return float(raw)
        raise _type_error(raw, "a number", where)
    if not isinstance(raw, kind) or isinstance(raw, bool) is not (kind is bool):
        raise _type_error(raw, f"of type {kind.__name__}", where)
    if kind is int and not -MAX_INT - 1 <= raw <= MAX_INT:
        raise field_error(where, "an integer beyond 64 bits")
    return _check_text(raw, where) if kind is str else raw


def _check_text(raw: str, where: str) -> str:
    # Stack traces in metadata are longer than names; the reader keeps one line.
    """Return a text after checking the length."""
    if len(raw) > MAX_NAME and not where.endswith(".metadata"):
        raise field_error(where, f"a text of {len(raw)} characters; at most {MAX_NAME} are read")
    return raw


def field_error(where: str, what: str) -> ModelError:
    """Return the error at a field; a long path loses the middle."""
    short = where if len(where) <= 160 else f"{where[:60]} ... {where[-95:]}"
    return ModelError(f"{short}: {what}")


def _type_error(raw: Any, expected: str, where: str) -> ModelError:
    """Return the error for a value of another type."""
    return field_error(where, f"must be {expected}, not {_short_text(raw)}")


def _short_text(raw: Any) -> str:
    """Return a short text of a value for an error."""
    return repr(raw[:40] if isinstance(raw, str) else raw if isinstance(raw, int | float) else type(raw).__name__)[:60]


# Tensors of a `.pt2` file: types, layouts and bytes.

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
