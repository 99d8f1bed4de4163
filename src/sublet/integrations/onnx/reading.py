"""The entry points of the ONNX reader: a file or a ModelProto as a model, optimised by ONNX Runtime if requested."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.integrations.onnx.reader.model import from_proto, load
from sublet.integrations.onnx.reader.runtime_optimizer import load_optimized, load_optimized_proto
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS

if TYPE_CHECKING:
    import onnx


def read_file(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    """Read an ONNX file.

    Raises ModelError for a malformed file, and for shapes assumed together with an optimiser.
    """
    if assume and optimize != AS_IS:
        raise ModelError(f"--assume names values of the unoptimised model in {path.name}: pass optimize={AS_IS}")
    return load(path, dims, assume) if optimize == AS_IS else load_optimized(path, dims, optimize)


def read_object(
    model: onnx.ModelProto, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]
) -> Model:
    """Read a ModelProto. Raises ModelError for a malformed model."""
    if optimize == AS_IS:
        return from_proto(model, dims, assume=assume)
    return load_optimized_proto(model, dims, level=optimize)
