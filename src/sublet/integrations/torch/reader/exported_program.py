"""`torch.export` programs as models: weights stay in PyTorch's memory, buffers changed by a run become updates."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sublet.base.arrays import Array, array_of
from sublet.base.errors import ModelError
from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.conversion import TorchConversion
from sublet.integrations.torch.reader.devices import device_of, require_cpu
from sublet.integrations.torch.reader.fx_conversion import convert_graph, placeholders
from sublet.integrations.torch.reader.traced_tensor import TracedTensor
from sublet.ir.graph import Value
from sublet.ir.model import Model


@dataclass(frozen=True)
class TorchContent:
    """A PyTorch tensor as the content of a value of the given shape; no copy for a dense tensor."""

    tensor: Any
    shape: tuple[int, ...]

    def array(self) -> Array:
        """Return the elements in the order of `spec_and_layout`: for a dense tensor the order in memory."""
        tensor = self.tensor.detach()
        layout = StridedLayout(tuple(tensor.shape), tuple(tensor.stride()))
        if layout.is_dense:
            single = (axis for axis, extent in enumerate(layout.size) if extent == 1)
            tensor = tensor.permute((*single, *layout.axes_by_stride))
        return array_of(tensor.contiguous().reshape(self.shape), "a tensor")


def from_exported(
    program: Any, where: str = "program", weights: Mapping[str, str] | None = None, inputs: Sequence[str] = ()
) -> Model:
    """Return an exported program as a model, functionalised and without composite operators.

    Args:
        program: an ExportedProgram of PyTorch.
        where: the name of the program in errors.
        weights: names of weights in the model, by the names in the program; the default is the name in the program.
        inputs: names of the user's inputs in the model, in order; the default is the names in the program.

    Raises:
        ModelError: for a program impossible to plan, with the line of the user's program.
    """
    weight_names, input_names = weights or {}, iter(inputs)
    try:
        with silence_tracing():
            program = program.run_decompositions({})  # {}: only the decompositions of composite operators
    except ModelError as error:  # from `bounded_trace`; FX appends lines to the message
        raise ModelError(str(error).partition("\n")[0]) from None
    except Exception as error:  # a program from a file may raise errors of any type
        raise ModelError(f"{where}: PyTorch cannot take the program apart: {error_summary(error)}") from error
    require_cpu(device_of(program.graph_module), "a model of a module", "meta")
    conversion = TorchConversion(where=where)
    level = conversion.root_level()
    signature = program.graph_signature
    contents = {**program.state_dict, **program.constants}
    given: list[Any] = []
    user_inputs: dict[str, TracedTensor] = {}
    homes: dict[str, TracedTensor] = {}
    for spec, node in zip(signature.input_specs, placeholders(program), strict=True):
        fake = node.meta.get("val")
        kind = spec.kind.name
        if kind == "USER_INPUT":
            name = next(input_names, node.name)
            if not hasattr(fake, "stride"):
                given.append(fake)
                continue
            given.append(conversion.new_tensor(name, fake))
            user_inputs[name] = homes[node.name] = given[-1]
        elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            given.append(conversion.add_weight(weight_names.get(spec.target, spec.target), contents[spec.target]))
            homes[spec.target] = given[-1]
        else:
            raise ModelError(f"{where}: the input {node.name} is a {kind.lower()}, which cannot be planned")
    results = convert_graph(level, program.graph_module, given)
    outputs: dict[str, Value] = {}
    updates: list[tuple[Value, Value]] = []
    for spec, result in zip(signature.output_specs, results, strict=True):
        kind = spec.kind.name
        if kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            home = homes[spec.target]
            updates.append((home.value, level.with_layout_of(result, home).value))
        elif kind == "USER_OUTPUT" and isinstance(result, TracedTensor):
            name = spec.arg.name if spec.arg.name not in outputs else f"{spec.arg.name}.{len(outputs)}"
            outputs[name] = level.as_row_major(result).value
        elif kind != "USER_OUTPUT":
            raise ModelError(f"{where}: the output {spec.arg} is a {kind.lower()}, which cannot be planned")
    graph = level.program_graph([each.value for each in user_inputs.values()], list(outputs.values()), updates)
    return Model(graph, weights=torch_contents(conversion.weights), inputs=tuple(user_inputs), outputs=tuple(outputs))


def torch_contents(tensors: Mapping[Value, Any]) -> dict[str, TorchContent]:
    """Return the contents of weights by name, each a `TorchContent` over a PyTorch tensor."""
    return {value.name: TorchContent(each, value.spec.shape) for value, each in tensors.items()}  # type: ignore[union-attr]


def error_summary(error: Exception) -> str:
    """Return the type and the first line of a PyTorch error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


@contextmanager
def silence_tracing() -> Iterator[None]:
    """Silence PyTorch while tracing, as a context manager: warnings, and logged tracebacks of errors also raised."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)
