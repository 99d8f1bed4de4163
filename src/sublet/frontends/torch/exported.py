"""`torch.export` programs as models: weights stay PyTorch's memory, buffers that a run changes are updates."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sublet.base.arrays import Array, array_of
from sublet.base.errors import ModelError
from sublet.frontends.torch.conversion import Conversion
from sublet.frontends.torch.devices import device_of, require_cpu
from sublet.frontends.torch.tensors import Tensor
from sublet.frontends.torch.traced import convert_traced, placeholders
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.ops.aten import Strided


@dataclass(frozen=True)
class Held:
    """A tensor of PyTorch's as the content of a value of this shape: its bytes, no copy if they lie in a row."""

    tensor: Any
    shape: tuple[int, ...]

    def array(self) -> Array:
        """The elements as `spec_and_layout` keeps them: in the order in which they lie in memory, if they are dense."""
        tensor = self.tensor.detach()
        layout = Strided(tuple(tensor.shape), tuple(tensor.stride()))
        if layout.is_dense:
            single = (axis for axis, extent in enumerate(layout.size) if extent == 1)
            tensor = tensor.permute((*single, *layout.ordered))
        return array_of(tensor.contiguous().reshape(self.shape), "a tensor")


def from_exported(
    program: Any, where: str = "program", weights: Mapping[str, str] | None = None, inputs: Sequence[str] = ()
) -> Model:
    """Return an exported program, functionalised and without composite operators, as a model.

    Args:
        program: an ExportedProgram of PyTorch's.
        where: the name that errors give to the program.
        weights: names that the model gives to weights, by their names in the program; others stay as they are.
        inputs: names that the model gives to the user's inputs, in order; without them, those of the program.

    Raises:
        ModelError: for what cannot be planned, with the line of the user's program.
    """
    weight_names, input_names = weights or {}, iter(inputs)
    try:
        with quietly():
            program = program.run_decompositions({})  # as far as torch.export takes composite operators apart by itself
    except ModelError as error:  # of `bounded_trace`; FX appends lines to its message
        raise ModelError(str(error).partition("\n")[0]) from None
    except Exception as error:  # whatever PyTorch makes of a program that a file has made up
        raise ModelError(f"{where}: PyTorch cannot take the program apart: {first_line(error)}") from error
    require_cpu(device_of(program.graph_module), "a model of a module", "meta")
    conversion = Conversion(where=where)
    level = conversion.root()
    signature = program.graph_signature
    contents = {**program.state_dict, **program.constants}
    given: list[Any] = []
    user_inputs: dict[str, Tensor] = {}
    homes: dict[str, Tensor] = {}
    for spec, node in zip(signature.input_specs, placeholders(program), strict=True):
        fake = node.meta.get("val")
        kind = spec.kind.name
        if kind == "USER_INPUT":
            name = next(input_names, node.name)
            if not hasattr(fake, "stride"):
                given.append(fake)
                continue
            given.append(conversion.given(name, fake))
            user_inputs[name] = homes[node.name] = given[-1]
        elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            given.append(conversion.weight(weight_names.get(spec.target, spec.target), contents[spec.target]))
            homes[spec.target] = given[-1]
        else:
            raise ModelError(f"{where}: the input {node.name} is a {kind.lower()}, which cannot be planned")
    results = convert_traced(level, program.graph_module, given)
    outputs: dict[str, Value] = {}
    updates: list[tuple[Value, Value]] = []
    for spec, result in zip(signature.output_specs, results, strict=True):
        kind = spec.kind.name
        if kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            home = homes[spec.target]
            updates.append((home.value, level.like(result, home).value))
        elif kind == "USER_OUTPUT" and isinstance(result, Tensor):
            name = spec.arg.name if spec.arg.name not in outputs else f"{spec.arg.name}.{len(outputs)}"
            outputs[name] = level.whole(result).value
        elif kind != "USER_OUTPUT":
            raise ModelError(f"{where}: the output {spec.arg} is a {kind.lower()}, which cannot be planned")
    graph = level.whole_program([each.value for each in user_inputs.values()], list(outputs.values()), updates)
    return Model(graph, weights=held(conversion.weights), inputs=tuple(user_inputs), outputs=tuple(outputs))


def held(tensors: Mapping[Value, Any]) -> dict[str, Held]:
    """Tensors of PyTorch's as the contents of weights."""
    return {value.name: Held(each, value.spec.shape) for value, each in tensors.items()}  # type: ignore[union-attr]


def first_line(error: Exception) -> str:
    """The type of an error of PyTorch's, and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


@contextmanager
def quietly() -> Iterator[None]:
    """Silence what PyTorch says while it traces: warnings of its own functions, and tracebacks that it logs of errors
    which it also raises."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)
