"""Construction of an ExportedProgram from a checked `.pt2` program, node by node.

No text of the file becomes a Python name: FX writes the names of nodes, placeholders and weights into source code for
compilation, and walks dotted names. Nodes, weights and inner graphs therefore get names by Sublet; the names in the
file stay in a table. Operators and enumerations come from the tables of `integrations/torch/operator_call.py`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.optional_imports import require
from sublet.integrations.torch.operator_call import find_operator
from sublet.integrations.torch.reader.exported_program import error_summary
from sublet.integrations.torch.reader.pt2_schema import (
    SCHEMA_MAJOR,
    STRIDED,
    Payload,
    Pt2Weights,
    call_signature,
    dtype_of_number,
    field_error,
    meta_dtype,
    meta_layout,
)
from sublet.integrations.torch.reader.traced_tensor import torch

# PyTorch's tracing without bytes, bounded in work: a file of a few bytes may request 10^18 steps or results.

MAX_TRACED_CALLS = 1 << 16
"""Maximum operators run by PyTorch while composite operators are decomposed.

At the limit PyTorch has taken up to 35 s and 2 GB. An LSTM of two layers and 1,000 steps takes 16,000 operators.
"""

MAX_RESULTS = 1 << 16
"""Maximum tensors returned by one operator."""

SPLIT_OPERATORS = {"aten::split.Tensor", "aten::unsafe_split.Tensor", "aten::split_copy.Tensor"}
UNBIND_OPERATORS = {"aten::unbind.int", "aten::unbind_copy.int"}


def bounded_fake_mode(where: str) -> Any:
    """Return a fake tensor mode of PyTorch with an end to programs of too much work.

    The mode refuses operators without a shape rule: PyTorch would run their kernels on zeros of the full size.

    Raises:
        ModelError: inside the mode, beyond `MAX_TRACED_CALLS` operators or `MAX_RESULTS` results of one operator.
    """
    fake_tensor = require("torch._subclasses.fake_tensor", extra="torch")
    shapes = require("torch.fx.experimental.symbolic_shapes", extra="torch").ShapeEnv()
    mode = fake_tensor.FakeTensorMode(allow_fallback_kernels=False, shape_env=shapes)
    run, calls = mode.dispatch, 0

    def dispatch(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        nonlocal calls
        calls += 1
        if calls > MAX_TRACED_CALLS:
            raise ModelError(
                f"{where}: takes more than {MAX_TRACED_CALLS} operators once composite ones are taken apart"
            )
        if count_results(func, args) > MAX_RESULTS:
            raise ModelError(f"{where}: {func} returns more than {MAX_RESULTS} tensors")
        return run(func, types, args, kwargs)

    mode.dispatch = dispatch
    return mode


def count_results(func: Any, args: Sequence[Any]) -> int:
    """Return the number of results of an operator splitting a tensor along an axis; 0 for any other operator."""
    name = func.name() if hasattr(func, "name") else ""
    if name not in SPLIT_OPERATORS | UNBIND_OPERATORS or not args:
        return 0
    axis = args[2 if name in SPLIT_OPERATORS else 1] if len(args) > (2 if name in SPLIT_OPERATORS else 1) else 0
    extent = args[0].shape[axis] if -args[0].dim() <= axis < args[0].dim() else 0
    rows = args[1] if name in SPLIT_OPERATORS else 1
    return int(extent) // max(int(rows), 1)


HIGHER_ORDER = ("cond", "while_loop", "scan", "map_impl", "wrap_with_set_grad_enabled")
"""Operators on inner graphs a program may call, in `torch.ops.higher_order`."""

OPERATOR_NAME = re.compile(r"torch\.ops\.((?:aten|_c10d_functional)\.\w{1,200}\.\w{1,200})", re.ASCII)
TRACE_LINE = re.compile(r'File "(?:[^"\n]*/)?([\w.<> -]{1,100})", line (\d{1,9})', re.ASCII)

MODULE_PATH = re.compile(r",([\w.]{0,200}),([\w.]{1,200})$", re.ASCII)
"""Path and class of the innermost module, at the end of a node's stack of modules."""

