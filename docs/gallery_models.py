"""The models of the gallery, and records of other tools' memory as files that `sublet check` reads.

docs/gallery.py runs its commands in the folder written by `write_models`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

import sublet
from benchmarks.models.builder import Builder
from benchmarks.models.convolutional import mobilenet_v2, unet
from benchmarks.models.recurrent import lstm_loop
from benchmarks.networks.text import gpt2
from sublet import nn
from sublet.analysis.options import Options
from sublet.api.sources import read_source
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.executor_memory_model import GarbageCollection, _ExecutorRun
from sublet.integrations.paddle.peaks.memory import BytesFromSizes
from sublet.integrations.paddle.peaks.scopes import PaddleScopes, ScopedVariable
from sublet.integrations.paddle.peaks.simulated_run import ContentScope, RunRequest
from sublet.integrations.paddle.transpile import TranspileRequest, transpile
from sublet.integrations.tflite.reader import ALIGNMENT
from sublet.integrations.torch.snapshot import read_snapshot
from sublet.packing import pack
from sublet.packing.problem import Buffer, Problem
from sublet.planning.pipeline import plan_memory
from tests.integrations.tflite.generated import straight

ROOT = Path(__file__).resolve().parent.parent
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PROGRAMS = ROOT / "tests" / "integrations"
SNAPSHOT = ROOT / "tests" / "checker" / "external" / "transformer_step.pickle"
PAGE_BYTES = 2 << 20
"""Bytes of a page of PyTorch's allocator: addresses without an allocation are left out of the picture by pages."""
SMALLEST = 1024
"""Bytes of the smallest variable of Paddle in the picture; all smaller ones together take 1 % of the peak."""

NESTED = """
graph @nested(%a: f32[1024], %b: f32[1024], %n: i64[], %m: i64[]) {
  %f: f32[1024], %g: f32[1024] = while(%i: i64[]; %p: f32[1024] = %a, %q: f32[1024] = %b; ) @outer body @turn {
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    %r: f32[1024], %s: f32[1024] = while(%j: i64[]; %u: f32[1024] = %q, %v: f32[1024] = %p; ) @inner body @step {
      %d: bool[] = onnx.Less(%j, %m)
      continue if %d
      %w: f32[1024] = onnx.Softmax(%u)
      %x: f32[1024] = onnx.MatMul(%w, %v)
      next %v, %x;
    }
    next %r, %s;
  }
  return %f, %g
}
"""


def write_models(folder: Path) -> None:
    """Write the models of the commands."""
    onnx.save(mobilenet_v2(96), folder / "mobilenet_v2.onnx")
    onnx.save(unet(64, 8), folder / "unet.onnx")
    onnx.save(lstm_loop(16, 1, 64, 64), folder / "lstm.onnx")
    (folder / "resnet50.onnx").write_bytes((LIGHT / "light_resnet50.onnx").read_bytes())
    (folder / "nested.pte").write_bytes((PROGRAMS / "executorch" / "programs" / "nested.pte").read_bytes())
    (folder / "nested.sublet").write_text(NESTED, encoding="utf-8")
    g = sublet.Graph("gpt2_step")
    tokens, labels = g.input("tokens", (2, 32), "i64"), g.input("labels", (2, 32), "i64")
    scores = gpt2(tokens, width=64, heads=4, depth=4, vocabulary=256).reshape(64, 256)
    loss = nn.softmax_cross_entropy(scores, labels.reshape(64))[0].mean()
    step = sublet.train_step(loss, g.parameters, sublet.SGD(0.1))
    (folder / "gpt2_step.sublet").write_text(sublet.to_text(step.graph), encoding="utf-8")
    onnx.save(four_branches(), folder / "branches.onnx")
    write_tflm_plan(folder)
    (folder / "snapshot_beside_plan.json").write_text(snapshot_beside_plan(SNAPSHOT), encoding="utf-8")
    translation = (PROGRAMS / "paddle" / "programs" / "mt.pb").read_bytes()
    (folder / "translation.json").write_text(translation_before_and_after(translation), encoding="utf-8")


def four_branches() -> onnx.ModelProto:
    """Return a network of four branches over one input, written layer by layer, as many exporters do."""
    b = Builder("branches")
    sound = b.input("sound", (1, 1, 96, 40))
    maps = [b.op("Relu", conv) for conv in [b.conv(sound, 8, kernel) for kernel in (3, 5, 7, 9)]]
    joined = b.concat([b.pool("MaxPool", each, 4, 4) for each in maps])
    return b.model(scores=b.classifier(b.op("Relu", b.conv(joined, 64, 3)), 2))


