"""Model loading by file suffix: dispatches to the front-end of each supported format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_text
from sublet.frontends.onnx.model import load
from sublet.frontends.onnx.runtime_optimizer import load_optimized
from sublet.frontends.paddle.convert import model as paddle
from sublet.frontends.paddle.convert import pir
from sublet.frontends.tflite import model as tflite
from sublet.frontends.torch.exported_program import from_exported
from sublet.frontends.torch.pt2_archive import read_archive
from sublet.frontends.trip_counts import Trips, max_trips_by_loop, with_max_trips
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS
from sublet.ir.text import parse

ONNX_SUFFIX = ".onnx"
TEXT_SUFFIX = ".sublet"
PIR_SUFFIX = ".json"
PADDLE_SUFFIXES = (".pdmodel", ".pb", PIR_SUFFIX)
TFLITE_SUFFIX = ".tflite"
TORCH_SUFFIX = ".pt2"
PADDLE_NAME = "__model__"
"""The file name of a program in older versions of Paddle."""


def is_onnx(path: Path) -> bool:
    """True if the file suffix, in any case, marks an ONNX model."""
    return path.suffix.lower() == ONNX_SUFFIX


def is_paddle(path: Path) -> bool:
    """True if the file name marks a Paddle program: a known suffix in any case, or exactly `PADDLE_NAME`."""
    return path.suffix.lower() in PADDLE_SUFFIXES or path.name == PADDLE_NAME


def is_tflite(path: Path) -> bool:
    """True if the file suffix, in any case, marks a TensorFlow Lite model."""
    return path.suffix.lower() == TFLITE_SUFFIX


def bound_trip_counts(model: Model, max_trips: Trips) -> Model:
    """Return the model with declared maximum trip counts, see `trip_counts`.

    Raises ModelError for a maximum below 0 or not an integer, for an unknown loop, and for a stacked output too large
    to plan.
    """
    by_loop = max_trips_by_loop(max_trips)
    return replace(model, graph=with_max_trips(model.graph, by_loop), max_trips=by_loop) if by_loop else model


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
    .pb, .json, or a file named `__model__`), or a graph in text form (.sublet).

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
    return bound_trip_counts(_read_by_suffix(Path(path), dims, optimize, assume or {}), max_trips)


def _read_by_suffix(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    """Read the model by its front-end. Raises ModelError for an option the format does not have."""
    if is_onnx(path):
        if assume and optimize != AS_IS:
            raise ModelError(f"--assume names values of the unoptimised model in {path.name}: pass optimize={AS_IS}")
        return load(path, dims, assume) if optimize == AS_IS else load_optimized(path, dims, optimize)
    if is_paddle(path):
        if assume:
            raise ModelError(f"--assume is for ONNX models: declare extents of {path.name} with --shape")
        return pir.load_pir(path, dims) if path.suffix.lower() == PIR_SUFFIX else paddle.load_program(path, dims)
    of_torch = path.suffix.lower() == TORCH_SUFFIX
    if of_torch or is_tflite(path):
        if dims or assume:
            raise ModelError(f"{path} declares the shape of every tensor: drop --dim and --assume")
        if of_torch:
            program = read_archive(path)
            return from_exported(program.exported, path.stem, program.weights, program.inputs)
        return tflite.load(path)
    if path.suffix.lower() == TEXT_SUFFIX:
        if dims:
            raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
        if assume:
            raise ModelError(f"{path} declares the type of every value: edit the file and drop --assume")
        return Model(parse(read_text(path, ModelError), str(path)))
    kinds = ", ".join((ONNX_SUFFIX, TFLITE_SUFFIX, TORCH_SUFFIX, *PADDLE_SUFFIXES, PADDLE_NAME))
    raise ModelError(f"{path} is not a known kind of model: expected {kinds} or {TEXT_SUFFIX}")
