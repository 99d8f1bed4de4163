"""Training steps on a GPU: eager PyTorch, Inductor, and Sublet with its own and with Inductor's kernels.

    python -m benchmarks.torch_gpu [ROW ...] [--sides SIDE ...] [--jobs 8] [--estimate] [--limit 16GiB] [--out FILE]

Each side of a row is a process. All processes of a round compile at once; then each is measured alone on the GPU, the
sides of a row in turns:

peak   bytes of the allocator in one step, without parameters, buffers, arguments, gradients and optimizer state. The
       blocks come from the allocator's history, so gradients are left out for all their life, as on the CPU.
time   median of the steps by CUDA events, and the median over the turns. The ratio to Inductor is the median of the
       ratios of each turn. The time between the kernels counts, so a busy processor shows too.
busy   the kernels' own time in a step, by the profiler, with the ratio to Inductor.
first  seconds of the first call, beside the compilations of the other processes.
error  the distance of all gradients from eager's, relative to the norm of eager's.

The side "sublet+inductor+rows" computes losses in groups of rows in bf16 too.
A side such as "sublet+inductor:0.5" has a budget of this share of Inductor's peak, and runs after Inductor. With
`--estimate`, the row "eager" has `sublet.torch.estimate` beside the measured peak, parameters and gradients included.
With `--limit` and `--known`, each side searches the largest batch instead, under a limit set on PyTorch's allocator.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import sublet
from benchmarks.torch.blocks import peak
from benchmarks.torch.network import Judged, Logits
from benchmarks.torch.peak import compile_options
from benchmarks.torch.vision import torchvision
from sublet.base.formatting import parse_bytes

models = torchvision("models")

WARM, STEPS, TURNS = 3, 20, 7
MEGABYTE = 1e6
OURS = "sublet+inductor"
ROWS_SIDE = f"{OURS}+rows"
SIDES = ("eager", "inductor", "sublet", OURS)


def gpt2() -> Any:
    """GPT-2 small without dropout."""
    config = transformers.GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
    return Logits(transformers.GPT2LMHeadModel(config), ("input_ids",))


def llama() -> Any:
    """A decoder of Llama's layers, of about GPT-2's size."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    return Logits(transformers.LlamaForCausalLM(config), ("input_ids",))


@dataclass(frozen=True)
class Row:
    """A network with the number of samples, and bf16 by `torch.autocast` if `amp`."""

    make: Callable[[], Any]
    batch: int
    words: int = 0
    """Size of the vocabulary, for a network over 512 tokens; 0 for images."""
    amp: bool = False

    def data(self, batch: int) -> tuple[Any, Any]:
        """Return the arguments and the labels of `batch` samples on the GPU."""
        if self.words:
            tokens = torch.randint(0, self.words, (batch, 512), device="cuda")
            return tokens, torch.randint(0, self.words, (batch * 512,), device="cuda")
        return torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")


ROWS = {
    "ResNet-50, 64": Row(models.resnet50, 64),
    "GPT-2, 8x512": Row(gpt2, 8, 50257),
    "Llama-like, 8x512": Row(llama, 8, 32000),
    "ViT-B, 32": Row(models.vit_b_16, 32),
    "ResNet-50, 64, bf16": Row(models.resnet50, 64, amp=True),
    "GPT-2, 8x512, bf16": Row(gpt2, 8, 50257, amp=True),
    "Llama-like, 8x512, bf16": Row(llama, 8, 32000, amp=True),
    "ViT-B, 32, bf16": Row(models.vit_b_16, 32, amp=True),
}


class Step:
    """A training step of a row on one side: module, optimizer, data and the compiled call."""

    def __init__(self, row: Row, side: str, batch: int | None = None) -> None:
        torch.manual_seed(0)
        self.row = row
        self.judged = Judged(row.make().train()).cuda()
        self.inputs, self.labels = row.data(batch or row.batch)
        self.optimizer = torch.optim.SGD(self.judged.parameters(), 1e-3, momentum=0.9)
        self.run = self.judged if side == "eager" else torch.compile(self.judged, **options_of(side))

    def gradients(self, run: Any) -> None:
        """Compute the loss and the gradients."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.row.amp):
            loss = run(self.labels, self.inputs)
        loss.backward()

    def __call__(self) -> None:
        self.gradients(self.run)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def resident(self) -> int:
        """Return the bytes of parameters, buffers, arguments and optimizer state."""
        tensors = [*self.judged.parameters(), *self.judged.buffers(), self.inputs, self.labels]
        tensors += [x for state in self.optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
        return sum(each.nbytes for each in tensors)

    def distance(self) -> float:
        """Return the distance of all gradients from eager's, relative to the norm of eager's."""
        found = []
        for run in (self.judged, self.run):
            self.judged.zero_grad()
            self.gradients(run)
            found.append([each.grad.double() for each in self.judged.parameters() if each.grad is not None])
        self.judged.zero_grad()
        squares = sum(float((a - b).square().sum()) for a, b in zip(*found, strict=True))
        return math.sqrt(squares / sum(float(each.square().sum()) for each in found[0]))


def options_of(side: str) -> dict[str, Any]:
    """Return the arguments of `torch.compile`; "sublet" has Sublet's kernels."""
    if side == ROWS_SIDE:
        return {"backend": "sublet", "options": {"kernels": "inductor", "losses": "rows"}}
    return {"backend": side, "options": {"kernels": "sublet"}} if side == "sublet" else compile_options(side)


