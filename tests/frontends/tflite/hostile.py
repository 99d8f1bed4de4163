"""Damaged .tflite files: each is read in bounded memory, or refused in words; a plan in one changes nothing else.

python -m tests.frontends.tflite.hostile --flips 10000
"""

from __future__ import annotations

import argparse
import random
import struct
import tracemalloc
from collections import Counter

from sublet.analysis.options import Options
from sublet.errors import ModelError, SubletError
from sublet.frontends.tflite.model import ALIGNMENT, from_program
from sublet.frontends.tflite.offline import encoded, offline_plan
from sublet.frontends.tflite.patched import with_metadata
from sublet.frontends.tflite.placing import offsets_of
from sublet.frontends.tflite.program import Program, decode
from sublet.planning.pipeline import plan_memory
from tests.frontends.tflite.generated import streaming
from tests.frontends.tflite.written import branch, chain, counting, loop

EACH_BYTE = 400
"""Bytes of memory that a byte of a file may cost: small records of a few bytes each."""

FIXED = 1 << 20
LONGEST = 1000
"""Letters of a message: names are cut."""


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """A few bits turned, bytes cut off, cut out or put in, an offset or a length that lies."""
    made = bytearray(raw)
    kind = rng.choice(["flip", "flip", "flip", "cut", "remove", "insert", "lie", "lie"])
    at = rng.randrange(len(made) - 4)
    if kind == "flip":
        for _ in range(rng.choice([1, 1, 2, 8])):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del made[at:]
    elif kind == "remove":
        del made[at : at + rng.randrange(1, 40)]
    elif kind == "insert":
        made[at:at] = rng.randbytes(rng.randrange(1, 20))
    else:
        lie = rng.choice([0, 1, 7, 255, 0x7FFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFF0, rng.randrange(len(made))])
        struct.pack_into("<I", made, at // 4 * 4, lie)
    return bytes(made)


def judged(raw: bytes, deep: bool, measured: bool) -> str:
    """What becomes of damaged bytes. Raises AssertionError, or what escapes, when they are not dealt with."""
    program, refusal = _measured(raw) if measured else _decoded(raw)
    if program is None:
        assert len(refusal) < LONGEST, "a message that a file makes long"
        return "refused"
    refusal = ""
    try:
        model = from_program(program)
        offline_plan(program)
        if deep:
            plan = plan_memory(model, Options(alignment=ALIGNMENT))
            content = encoded(offsets_of(program, plan))
            assert decode(with_metadata(raw, "damaged", content), "planned").subgraphs == program.subgraphs
    except SubletError as error:
        refusal = str(error)
    assert len(refusal) < 10 * LONGEST
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
    raws = [chain(), branch(), loop(), counting(), streaming(1)]
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
