"""Sublet's arena beside `onnxsim.plan_activation_memory`'s, on the same models with the same dimensions.

Each model is planned twice by both: as it ships (dimensions bound), and after onnxsim's own simplifier
has folded its constants. onnxsim counts constants that are no initialisers as activations, and leaves
some tensors without a place; the column "left out" tells how many.

    make bench        (or: python -m benchmarks.compare_onnxsim)
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

import numpy
import onnx
import onnxsim
from rich.console import Console
from rich.table import Table

from benchmarks.models.wheels import bound, real_models
from sublet.base.formatting import human
from sublet.integrations.onnx.reader.model import from_proto
from sublet.planning.pipeline import plan_memory


@dataclass(frozen=True)
class Rival:
    """What onnxsim needs, and how many tensors it did not place."""

    nbytes: int
    left_out: int


def simplified(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """What onnxsim's simplifier makes of the model; None where it fails."""
    try:
        return onnxsim.simplify(proto)[0]
    except Exception:
        return None


def sublet(proto: onnx.ModelProto) -> tuple[int, float]:
    """Arena bytes and gap of Sublet's plan, proven by the checker."""
    plan = plan_memory(from_proto(proto).graph)
    return plan.arena_bytes, plan.gap


def rival(proto: onnx.ModelProto) -> Rival:
    plan = onnxsim.plan_activation_memory(proto)
    return Rival(plan.arena_bytes, len(plan.unplanned))


def row(name: str, form: str, proto: onnx.ModelProto | None) -> list[str]:
    if proto is None:
        return [name, form, "", "", "fails", "", ""]
    ours, gap = sublet(proto)
    theirs = rival(proto)
    ratio = f"{theirs.nbytes / ours:.3f}" if ours else ""
    return [name, form, f"{ours:,}", f"{gap:.2%}", f"{theirs.nbytes:,}", str(theirs.left_out or ""), ratio]


def main() -> None:
    console = Console(width=130)
    versions = f"onnxsim {onnxsim.__version__}, onnx {onnx.__version__}, numpy {numpy.__version__}"
    console.print(f"{platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, {versions}")
    table = Table(title="Activation memory: bytes")
    for heading in ("model", "form", "Sublet", "gap", "onnxsim", "left out", "onnxsim / Sublet"):
        table.add_column(heading, justify="left" if heading in ("model", "form") else "right")
    for model in real_models():
        proto = bound(model)
        table.add_row(*row(f"{model.name} ({human(model.path.stat().st_size)})", "as is", proto))
        table.add_row(*row("", "simplified", simplified(proto)))
    console.print(table)
    console.print('Where tensors are "left out", the figure of onnxsim covers only the others.')


if __name__ == "__main__":
    main()