# PyTorch's numbers of memory formats and kinds of arguments, in torch/_export/serde/schema.py.
MEMORY_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
POSITIONAL = 1

COUNT_ARGUMENTS = ("sections", "chunks", "r", "num_layers")
"""Arguments with a number of tensors PyTorch allocates for, before looking at the operand."""


@dataclass(frozen=True)
class Pt2Program:
    """A program read from a file.

    exported  the ExportedProgram
    weights   the names of weights in the file, by the names in `exported`
    inputs    the names of the user's inputs in the file, in order
    """

    exported: Any
    weights: Mapping[str, str]
    inputs: Sequence[str]


def build_program(record: Mapping[str, Any], payloads: Mapping[str, Payload], where: str) -> Pt2Program:
    """Return the program of a checked record.

    Args:
        record: a "program" record, as returned by `pt2_schema.check_json`.
        payloads: the tensors of weights and constants by name.
        where: the file for errors.

    Raises:
        ModelError: for an operator, argument or input impossible to plan, an undefined name, and a program refused by
            PyTorch.
    """
    if record["schema_version"]["major"] != SCHEMA_MAJOR:
        raise ModelError(
            f"{where}: has version {record['schema_version']['major']} of the format; {SCHEMA_MAJOR} is read"
        )
    builder = _Pt2Builder(where, payloads)
    try:
        return builder.build_exported(record["graph_module"])
    except ModelError:
        raise
    except Exception as cause:  # PyTorch's constructors raise many types of errors for invalid programs
        raise ModelError(f"{where}: PyTorch does not take the program: {error_summary(cause)}") from None


@dataclass
class _Pt2Graph:
    """One graph under construction: nodes and tensor records by the names in the file."""

    graph: Any
    root: Any
    nodes: dict[str, Any] = field(default_factory=dict)
    metas: Mapping[str, Any] = field(default_factory=dict)


