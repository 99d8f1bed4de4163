"""Sublet as a backend of ONNX's interface `onnx.backend`.

    import sublet.integrations.onnx.onnx_backend as backend
    rep = backend.prepare(model)
    outputs = rep.run([x, y])

Open dimensions take the extents of the inputs of each run. A prepared model keeps one executable for each set of input
shapes, at most MAX_EXECUTABLES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import RunError
from sublet.base.optional_imports import require
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.model_file import all_nodes, domain_of
from sublet.integrations.onnx.reader.types import STRING, TensorType, read_type
from sublet.runtime.backends import AUTO
from sublet.runtime.executable import Executable

if TYPE_CHECKING:
    import onnx
    from onnx.backend.base import Backend, BackendRep, namedtupledict
else:
    base = require("onnx.backend.base", extra="onnx")
    Backend, BackendRep, namedtupledict = base.Backend, base.BackendRep, base.namedtupledict

ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of the inputs with open dimensions, by name: the key of an executable."""

MAX_EXECUTABLES = 8
"""Maximum number of executables of a prepared model, one for each set of input shapes; beyond, the least recently
used is closed."""


class SubletRep(BackendRep):
    """A prepared model. `run` accepts inputs of any shapes allowed by the model."""

    def __init__(self, model: onnx.ModelProto, backend: str, options: Options | None) -> None:
        """Prepare a model. If no input has an open dimension, the model is compiled at once.

        Raises ModelError for a malformed model, RunError for a node without a kernel.
        """
        defaults = {tensor.name for tensor in model.graph.initializer}
        defaults.update(tensor.values.name for tensor in model.graph.sparse_initializer)
        self.inputs = tuple(value.name for value in model.graph.input)
        self.required = tuple(name for name in self.inputs if name not in defaults)
        self.outputs = tuple(value.name for value in model.graph.output)
        self._result = namedtupledict("Outputs", self.outputs)
        self._model, self._backend, self._options = model, backend, options
        self._fixed_inputs = {
            value.name for value in model.graph.input if value.name not in defaults and _has_fixed_shape(value)
        }
        self._executables: dict[ShapeKey, Executable] = {}
        self._lock = Lock()
        if self._fixed_inputs.issuperset(self.required):
            self.executable({})

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model once and return the outputs as a named tuple, in the model's order.

        `inputs` is a mapping by name, or a sequence in the model's order: of all inputs, or of the inputs without a
        default. A single array is the only input. Raises RunError for inputs not fitting the model.
        """
        feeds = self.feeds(inputs)
        results = self.executable(feeds)(feeds)
        outputs: tuple[Any, ...] = self._result(*(results[name] for name in self.outputs))
        return outputs

    def feeds(self, inputs: Any) -> dict[str, Any]:
        """Return the inputs by name. Raises RunError for a missing or unknown input."""
        if isinstance(inputs, Mapping):
            mistakes = [f"the model has no input {name!r}" for name in inputs if name not in self.inputs]
            mistakes += [f"the input {name!r} is missing" for name in self.required if name not in inputs]
            if mistakes:
                raise RunError(f"{mistakes[0]}; the model's inputs are {', '.join(self.inputs) or 'none'}")
            return dict(inputs)
        contents = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        for names in (self.required, self.inputs):
            if len(names) == len(contents):
                return dict(zip(names, contents, strict=True))
        expected = ", ".join(self.required) or "none"
        raise RunError(f"{len(contents)} inputs were passed; the model takes {len(self.required)}: {expected}")

    def executable(self, feeds: Mapping[str, Any]) -> Executable:
        """Return the executable for the shapes of the inputs; compile it if none exists yet.

        Beyond MAX_EXECUTABLES the least recently used executable is closed.
        """
        decisive = [name for name in self.inputs if name in feeds and name not in self._fixed_inputs]
        key = tuple((name, _shape_of(name, feeds[name])) for name in decisive)
        with self._lock:
            executable = self._executables.pop(key, None) or self._compile(key)
            self._executables[key] = executable  # the most recently used is the last
            if len(self._executables) > MAX_EXECUTABLES:
                self._executables.pop(next(iter(self._executables))).close()
        return executable

    def _compile(self, shapes: ShapeKey) -> Executable:
        """Compile the model for input shapes."""
        model = from_proto(self._model, shapes=dict(shapes))
        return compile(model, backend=self._backend, options=self._options)


def _shape_of(name: str, content: Any) -> tuple[int, ...]:
    """Return the shape of an input. Raises RunError for a ragged nested list."""
    try:
        return np.shape(content)
    except ValueError as error:
        raise RunError(f"input {name!r} is not an array: {error}") from None


def _has_fixed_shape(value: onnx.ValueInfoProto) -> bool:
    """True if the file fixes the shape of an input, or if the input is not a tensor."""
    tensor_type = read_type(value.type)
    if not isinstance(tensor_type, TensorType):
        return True
    return tensor_type.dims is not None and all(extent is not None and extent >= 0 for extent in tensor_type.dims)


class SubletBackend(Backend):
    """The backend class for `onnx.backend.test.BackendTest` and other users of ONNX's interface.

    `kernels` is the default source of kernels: "auto", or a backend name known to `sublet.compile`.
    """

    kernels = AUTO

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        backend: str | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> SubletRep:
        """Return the model, ready to run. `backend` and `options` are as for `sublet.compile`.

        Raises RunError for a device other than the CPU and for a node without a kernel, ModelError for a malformed
        model.
        """
        if not cls.supports_device(device):
            raise RunError(f"there is no device {device!r}; Sublet runs on 'CPU'")
        return SubletRep(model, backend or cls.kernels, options)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one operator on `inputs`, and return the outputs.

        `inputs` is a mapping by name, or a sequence in the order of the node's non-empty input names. `opset_version`
        is the version of the default operator set, by default the newest. `outputs_info` is ignored.

        Raises RunError for a wrong number of inputs, and for an input that is neither a tensor nor a sequence of
        tensors.
        """
        version = kwargs.pop("opset_version", None)
        names = list(dict.fromkeys(name for name in node.input if name))
        given = [inputs] if isinstance(inputs, np.ndarray) else inputs
        feeds = dict(given) if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
        if len(given) != len(names) or any(name not in feeds for name in names):
            raise RunError(f"{len(given)} inputs were passed; {node.op_type} takes {', '.join(names) or 'none'}")
        return cls.prepare(_model_of_node(node, feeds, version), device, **kwargs).run(feeds)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for "CPU" and "CPU:0"."""
        return device in ("CPU", "CPU:0")


def _model_of_node(node: onnx.NodeProto, feeds: Mapping[str, Any], version: int | None) -> onnx.ModelProto:
    """Return a model with one node."""
    helper, defs = require("onnx.helper", extra="onnx"), require("onnx.defs", extra="onnx")
    inputs = [helper.make_value_info(name, _type_of(name, content)) for name, content in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    newest = {"": int(defs.onnx_opset_version())}
    for schema in defs.get_all_schemas():
        newest[schema.domain] = max(schema.since_version, newest.get(schema.domain, 1))
    domains = dict.fromkeys(["", *(domain_of(inner.domain) for inner in all_nodes(iter([node])))])
    versions = {domain: newest.get(domain, 1) for domain in domains} | ({"": version} if version else {})
    imports = [helper.make_opsetid(domain, number) for domain, number in versions.items()]
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports)
    return model


def _type_of(name: str, content: Any) -> onnx.TypeProto:
    """Return the type of an input, without a shape.

    Raises RunError for content other than tensors and sequences of tensors.
    """
    helper = require("onnx.helper", extra="onnx")
    proto: onnx.TypeProto
    if isinstance(content, Sequence) and not isinstance(content, str):
        element = _type_of(name, content[0] if content else np.zeros(0, np.float32))
        proto = helper.make_sequence_type_proto(element)
        return proto
    dtype = np.asarray(content).dtype
    try:
        kind = STRING if content is not None and dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(dtype)
    except (KeyError, ValueError, TypeError):
        raise RunError(f"input {name!r}: {type(content).__name__} is not a tensor of an ONNX type") from None
    proto = helper.make_tensor_type_proto(kind, None)
    return proto


prepare = SubletBackend.prepare
run_model = SubletBackend.run_model
run_node = SubletBackend.run_node
supports_device = SubletBackend.supports_device
is_compatible = SubletBackend.is_compatible
