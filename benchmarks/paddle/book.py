"""The machine translation of Paddle's book, in the Paddle it was written by: 1.8.5, with an LSTM and a DynamicRNN.

    python -m benchmarks.paddle.book --python PATH [--steps 4] [--words 8]

PATH is the Python (3.6 to 3.8) of an environment with paddlepaddle==1.8.5, protobuf==3.20.3 and numpy below 1.20. That
Paddle does not count its bytes: `allocations.c` is compiled and preloaded, and counts what it asks of the system.
Weights and sentences (16, of 4 to 11 words, or all of `--words`) are drawn. What is predicted knows the lengths of the
sentences: the decoder's loop has as many of them in each trip as are not at their end yet.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sublet.frontends.paddle.format.decoding import decode
from sublet.frontends.paddle.format.encoding import encode
from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.lives.scopes import Place
from sublet.frontends.paddle.operators.shapes import bound
from sublet.frontends.paddle.peaks.memory import memory
from sublet.frontends.paddle.policies.ours import ours
from sublet.frontends.paddle.running.verify import Training, verify

BESIDE = Path(__file__).parent
BOOK = BESIDE.parents[1] / "tests" / "frontends" / "paddle" / "programs" / "book_mt_1.8.5.pb"
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


def predicted(program: Program, training: Training) -> list[int]:
    """The most bytes that are predicted for each of the runs, beyond weights and feeds."""
    found = []
    for feed, lods in zip(training.feeds, training.lods, strict=True):
        shapes, lengths = {name: each.shape for name, each in feed.items()}, lods["target_language_word"]
        by_count = {
            count: bound(program, shapes, {"sequences": count})
            for count in {SENTENCES, *(_going_on(lengths, trip) for trip in range(max(lengths)))}
        }
        in_trip = [by_count[_going_on(lengths, trip)] for trip in range(max(lengths))]
        held = memory(by_count[SENTENCES], frozenset({Place(0, LOSS)}), {"": max(lengths)}, in_trip)
        found.append(held.collected.peak)
    return found


def _going_on(lengths: Sequence[int], trip: int) -> int:
    """How many sequences are not at their end in a trip."""
    return sum(length > trip for length in lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has paddlepaddle 1.8.5")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--words", type=int, default=0, help="all sentences have so many words")
    given = parser.parse_args()
    raw = BOOK.read_bytes()
    program = decode(raw, BOOK.name)
    own = ours(program, [LOSS])
    rewritten = encode(own)
    with TemporaryDirectory() as folder:
        counter = f"{folder}/allocations.so"
        command = ["cc", "-O2", "-shared", "-fPIC", str(BESIDE / "allocations.c"), "-o", counter, "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        flags = {"LD_PRELOAD": counter, "FLAGS_use_system_allocator": "1", "FLAGS_eager_delete_tensor_gb": "0"}
        plain = training(given.steps, given.words)
        asked = Training(None, plain.feeds, plain.fetch, given.steps, plain.lods, flags=flags)
        found = verify(raw, rewritten, asked, given.python)
    print(f"paddlepaddle {found.original.version}, {given.steps} steps, bytes beyond weights at the peak of each")
    for title, one, seen in (("as written", program, found.original), ("rewritten", own, found.rewritten)):
        said = predicted(one, plain)
        print(f"{title}: measured, predicted (beyond feeds, which the first runs have too)")
        for step, peak in enumerate(seen.peaks):
            expected = said[step % RUNS]
            print(f"  {peak:>12,} {expected:>12,} {100 * (peak / expected - 1):+.2f} %")
    print("every bit is the same" if found.equal else "\n".join(found.differences))


if __name__ == "__main__":
    main()
