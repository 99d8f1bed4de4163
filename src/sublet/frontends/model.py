"""Any model file Sublet reads, by its suffix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_text
from sublet.frontends.onnx.model import load
from sublet.frontends.onnx.optimized import load_optimized
from sublet.frontends.paddle.convert import model as paddle
from sublet.frontends.paddle.convert import pir
from sublet.frontends.tflite import model as tflite
from sublet.frontends.torch.archive import read_archive
from sublet.frontends.torch.exported import from_exported
from sublet.frontends.trips import Trips, trips_of, with_max_trips
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
"""What older versions of Paddle call the file of a program."""


def is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model, by its suffix in any case."""
    return path.suffix.lower() == ONNX_SUFFIX


def is_paddle(path: Path) -> bool:
    """Whether a file is a Paddle program, by its name."""
    return path.suffix.lower() in PADDLE_SUFFIXES or path.name == PADDLE_NAME


def is_tflite(path: Path) -> bool:
    """Whether a file is a TensorFlow Lite model, by its suffix in any case."""
    return path.suffix.lower() == TFLITE_SUFFIX


def bounded(model: Model, max_trips: Trips) -> Model:
    """The model with declared maxima of rounds, see `trips`. Raises ModelError for one that makes no sense."""
    by_loop = trips_of(max_trips)
    return replace(model, graph=with_max_trips(model.graph, by_loop), max_trips=by_loop) if by_loop else model


def read_model(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    *,
    max_trips: Trips = None,
    optimize: str = AS_IS,
    assume: Mapping[str, str] | None = None,
) -> Model:
    """Read a model: ONNX (.onnx), TensorFlow Lite (.tflite), a program of PyTorch's (.pt2), a Paddle program for
    inference (.pdmodel, .json), or a graph in text form (.sublet).

    `dims` binds symbolic dimensions of an ONNX model, and open extents of a Paddle program (`"x.0"` is the first one
    of x); a graph in text form has none. `max_trips` declares how many
    rounds loops make at most, for all of them or by the name of a loop or of one of its outputs: what such a loop
    stacks for an output of the model is planned, and a run that goes on beyond it is a RunError. `optimize` is a
    level of ONNX Runtime's optimiser that rewrites an ONNX model first, or "none". `assume` tells shapes of values of
    an ONNX model that nobody knows, as `{"a": "f32[1,8]"}`; a run in which one of them has another shape is a RunError.
    Raises ModelError when the file cannot be read or understood, TextError for a mistake in the text.
    """
    return bounded(_read(Path(path), dims, optimize, assume or {}), max_trips)


def _read(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    if is_onnx(path):
        if assume and optimize != AS_IS:
            raise ModelError(
                f"--assume names values of the model as it is in {path.name}: it goes with optimize={AS_IS}"
            )
        return load(path, dims, assume) if optimize == AS_IS else load_optimized(path, dims, optimize)
    if is_paddle(path):
        if assume:
            raise ModelError(f"--assume is for ONNX models: tell extents of {path.name} by --shape")
        return pir.load(path, dims) if path.suffix.lower() == PIR_SUFFIX else paddle.load(path, dims)
    of_torch = path.suffix.lower() == TORCH_SUFFIX
    if of_torch or is_tflite(path):
        if dims or assume:
            raise ModelError(f"{path} tells the shape of every tensor itself: drop --dim and --assume")
        if of_torch:
            program = read_archive(path)
            return from_exported(program.exported, path.stem, program.weights, program.inputs)
        return tflite.load(path)
    if path.suffix.lower() == TEXT_SUFFIX:
        if dims:
            raise ModelError(f"{path} has no symbolic dimensions to bind: drop --dim {', --dim '.join(dims)}")
        if assume:
            raise ModelError(f"{path} tells the type of every value itself: write it there and drop --assume")
        return Model(parse(read_text(path, ModelError), str(path)))
    kinds = ", ".join((ONNX_SUFFIX, TFLITE_SUFFIX, TORCH_SUFFIX, *PADDLE_SUFFIXES, PADDLE_NAME))
    raise ModelError(f"{path} is not a known kind of model: expected {kinds} or {TEXT_SUFFIX}")