def peak_beyond(step: Step) -> tuple[int, int]:
    """Return the peak of a step without resident tensors and gradients, and the peak with all."""
    gc.collect()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(context=None, max_entries=1 << 22)
    step.gradients(step.run)
    addresses = [each.grad.untyped_storage().data_ptr() for each in step.judged.parameters() if each.grad is not None]
    torch.cuda.synchronize()
    [trace] = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    kinds = {"alloc": 1, "free_completed": 0}
    events = [(each["addr"], each["size"] * kinds[each["action"]]) for each in trace if each["action"] in kinds]
    _, most = peak(np.array(events, np.uint64), 0, [(len(events), each) for each in addresses])
    step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)
    return most + held - step.resident(), torch.cuda.max_memory_allocated()


def median_seconds(step: Step) -> float:
    """Return the median seconds of a step, by CUDA events."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    for _ in range(WARM):
        step()
    events[0].record()
    for each in events[1:]:
        step()
        each.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3


def busy_seconds(step: Step) -> float:
    """Return the seconds of the kernels of a step, by the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
    kernels = [each for each in profile.key_averages() if not each.is_user_annotation]
    return sum(each.self_device_time_total for each in kernels) / WARM / 1e6


def estimates(row: Row, plan: bool) -> dict[str, Any]:
    """Return the estimate of the eager step on CUDA from `meta`, and the arenas of Sublet's kernels if `plan`."""
    began = time.perf_counter()
    with torch.device("meta"):
        module = row.make().train()
        optimizer = torch.optim.SGD(module.parameters(), 1e-3, momentum=0.9)
    inputs, labels = (each.to("meta") for each in row.data(row.batch))
    amp = torch.bfloat16 if row.amp else None
    loss = torch.nn.functional.cross_entropy
    flat = (lambda logits, labels: loss(logits.flatten(0, -2), labels)) if row.words else loss
    found = sublet.torch.estimate(module, flat, optimizer, inputs, (labels,), device="cuda", amp=amp, plan=plan)
    arena = None if found.sublet is None else found.sublet.arena_bytes
    return {
        "estimated": found.eager.peak_bytes, "estimated_arena": arena, "why": found.reason,
        "estimate_s": time.perf_counter() - began,
    }  # fmt: skip