class _Pt2Builder:
    """Builder of an ExportedProgram from records."""

    def __init__(self, where: str, payloads: Mapping[str, Payload]) -> None:
        self.where, self.payloads = where, payloads
        self.fake_mode = bounded_fake_mode(where)
        self.subgraphs = 0

    def build_exported(self, module: Mapping[str, Any]) -> Pt2Program:
        """Return the program of a "graph_module" record."""
        t, in_training = torch(), require("torch._export.verifier", extra="torch")
        signature, graph = module["signature"], module["graph"]
        built = self.build_graph(graph)
        inputs = [node for node in built.graph.nodes if node.op == "placeholder"]
        if len(inputs) != len(signature["input_specs"]):
            raise ModelError(
                f"{self.where}: {len(inputs)} inputs, and the signature has {len(signature['input_specs'])}"
            )
        weights = Pt2Weights(self.where, self.payloads)
        signatures = t.export.graph_signature
        input_specs = [weights.input_spec(*pair) for pair in zip(signature["input_specs"], inputs, strict=True)]
        results = next(node for node in built.graph.nodes if node.op == "output").args[0]
        if len(results) != len(signature["output_specs"]):
            raise ModelError(
                f"{self.where}: {len(results)} outputs, the signature has {len(signature['output_specs'])}"
            )
        output_specs = [
            weights.output_spec(spec, result, built.nodes)
            for spec, result in zip(signature["output_specs"], results, strict=True)
        ]
        user = [len([s for s in specs if s.kind.name.startswith("USER_") and "MUTATION" not in s.kind.name])
                for specs in (input_specs, output_specs)]  # fmt: skip
        exported = t.export.ExportedProgram(
            built.root, built.graph, signatures.ExportGraphSignature(input_specs, output_specs), weights.state, {},
            [call_signature(*user)], None, weights.constants, verifiers=[in_training.TrainingIRVerifier],
        )  # fmt: skip
        names = {node: name for name, node in built.nodes.items()}
        users = [pair for pair in zip(input_specs, inputs, strict=True) if pair[0].kind.name == "USER_INPUT"]
        return Pt2Program(exported, weights.names, tuple(names.get(node, node.name) for _, node in users))

    # -- graphs ---------------------------------------------------------------------------------

    def build_graph(self, record: Mapping[str, Any]) -> _Pt2Graph:
        """Return the FX graph of a "graph" record."""
        t = torch()
        made = _Pt2Graph(t.fx.Graph(), t.nn.Module(), metas=record["tensor_values"])
        for i, argument in enumerate(record["inputs"]):
            ((kind, value),) = argument.items()
            if kind == "as_tensor":
                node = made.graph.placeholder(f"input_{i}")
                node.meta["val"] = self.fake_tensor(made, value["name"])
                self.define_value(made, value["name"], node)
            elif kind in ("as_none", "as_int", "as_float", "as_bool", "as_string"):
                node = made.graph.placeholder(f"input_{i}")
                node.meta["val"] = None if kind == "as_none" else value
            else:
                raise field_error(
                    f"{self.where}: input {i}", f"{kind} is no input that can be planned: export fixed extents"
                )
        for position, node in enumerate(record["nodes"]):
            self.add_node(made, node, f"{self.where}: node {position}")
        outputs = tuple(
            self.read_argument(made, each, f"{self.where}: output {i}") for i, each in enumerate(record["outputs"])
        )
        single = record.get("is_single_tensor_return", False)
        if single and len(outputs) != 1:
            raise ModelError(f"{self.where}: a graph said to return one tensor returns {len(outputs)} values")
        output = made.graph.output(outputs[0] if single else outputs)
        output.meta["val"] = tuple(getattr(each, "meta", {}).get("val", each) for each in outputs)
        return made

    def define_value(self, made: _Pt2Graph, name: str, node: Any) -> None:
        """Record a node under a name in the file. Raises ModelError for a second definition."""
        if name in made.nodes:
            raise ModelError(f"{self.where}: the value {name[:80]!r} is defined twice")
        made.nodes[name] = node

    def fake_tensor(self, made: _Pt2Graph, name: str) -> Any:
        """Return a tensor without bytes, with type and layout from the file."""
        if name not in made.metas:
            raise ModelError(f"{self.where}: the tensor {name[:80]!r} has no type")
        meta = made.metas[name]
        size, stride, _ = meta_layout(meta, f"{self.where}: the tensor {name[:80]!r}")
        t = torch()
        with self.fake_mode:
            return t.empty_strided(
                size, stride, dtype=meta_dtype(meta, self.where), device=self.device_of(meta["device"])
            )

    def device_of(self, record: Mapping[str, Any]) -> Any:
        """Return the device of a "device" record. Raises ModelError for a device other than "cpu" and "meta"."""
        if record["type"] not in ("cpu", "meta"):
            raise ModelError(f"{self.where}: a program on {record['type'][:20]!r}: export the module after .cpu()")
        return torch().device(record["type"])

    # -- nodes ----------------------------------------------------------------------------------

    def add_node(self, made: _Pt2Graph, record: Mapping[str, Any], where: str) -> None:
        """Add the call of a "node" record to a graph."""
        target, text = record["target"], record["target"].removeprefix("torch.ops.higher_order.")
        higher = text in HIGHER_ORDER and target != text
        if higher:
            function = getattr(torch().ops.higher_order, text)
            args: list[Any] = [self.read_argument(made, each["arg"], where) for each in record["inputs"]]
            kwargs: dict[str, Any] = {}
        else:
            name = OPERATOR_NAME.fullmatch(target)
            function = find_operator(name[1]) if name else None
            if function is None:
                raise field_error(where, f"calls {target[:80]!r}, which is not planned")
            args, kwargs = self.operator_arguments(made, function, record["inputs"], where)
        node = made.graph.call_function(function, tuple(args), kwargs)
        modules = MODULE_PATH.search(record["metadata"].get("nn_module_stack", ""))
        node.meta["nn_module_stack"] = {"": (modules[1], modules[2])} if modules else {}
        lines = TRACE_LINE.findall(record["metadata"].get("stack_trace", ""))
        if lines:
            node.meta["stack_trace"] = "".join(
                f'  File "{file}", line {number}, in program\n' for file, number in lines[-1:]
            )
        self.define_results(made, node, record, higher, where)

    def operator_arguments(
        self, made: _Pt2Graph, function: Any, inputs: Sequence[Mapping[str, Any]], where: str
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of an operator by position and by name, in the order of the operator's schema."""
        given = {each["name"]: each for each in inputs}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        left_out = False
        for expected in function._schema.arguments:
            if expected.name not in given:
                left_out = True
                continue
            record = given.pop(expected.name)
            value = self.read_argument(made, record["arg"], f"{where}, {expected.name}")
            if expected.name in COUNT_ARGUMENTS and isinstance(value, int) and value > MAX_RESULTS:
                raise field_error(f"{where}, {expected.name}", f"{value}; at most {MAX_RESULTS} are planned")
            kind = record.get("kind")
            by_position = kind == POSITIONAL if kind else not (expected.has_default_value() or expected.kwarg_only)
            if by_position and not (left_out or kwargs or expected.kwarg_only):
                args.append(value)
            else:
                kwargs[expected.name] = value
        if given:
            raise field_error(where, f"{function} has no argument {next(iter(given))[:40]!r}")
        return args, kwargs

    def read_argument(self, made: _Pt2Graph, argument: Mapping[str, Any], where: str) -> Any:
        """Return an argument: a node, a number, a text, an enumeration, or a list of arguments."""
        ((kind, value),) = argument.items()
        read = ARGUMENT_READERS.get(kind)
        if read is None:
            raise field_error(where, f"an argument of the kind {kind} cannot be planned")
        return read(self, made, value, where)

    def read_tensor(self, made: _Pt2Graph, record: Mapping[str, Any], where: str) -> Any:
        """Return the node of a tensor. Raises ModelError for a tensor without earlier definition."""
        if record["name"] not in made.nodes:
            raise field_error(where, f"reads {record['name'][:80]!r}, which is not defined before")
        return made.nodes[record["name"]]

    def read_number(self, made: _Pt2Graph, record: Mapping[str, Any], where: str) -> Any:
        """Return a number. Raises ModelError for an open extent."""
        ((kind, value),) = record.items()
        if kind == "as_name":
            raise field_error(where, f"the extent {value[:40]!r} is open: export with fixed extents")
        return value

    def read_optional(self, made: _Pt2Graph, record: Mapping[str, Any], where: str) -> Any:
        """Return the node of a tensor, or None."""
        ((kind, value),) = record.items()
        return None if kind == "as_none" else self.read_tensor(made, value, where)

    def read_subgraph(self, made: _Pt2Graph, record: Mapping[str, Any], where: str) -> Any:
        """Build an inner graph, and return the node with the graph."""
        inner = self.build_graph(record["graph"])
        name = f"subgraph_{self.subgraphs}"
        self.subgraphs += 1
        made.root.add_module(name, torch().fx.GraphModule(inner.root, inner.graph))
        return made.graph.create_node("get_attr", name, name=name)

    # -- results --------------------------------------------------------------------------------

    def define_results(self, made: _Pt2Graph, node: Any, record: Mapping[str, Any], higher: bool, where: str) -> None:
        """Define a node's results under the names in the file."""
        outputs = record["outputs"]
        kinds = [next(iter(each)) for each in outputs]
        in_a_tuple = higher and not record.get("is_hop_single_tensor_return", True)
        if kinds == ["as_none"] or not kinds:
            node.meta["val"] = None
        elif kinds == ["as_tensor"] and not in_a_tuple:
            name = outputs[0]["as_tensor"]["name"]
            self.define_value(made, name, node)
            node.meta["val"] = self.fake_tensor(made, name)
        else:
            each = outputs[0]["as_tensors"] if kinds == ["as_tensors"] else outputs
            node.meta["val"] = tuple(self.define_item(made, node, i, one, where) for i, one in enumerate(each))

    def define_item(self, made: _Pt2Graph, node: Any, position: int, output: Mapping[str, Any], where: str) -> Any:
        """Return the traced value of one of several results, and define the tensors inside."""
        kind, value = ("as_tensor", output) if "name" in output else next(iter(output.items()))
        if kind in ("as_none", "as_int", "as_float", "as_bool", "as_string"):
            return None if kind == "as_none" else value
        item = made.graph.call_function(operator.getitem, (node, position))
        item.meta["nn_module_stack"] = {}
        item.meta |= {key: node.meta[key] for key in ("stack_trace",) if key in node.meta}
        if kind == "as_tensor":
            self.define_value(made, value["name"], item)
            item.meta["val"] = self.fake_tensor(made, value["name"])
        elif kind == "as_tensors":
            item.meta["val"] = [self.define_item(made, item, i, one, where) for i, one in enumerate(value)]
        else:
            raise field_error(where, f"a result of the kind {kind} cannot be planned: export with fixed extents")
        return item.meta["val"]


ArgumentReader = Callable[[_Pt2Builder, _Pt2Graph, Any, str], Any]


def _read_each(read: ArgumentReader) -> ArgumentReader:
    """Return a reader of a list of arguments."""
    return lambda builder, made, values, where: [read(builder, made, value, where) for value in values]


def _read_plain(builder: _Pt2Builder, made: _Pt2Graph, value: Any, where: str) -> Any:
    """Return a plain value unchanged."""
    return value


def _read_layout(builder: _Pt2Builder, made: _Pt2Graph, number: int, where: str) -> Any:
    """Return PyTorch's strided layout. Raises ModelError for any other layout."""
    if number != STRIDED:
        raise field_error(where, f"a tensor of layout {number} cannot be planned; {STRIDED} is strided")
    return torch().strided


def _read_memory_format(builder: _Pt2Builder, made: _Pt2Graph, number: int, where: str) -> Any:
    """Return PyTorch's memory format of a number in the file."""
    if number not in MEMORY_FORMATS:
        raise field_error(where, f"the memory format {number} is not known")
    return getattr(torch(), MEMORY_FORMATS[number])


ARGUMENT_READERS: Mapping[str, ArgumentReader] = {
    "as_none": lambda builder, made, value, where: None,
    "as_tensor": _Pt2Builder.read_tensor,
    "as_tensors": _read_each(_Pt2Builder.read_tensor),
    "as_optional_tensor": _Pt2Builder.read_optional,
    "as_optional_tensors": _read_each(_Pt2Builder.read_optional),
    "as_sym_int": _Pt2Builder.read_number,
    "as_sym_ints": _read_each(_Pt2Builder.read_number),
    "as_sym_bool": _Pt2Builder.read_number,
    "as_sym_bools": _read_each(_Pt2Builder.read_number),
    "as_sym_float": _Pt2Builder.read_number,
    "as_sym_floats": _read_each(_Pt2Builder.read_number),
    "as_complex": lambda builder, made, value, where: complex(value["real"], value["imag"]),
    "as_scalar_type": lambda builder, made, value, where: dtype_of_number(value, where),
    "as_layout": _read_layout,
    "as_memory_format": _read_memory_format,
    "as_device": lambda builder, made, value, where: builder.device_of(value),
    "as_graph": _Pt2Builder.read_subgraph,
    **dict.fromkeys(("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools", "as_string"), _read_plain),
}
"""Readers by the kind of an argument."""
