"""Model files: each is read by the integration that claims its name, and the text form by Sublet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.api.state_names import AUTO_STATE, StatePairs, resolve_state
from sublet.base.errors import ModelError
from sublet.base.files import read_text
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import CACHE_LINE_BYTES, NUMPY, TensorSpec
from sublet.integrations.registry import Integration, installed_integrations, integration_of_file, resolve
from sublet.ir.graph import Value
from sublet.ir.model import Constant, Model
from sublet.ir.recipe import AS_IS
from sublet.ir.text import parse_model
from sublet.passes.trip_counts import Trips, bound_trip_counts, max_trips_by_loop

TEXT_SUFFIX = ".sublet"


def read_model(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    *,
    const: Mapping[str, Any] | None = None,
    state: StatePairs | None = None,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    assume: Mapping[str, str] | None = None,
) -> Model:
    """Read a model file of any supported format, chosen by the suffix.

    ONNX (.onnx), TensorFlow Lite (.tflite), an exported PyTorch program (.pt2), a Paddle inference program (.pdmodel,
    .pb, .json, or a file named `__model__`), a graph in text form (.sublet), and the formats of installed integrations.

    dims        extents of symbolic dimensions of an ONNX model, and of open extents of a Paddle program (`"x.0"` is the
                first open extent of input x); a graph in text form has none
    const       constants for inputs of an ONNX model, as `{"sr": 16000}`: a number, numbers as list, array or text
                ("1,2"); the graph has no such input, and branches never taken are removed. "open" makes an input with a
                default in the file (an initialiser with the name of an input) an input; the default is else a constant
    state       inputs updated by an output, as `{"h": "hn"}`: a call may leave out the input, and each run starts from
                the output of the run before; the first run starts from zeros, or from the default of the file; "auto"
                finds the pairs by name
    max_trips   the maximum trip count of every loop, or of single loops by the name of the loop or of a loop output;
                the stacked graph outputs of a bounded loop are planned, and a run beyond the maximum raises RunError
    optimize    the level of ONNX Runtime's optimiser for rewriting an ONNX model first, or "none"
    assume      shapes of ONNX values without inferred shape, as `{"a": "f32[1,8]"}`; a run with another shape
                raises RunError

    Raises ModelError for a file that cannot be read or understood, and for an option not applicable to the format;
    TextError for a syntax error in the text form.
    """
    model = read_with_options(path, dims, optimize, assume or {}, constant_texts(const))
    return with_state(bound_trip_counts(model, max_trips), state or {})


def read_with_options(
    path: str | Path,
    dims: Mapping[str, int] | None,
    optimize: str,
    assume: Mapping[str, str],
    const: Mapping[str, str],
    max_trips: Trips = None,
    over_ranges: bool = False,
) -> Model:
    """Read a model file as `read_model` does, without state and without bounds of trip counts.

    over_ranges  whether the model is for `compile_ranges`, which plans values that grow in loops of `max_trips`
    """
    path = Path(path)
    integration = integration_of_file(path)
    if integration is not None:
        _require_options(integration, path, dims, assume, const)
        options = reading_options(integration, const, max_trips, over_ranges)
        model: Model = resolve(integration.read_model)(path, dims, optimize, assume, **options)
    elif path.suffix.lower() == TEXT_SUFFIX:
        model = _read_text_form(path, dims, assume, const)
    else:
        kinds = ", ".join(name for each in installed_integrations() for name in (*each.suffixes, *each.file_names))
        raise ModelError(f"{path} is not a known kind of model: expected {kinds} or {TEXT_SUFFIX}")
    return model


def reading_options(
    integration: Integration, const: Mapping[str, str], max_trips: Trips, over_ranges: bool
) -> dict[str, Any]:
    """Return the optional arguments of an integration's functions that read a model."""
    options: dict[str, Any] = {"const": const} if const else {}
    if over_ranges and "loop_limits" in integration.options:
        options["loop_limits"] = max_trips_by_loop(max_trips)
    return options


