"""The machine translation of Paddle's book, in the Paddle it was written by: 1.8.5, with an LSTM and a DynamicRNN.

    python -m benchmarks.paddle.book --python PATH [--steps 6] [--words 8]

PATH is the Python (3.6 to 3.8) of an environment with paddlepaddle==1.8.5, protobuf==3.20.3 and numpy below 1.20. That
Paddle does not count its bytes: `allocations.c` is compiled and preloaded, and counts what it asks of the system.
Weights and sentences (16, of 4 to 11 words, or all of `--words`) are drawn. What is predicted knows the lengths of the
sentences: the decoder's loop has as many of them in each trip as are not at their end yet.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.paddle.measured import Row
from benchmarks.paddle.policies import AS_WRITTEN
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.memory import PredictedMemory, predict_memory
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.policies import apply_own_policy
from sublet.integrations.paddle.running.verify import Training, verify

BESIDE = Path(__file__).parent
BOOK = BESIDE.parents[1] / "tests" / "integrations" / "paddle" / "programs" / "book_mt_1.8.5.pb"
LOSS, WORDS, SENTENCES, RUNS = "mean_0.tmp_0", 3000, 16, 3


def training(steps: int, words: int = 0) -> Training:
    random = np.random.default_rng(3)
    feeds, lods = [], []
    shortest, longest = (words, words) if words else (4, 11)
    for _ in range(RUNS):
        source, target = (random.integers(shortest, longest + 1, SENTENCES) for _ in range(2))
        lengths = {"src_word_id": source, "target_language_word": target, "target_language_next_word": target}
        feeds.append({name: random.integers(0, WORDS, (int(each.sum()), 1)) for name, each in lengths.items()})
        lods.append({name: each.tolist() for name, each in lengths.items()})
    return Training(None, feeds, [LOSS], steps, lods)


def predicted(program: PaddleProgram, training: Training) -> list[PredictedMemory]:
    """What is predicted for each of the runs, beyond weights and feeds."""
    found = []
    for feed, lods in zip(training.feeds, training.lods, strict=True):
        shapes, lengths = {name: each.shape for name, each in feed.items()}, lods["target_language_word"]
        by_count = {
            count: infer_sizes(program, shapes, {"sequences": count})
            for count in {SENTENCES, *(_going_on(lengths, trip) for trip in range(max(lengths)))}
        }
        in_trip = [by_count[_going_on(lengths, trip)] for trip in range(max(lengths))]
        found.append(
            predict_memory(by_count[SENTENCES], frozenset({ScopedVariable(0, LOSS)}), {"": max(lengths)}, in_trip)
        )
    return found


def _going_on(lengths: Sequence[int], trip: int) -> int:
    """How many sequences are not at their end in a trip."""
    return sum(length > trip for length in lengths)


def rows(interpreter: str, steps: int, words: int = 0) -> Iterator[Row]:
    """The program as it was written and as rewritten: the run that holds most, which is not the first."""
    raw = BOOK.read_bytes()
    program = decode_program(raw, BOOK.name)
    own = apply_own_policy(program, [LOSS])
    with TemporaryDirectory() as folder:
        counter = f"{folder}/allocations.so"
        command = ["cc", "-O2", "-shared", "-fPIC", str(BESIDE / "allocations.c"), "-o", counter, "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        flags = {"LD_PRELOAD": counter, "FLAGS_use_system_allocator": "1", "FLAGS_eager_delete_tensor_gb": "0"}
        plain = training(steps, words)
        asked = Training(None, plain.feeds, plain.fetch, steps, plain.lods, flags=flags)
        found = verify(raw, encode_program(own), asked, interpreter)
    told = "every bit" if found.equal else found.differences[0]
    for policy, one, seen in ((AS_WRITTEN, program, found.original), ("Sublet", own, found.rewritten)):
        expected = predicted(one, plain)
        at = max(range(RUNS, steps), key=lambda step: seen.peaks[step])
        held = expected[at % RUNS]
        peak = held.collected.peak
        yield Row(policy, peak, held.bound, peak, seen.peaks[at], None, "" if policy == AS_WRITTEN else told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has paddlepaddle 1.8.5")
    parser.add_argument("--steps", type=int, default=2 * RUNS)
    parser.add_argument("--words", type=int, default=0, help="all sentences have so many words")
    given = parser.parse_args()
    print("policy, predicted, bound, scratch, measured, beyond, any order, equal")
    for row in rows(given.python, max(given.steps, 2 * RUNS), given.words):
        print(*row.cells(), sep=" | ")


if __name__ == "__main__":
    main()
