"""Record hashes of plans, packings and results, to prove that a change of names or places changes no byte of them.

    python -m tests.record_plans before.json                      # record
    python -m tests.record_plans after.json --beside before.json  # record again and compare

The exit status of a comparison is 1 where the two differ.

Recorded are: plans of generated programs (offsets, bounds, copies, recipes, as their files hold them), plans and
results of ONNX models, packings of planning problems, training steps with and without a budget, arenas of networks by
torch.compile. `--programs N` sets the number of generated programs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import sublet
from benchmarks.models.convolutional import mobilenet_v2, unet
from benchmarks.models.recurrent import lstm_loop
from benchmarks.models.transformers import bert, gpt2
from benchmarks.train_steps import training_step
from sublet.packing import pack
from sublet.packing.csv_format import read_csv
from sublet.plan.file import to_json
from sublet.planning.pipeline import plan_memory
from tests.fuzz import options
from tests.support.programs import program

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PROBLEMS = Path(__file__).parent / "packing" / "problems"
SHARED = Path(__file__).parents[2] / "shared" / "problems"
PROGRAMS = 2000

Record = tuple[str, Callable[[], Any]]


def digest(content: object) -> str:
    """Return the first 16 hexadecimal digits of the content's SHA-256."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def program_plan(seed: int) -> str:
    """Return the plan file of one generated program."""
    rng = random.Random(seed)
    graph = program(rng, rng.choice([4, 8, 16, 30]), recurrent=seed % 3 == 2)
    return to_json(plan_memory(graph, options(rng, "auto")))


def onnx_run(model: onnx.ModelProto | Path, **options: Any) -> tuple[str, str]:
    """Return the plan file of a model, and a digest of its results for random inputs."""
    exe = sublet.compile(model, **options)
    rng = np.random.default_rng(0)
    inputs = {}
    for value in exe.graph.inputs:
        spec = value.spec
        dtype = np.dtype(spec.dtype.name.lower().replace("f32", "float32").replace("i64", "int64"))
        inputs[value.name] = (
            rng.integers(0, 2, spec.shape) if dtype.kind == "i" else rng.standard_normal(spec.shape)
        ).astype(dtype)
    results = exe(**inputs) if not isinstance(exe, dict) else {}
    return to_json(exe.plan), digest([np.asarray(each).tobytes() for each in _arrays(results)])


def _arrays(results: Any) -> list[Any]:
    if isinstance(results, dict):
        return [results[name] for name in sorted(results)]
    return list(results) if isinstance(results, tuple | list) else [results]


def step_plan(name: str, budget: float | None) -> str:
    """Return the plan file of a network's training step at batch 1, within a share of its arena."""
    step = training_step(name, 16 if name.startswith("LSTM") else 1).model
    options = sublet.Options(io="bound", weights="bound", alignment=64)
    plan = sublet.compile(step, options=options).plan
    if budget is not None:
        plan = sublet.compile(step, options=options, budget=int(plan.arena_bytes * budget)).plan
    return without_sources(to_json(plan))


def without_sources(plan_file: str) -> str:
    """Return a plan file without the source lines of nodes, which hold paths of the machine."""
    record = json.loads(plan_file)
    record["nodes"] = [{key: value for key, value in node.items() if key != "source"} for node in record["nodes"]]
    return json.dumps(record)


def torch_arenas(name: str) -> list[Any]:
    """Return the arenas, bounds and copies of one network by torch.compile, in training."""
    import torch

    from benchmarks.torch.network import Judged
    from benchmarks.torch.networks import NETWORKS

    torch.manual_seed(0)
    torch._dynamo.reset()
    network = NETWORKS[name]
    judged = Judged(network.make().train(), network.loss)
    begin = len(sublet.torch.report())
    torch.compile(judged, backend="sublet")(network.labels(), *network.inputs()).backward()
    return [
        (each.plan.arena_bytes, each.plan.gap, sorted(each.copied)) if each.plan else each.reason
        for each in sublet.torch.report()[begin:]
    ]


def packing_of(path: Path) -> Any:
    """Return the offsets that the default strategy packs a problem with, and the bound."""
    problem, _ = read_csv(path)
    report = pack(problem)
    return report.packing.offsets, report.packing.arena_bytes, report.bound.bytes


def records(programs: int) -> Iterator[Record]:
    """Yield the name of each record, with a function that makes its content."""
    for seed in range(programs):
        yield f"program {seed}", lambda seed=seed: program_plan(seed)
    for path in sorted(LIGHT.glob("*.onnx")):
        yield path.stem, lambda path=path: to_json(sublet.compile(path).plan)
    for name, made in {
        "mobilenet_v2": lambda: mobilenet_v2(96), "unet": lambda: unet(64, 8),
        "lstm_loop": lambda: lstm_loop(20, 1, 32, 32), "bert": bert, "gpt2": gpt2,
    }.items():  # fmt: skip
        yield name, lambda made=made: onnx_run(made())
        yield (
            f"{name} by less",
            lambda made=made: to_json(sublet.compile(made(), options=sublet.Options(order="less")).plan),
        )
    for name in ("ResNet-50", "LSTM, 32 steps", "GoogLeNet"):
        for share in (None, 0.7):
            yield f"step of {name} {share}", lambda name=name, share=share: step_plan(name, share)
    for folder in (PROBLEMS, SHARED):
        for path in sorted(folder.rglob("*.csv")):
            yield f"packing {path.stem}", lambda path=path: packing_of(path)
    for name in ("ResNet-18", "U-Net", "GRU", "CLIP", "ConvMixer", "EfficientFormer", "DETR"):
        yield f"torch {name}", lambda name=name: torch_arenas(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    recorded: dict[str, str] = {}
    for name, make in records(arguments.programs):
        try:
            recorded[name] = digest(make())
        except Exception as error:
            recorded[name] = f"{type(error).__name__}: {error}"[:300]
    arguments.to.write_text(json.dumps(recorded, indent=0) + "\n", encoding="utf-8")
    failed = [f"{name}: {content}" for name, content in recorded.items() if ": " in content]
    print(f"{len(recorded)} records, {len(failed)} of which are errors", *failed[:40], sep="\n  ")
    if arguments.beside:
        before = json.loads(arguments.beside.read_text(encoding="utf-8"))
        different = sorted(name for name in before.keys() | recorded.keys() if before.get(name) != recorded.get(name))
        print(f"{len(different)} differ", *different[:40], sep="\n  ")
        sys.exit(bool(different))


if __name__ == "__main__":
    main()