def constant_texts(const: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the constants of inputs as texts by name, as a plan records them: numbers in row-major order.

    Raises ModelError for a constant other than numbers or text.
    """
    texts: dict[str, str] = {}
    for name, content in (const or {}).items():
        try:
            numbers = [] if isinstance(content, str) else np.asarray(content).ravel().tolist()
        except ValueError:
            raise ModelError(f"const {name}: {type(content).__name__} is ragged: pass a number or an array") from None
        texts[name] = content if isinstance(content, str) else ",".join(map(str, numbers))
    return texts


def has_option(path: Path, option: str) -> bool:
    """Return True if the integration of the file has the option of reading, such as "shape"."""
    integration = integration_of_file(path)
    return integration is not None and option in integration.options


def _require_options(
    integration: Integration,
    path: Path,
    dims: Mapping[str, Any] | None,
    assume: Mapping[str, str],
    const: Mapping[str, str],
) -> None:
    """Raise ModelError for dimensions, assumed shapes or constants passed to a format without them."""
    if const and "const" not in integration.options:
        raise ModelError(f"--const is for ONNX models: drop --const {', --const '.join(const)} for {path}")
    refused = [
        option for option, value in (("dims", dims), ("assume", assume)) if value and option not in integration.options
    ]
    if refused and "shape" in integration.options:
        raise ModelError(f"--assume is for ONNX models: declare extents of {path.name} with --shape")
    if refused:
        raise ModelError(f"{path} declares the shape of every tensor: drop --dim and --assume")


def _read_text_form(
    path: Path, dims: Mapping[str, int] | None, assume: Mapping[str, str], const: Mapping[str, str]
) -> Model:
    """Read a graph in text form. Raises ModelError for options, TextError for a syntax error."""
    if const:
        raise ModelError(f"{path} is a graph in text form: make {', '.join(const)} a weight there, and drop --const")
    if dims:
        raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
    if assume:
        raise ModelError(f"{path} declares the type of every value: edit the file and drop --assume")
    return parse_model(read_text(path, ModelError), str(path))


def default_alignment(model: Any) -> int:
    """Return the default alignment of offsets in bytes: 16 for a .tflite file, 64 for other models."""
    integration = integration_of_file(Path(model)) if isinstance(model, str | Path) else None
    return (integration.alignment if integration is not None else None) or CACHE_LINE_BYTES


# Declared state: inputs updated by an output from run to run.


@dataclass(frozen=True)
class Zeros:
    """The content of an input of zeros."""

    spec: TensorSpec

    def array(self) -> NDArray[Any]:
        """Return the zeros."""
        return np.zeros(self.spec.shape, NUMPY[self.spec.dtype])


def with_state(model: Model, state: StatePairs) -> Model:
    """Return the model with inputs updated by outputs: `state` maps the name of each input to the name of an output.

    "auto" takes the pairs of `pairs_by_name`. An input of the state starts with zeros, or with the default of the file,
    and takes the content of the output at the end of each run. Raises ModelError for a name without an input or output,
    and for two tensors of different type.
    """
    if not state or (state == AUTO_STATE and model.recipe.state):
        return model
    inputs, outputs = model.inputs_by_name, model.outputs_by_name
    state = resolve_state(state, inputs, outputs)
    if not state or dict(model.recipe.state) == state:
        return model
    if model.recipe.state:
        raise ModelError(f"the model has the state {dict(model.recipe.state)} already: read the model again")
    updates, starts = list[tuple[Value, Value]](), dict[str, Constant]()
    for name, result in state.items():
        what = f"state {printable(name)}={printable(result)}"
        if name not in inputs:
            raise ModelError(f"{what}: no input {printable(name)!r}; the inputs are {known_names(inputs)}")
        if result not in outputs:
            raise ModelError(f"{what}: no output {printable(result)!r}; the outputs are {known_names(outputs)}")
        target, source = inputs[name], outputs[result]
        if target.spec != source.spec or not isinstance(target.spec, TensorSpec):
            raise ModelError(
                f"{what}: the input is {target.spec}, the output {source.spec}; "
                "both must have one type and known extents"
            )
        if target in model.graph.outputs:
            raise ModelError(f"{what}: the input is an output too, and would have the old and the new content")
        updates.append((target, source))
        starts[name] = Zeros(target.spec)
    graph = replace(model.graph, updates=(*model.graph.updates, *updates))
    recipe = replace(model.recipe, state=tuple(state.items()))
    return replace(model, graph=graph, defaults={**starts, **model.defaults}, recipe=recipe)
