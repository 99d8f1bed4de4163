"""Damaged programs: each is read as something that is written back byte for byte, or refused in words.

python -m tests.frontends.paddle.hostile --flips 10000
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from collections import Counter

from sublet.errors import ModelError, SubletError
from sublet.frontends.paddle.convert.model import from_program
from sublet.frontends.paddle.format.decoding import decode
from sublet.frontends.paddle.format.encoding import encode
from sublet.frontends.paddle.format.program import Program
from sublet.planning.pipeline import plan_memory
from tests.frontends.paddle.given import BESIDE

EACH_BYTE = 400
"""Bytes of memory that a byte of a file may cost: small records of a few bytes each."""

FIXED = 1 << 20


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """A few bits turned, bytes cut off, cut out, doubled or put in."""
    made = bytearray(raw)
    kind = rng.choice(["flip", "flip", "flip", "cut", "remove", "double", "insert", "length"])
    at = rng.randrange(len(made))
    if kind == "flip":
        for _ in range(rng.choice([1, 1, 2, 8])):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del made[at:]
    elif kind == "remove":
        del made[at : at + rng.randrange(1, 40)]
    elif kind == "double":
        made[at:at] = made[at : at + rng.randrange(1, 400)]
    elif kind == "insert":
        made[at:at] = rng.randbytes(rng.randrange(1, 20))
    else:
        made[at : at + 5] = b"\xff\xff\xff\xff\x0f"
    return bytes(made)


def judged(raw: bytes, deep: bool, measured: bool) -> str:
    """What becomes of damaged bytes. Raises AssertionError, or what escapes, when they are not dealt with."""
    program, refusal = _measured(raw) if measured else _decoded(raw)
    if program is None:
        assert "damaged" in refusal
        assert len(refusal) < 500, "a message that a file makes long"
        return "refused"
    assert encode(program) == raw
    try:
        model = from_program(program)
        if deep:
            plan_memory(model)
    except SubletError as error:
        refusal = str(error)
    return "read, and refused as a model" if refusal else "read as a model"


def _decoded(raw: bytes) -> tuple[Program | None, str]:
    """The program, or the words of its refusal."""
    try:
        return decode(raw, "damaged"), ""
    except ModelError as error:
        return None, str(error)


def _measured(raw: bytes) -> tuple[Program | None, str]:
    """The same, in bounded memory."""
    tracemalloc.start()
    try:
        return _decoded(raw)
    finally:
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert used <= EACH_BYTE * len(raw) + FIXED, f"{len(raw)} bytes took {used} bytes"


def judge_many(count: int, seed: int = 0, deep: int = 20, measured: int = 5) -> Counter[str]:
    """What became of `count` damaged files; one in `deep` is planned, the memory of one in `measured` counted."""
    raws = [(BESIDE / name).read_bytes() for name in ("loopnet0.pdmodel", "cond.pb")]
    tally: Counter[str] = Counter()
    for case in range(seed, seed + count):
        rng = random.Random(case)
        try:
            tally[judged(damaged(raws[case % len(raws)], rng), case % deep == 0, case % measured == 0)] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for verdict, count in judge_many(arguments.flips, arguments.seed).most_common():
        print(f"{count:>8} {verdict}")


if __name__ == "__main__":
    main()
