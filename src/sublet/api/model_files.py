"""Model files: each is read by the integration that claims its name, and the text form by Sublet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.files import read_text
from sublet.integrations.registry import Integration, installed_integrations, integration_of_file, resolve
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.ir.text import parse_model
from sublet.passes.trip_counts import Trips, bound_trip_counts

TEXT_SUFFIX = ".sublet"


def read_model(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    *,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    assume: Mapping[str, str] | None = None,
) -> Model:
    """Read a model file of any supported format, chosen by the suffix.

    ONNX (.onnx), TensorFlow Lite (.tflite), an exported PyTorch program (.pt2), a Paddle inference program (.pdmodel,
    .pb, .json, or a file named `__model__`), a graph in text form (.sublet), and the formats of installed integrations.

    dims        extents of symbolic dimensions of an ONNX model, and of open extents of a Paddle program (`"x.0"` is the
                first open extent of input x); a graph in text form has none
    max_trips   the maximum trip count of every loop, or of single loops by the name of the loop or of a loop output;
                the stacked graph outputs of a bounded loop are planned, and a run beyond the maximum raises RunError
    optimize    the level of ONNX Runtime's optimiser for rewriting an ONNX model first, or "none"
    assume      shapes of ONNX values without inferred shape, as `{"a": "f32[1,8]"}`; a run with another shape
                raises RunError

    Raises ModelError for a file that cannot be read or understood, and for an option not applicable to the format;
    TextError for a syntax error in the text form.
    """
    path, assume = Path(path), assume or {}
    integration = integration_of_file(path)
    if integration is not None:
        _require_options(integration, path, dims, assume)
        model: Model = resolve(integration.read_model)(path, dims, optimize, assume)
    elif path.suffix.lower() == TEXT_SUFFIX:
        model = _read_text_form(path, dims, assume)
    else:
        kinds = ", ".join(name for each in installed_integrations() for name in (*each.suffixes, *each.file_names))
        raise ModelError(f"{path} is not a known kind of model: expected {kinds} or {TEXT_SUFFIX}")
    return bound_trip_counts(model, max_trips)


def has_option(path: Path, option: str) -> bool:
    """Return True if the integration of the file has the option of reading, such as "shape"."""
    integration = integration_of_file(path)
    return integration is not None and option in integration.options


def _require_options(
    integration: Integration, path: Path, dims: Mapping[str, Any] | None, assume: Mapping[str, str]
) -> None:
    """Raise ModelError for dimensions or assumed shapes passed to a format without them."""
    refused = [
        option for option, value in (("dims", dims), ("assume", assume)) if value and option not in integration.options
    ]
    if refused and "shape" in integration.options:
        raise ModelError(f"--assume is for ONNX models: declare extents of {path.name} with --shape")
    if refused:
        raise ModelError(f"{path} declares the shape of every tensor: drop --dim and --assume")


def _read_text_form(path: Path, dims: Mapping[str, int] | None, assume: Mapping[str, str]) -> Model:
    """Read a graph in text form. Raises ModelError for options, TextError for a syntax error."""
    if dims:
        raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
    if assume:
        raise ModelError(f"{path} declares the type of every value: edit the file and drop --assume")
    return parse_model(read_text(path, ModelError), str(path))