def largest(row: Row, side: str, limit: int, known: tuple[int, int]) -> dict[str, Any]:
    """Return a batch that runs within a limit on the allocator, and a larger one that does not.

    `known` has the peak of the row's batch without resident tensors and gradients, and with all.
    """
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    beyond, whole = known
    guess = int(0.98 * row.batch * (limit - whole + beyond) / beyond)
    good, bad, tries = 0, 0, 12 if side == "eager" else 3
    while tries and (not bad or bad - good > max(1, good // 50)):
        tries -= 1
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        if fits(row, side, guess):
            good = guess
            guess = min(guess + max(1, guess // 50), bad - 1) if bad else guess + max(1, guess // 50)
        else:
            bad = guess
            guess -= max(1, guess // 50)
        if good >= guess:
            break
    return {"largest": good, "refused": bad}


def fits(row: Row, side: str, batch: int) -> bool:
    """True if three steps with `batch` samples run."""
    try:
        step = Step(row, side, batch)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return False
    return True


def measure(name: str, side: str, pipe: Any, asked: Any) -> None:
    """Compile, say so, wait to be alone, and measure; the answer goes through `pipe`."""
    warnings.simplefilter("ignore")
    row = ROWS[name]
    result: dict[str, Any] = {"row": name, "side": side}
    try:
        if asked.limit:
            lines = map(json.loads, asked.known.read_text().splitlines())
            known = {(each["row"], each["side"]): (each["peak"], each["whole"]) for each in lines if "peak" in each}
            result |= largest(row, side, parse_bytes(asked.limit), known[name, side])
        else:
            result |= prepare_and_measure(row, side, pipe, asked.estimate)
    except BaseException as error:  # a side that fails must not stop the other sides
        result["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
        result["trace"] = traceback.format_exc()[-3000:]
    pipe.send(result)


def prepare_and_measure(row: Row, side: str, pipe: Any, with_estimate: bool) -> dict[str, Any]:
    """Return the figures of a side."""
    found: dict[str, Any] = {}
    if with_estimate and side in ("eager", "sublet"):
        try:
            found |= estimates(row, side == "sublet")
        except Exception as error:
            found["estimate_error"] = f"{error!r:.300} {traceback.format_exc()[-600:]}"
    step = Step(row, side)
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    found["first"] = time.perf_counter() - began
    found["distance"] = step.distance()
    step()
    found |= from_report()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    found["turns"] = []
    for turn in range(TURNS):
        pipe.send("ready")
        pipe.recv()
        if turn == 0:
            step()
            found["peak"], found["whole"] = peak_beyond(step)
        found["turns"].append(median_seconds(step))
    found["seconds"], found["busy"] = statistics.median(found["turns"]), busy_seconds(step)
    return found


def from_report() -> dict[str, Any]:
    """Return the figures of Sublet's records."""
    records = sublet.torch.report()
    arenas = [each.plan.arena_bytes for each in records if each.plan is not None]
    peaks = [peak for each in records if (peak := getattr(each, "peak_bytes", None)) is not None]
    return {
        "report": [str(each)[:300] for each in records], "arenas": sum(arenas), "told": sum(peaks),
        "copied": [pair for each in records for pair in each.copied],
    }  # fmt: skip


def run_round(jobs: Sequence[tuple[str, str]], asked: Any) -> list[dict[str, Any]]:
    """Return the figures of all jobs of a round: compiled at once, measured in turns, one row after another."""
    context, running = get_context("fork"), []
    for name, side in jobs:
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(name, side, theirs, asked), daemon=True)
        process.start()
        theirs.close()
        running.append((process, ours, name, side))
    answers = [_receive(*each) for each in running]
    for row in dict.fromkeys(name for name, _ in jobs):
        while waiting := [i for i, (name, _) in enumerate(jobs) if name == row and answers[i] == "ready"]:
            for i in waiting:
                running[i][1].send("go")
                answers[i] = _receive(*running[i])
    for process, *_ in running:
        process.join()
    return answers


def _receive(process: Any, pipe: Any, name: str, side: str) -> Any:
    """Return the next message of a process, or an error if the process has ended."""
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        return {"row": name, "side": side, "error": f"the process ended with exit status {process.exitcode}"}


def words_of(result: dict[str, Any], base: dict[str, Any] | None) -> str:
    """Return the line of a side."""
    if "error" in result:
        return f"{result['side']}: {result['error']}\n{result.get('trace', '')}"
    if "largest" in result:
        return f"{result['side']}: batch {result['largest']} runs, {result['refused']} does not"
    words = (
        f"{result['side']:22} {result['peak'] / MEGABYTE:8,.0f} MB {1e3 * result['seconds']:7.2f} ms, "
        f"busy {1e3 * result['busy']:.2f} ms, first {result['first']:.0f} s, error {result['distance']:.1e}"
    )
    if base is not None and base is not result:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(result["turns"], base["turns"], strict=True))
        words += f"; of Inductor's {result['peak'] / base['peak']:.3f}, {ratio:.3f}"
        words += f", busy {result['busy'] / base['busy']:.3f}"
    if "estimated" in result:
        words += f"; estimate {result['estimated'] / MEGABYTE:,.0f} of {result['whole'] / MEGABYTE:,.0f} MB"
        words += f", arenas {result['estimated_arena']} of {result['arenas']}, {result['estimate_s']:.0f} s"
    if result["told"]:
        words += f"; report {result['told'] / MEGABYTE:,.0f} MB"
    return words + (f"; {result['estimate_error']}" if "estimate_error" in result else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"any of {', '.join(ROWS)}")
    parser.add_argument("--sides", nargs="+", default=SIDES)
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--limit", help="search the largest batch in these bytes, from the peaks in the file `--known`")
    parser.add_argument("--known", type=Path, help="a file written by `--out`")
    parser.add_argument("--out", type=Path, help="a file for all figures, a line of JSON a side")
    asked = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    print(f"PyTorch {torch.__version__}, {sys.platform}, transformers {transformers.__version__}", flush=True)
    names = asked.rows or list(ROWS)
    plain = [each for each in asked.sides if ":" not in each]
    shares = [float(each.removeprefix(f"{OURS}:")) for each in asked.sides if ":" in each]
    width = max(1, asked.jobs // len(plain))
    for start in range(0, len(names), width):
        chosen = names[start : start + width]
        results = run_round([(name, side) for name in chosen for side in plain], asked)
        peaks = {each["row"]: each["peak"] for each in results if each["side"] == "inductor" and "peak" in each}
        late = [(name, f"{OURS}:{int(share * peaks[name])}") for name in chosen if name in peaks for share in shares]
        results += run_round(late, asked) if late else []
        for name in chosen:
            print(name, flush=True)
            mine = [each for each in results if each["row"] == name]
            base = next((each for each in mine if each["side"] == "inductor" and "peak" in each), None)
            for each in mine:
                print(f"    {words_of(each, base)}", flush=True)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(each) + "\n")


if __name__ == "__main__":
    main()