def write_tflm_plan(folder: Path) -> None:
    """Write a network, and its plan by the rule of TensorFlow Lite Micro, with the bytes that TFLM's interpreter needs.

    TFLM places the largest tensor first, at the lowest free offset, and puts no output over an input.
    """
    path = folder / "network.tflite"
    path.write_bytes(straight(3))
    options = Options("best_fit_by_size", alignment=ALIGNMENT, share=False)
    plan = plan_memory(read_source(path), options)
    sublet.save(replace(plan, strategy="the rule of TFLM"), folder / "tflm.json")


def snapshot_beside_plan(path: Path) -> str:
    """Return the allocations of a PyTorch snapshot in two memories: PyTorch's own addresses, and one planned arena."""
    [device] = read_snapshot(path)
    buffers = device.problem.buffers
    taken = sorted(
        {page for offset, each in zip(device.packing.offsets, buffers, strict=True)
         for page in range(offset // PAGE_BYTES, (offset + each.size - 1) // PAGE_BYTES + 1)}
    )  # fmt: skip
    begins = {page: i * PAGE_BYTES for i, page in enumerate(taken)}
    own = [begins[offset // PAGE_BYTES] + offset % PAGE_BYTES for offset in device.packing.offsets]
    planned = pack(device.problem, "auto", 5.0, None).packing.offsets
    return placed("PyTorch", {"allocator": (buffers, own), "planned": (buffers, planned)})


def translation_before_and_after(program: bytes) -> str:
    """Return the memory of a Paddle training program in two memories: as written, and as rewritten by Sublet."""
    written, memories = decode_program(program, "translation"), {}
    rewritten = transpile(written, TranspileRequest()).program
    for name, each in (("original", written), ("rewritten", rewritten)):
        buffers = variables_of(each)
        memories[name] = buffers, pack(Problem(tuple(buffers)), "first_fit", 5.0, None).packing.offsets
    return placed("Paddle", memories)


def variables_of(program: PaddleProgram) -> list[Buffer]:
    """Return the variables of the program, and the scope of each iteration as one buffer, in Paddle's own order."""
    scopes, seen = PaddleScopes(program), {}
    keep = frozenset({ScopedVariable(0, "mean_2.tmp_0")})

    class Recorded(_ExecutorRun):
        """A simulated run that notes the bytes of each variable and of each scope after each operator."""

        time = 0

        def operator_done(self, block: int, index: int) -> None:
            self.time += 1
            whole = self.current_scopes[0]
            for name, nbytes in whole.held.items():
                self.note(name, nbytes)
            inner = [scope for each, scope in self.current_scopes.items() if each]
            for scope in (*inner, *(each for kept in whole.kept.values() for each in kept)):
                self.note(f"iteration {self.number_of(scope)}", sum(scope.all_contents()))
            super().operator_done(block, index)

        def number_of(self, scope: ContentScope[int]) -> int:
            return alive.setdefault(id(scope), (len(alive), scope))[0]

        def note(self, name: str, nbytes: int) -> None:
            first, _, most = seen.get(name, (self.time, 0, 0))
            seen[name] = first, self.time + 1, max(most, nbytes)

    alive: dict[int, tuple[int, ContentScope[int]]] = {}
    request = RunRequest(program, BytesFromSizes(infer_sizes(program)), keep, {})
    Recorded(request, GarbageCollection(scopes, keep)).run()
    return [Buffer(name, most, first, last) for name, (first, last, most) in seen.items() if most >= SMALLEST]


def placed(tool: str, memories: dict[str, tuple[Iterable[Buffer], Sequence[int]]]) -> str:
    """Return buffers at offsets in several memories as JSON, in the format of `sublet check`."""
    tensors = [
        {"name": f"{each.id}, {name}", "region": name, "offset": offset, "bytes": each.size,
         "lifetimes": [[each.lower, each.upper]]}
        for name, (buffers, offsets) in memories.items() for each, offset in zip(buffers, offsets, strict=True)
    ]  # fmt: skip
    return json.dumps({"format": "sublet-placed", "version": 1, "tool": tool, "tensors": tensors})
