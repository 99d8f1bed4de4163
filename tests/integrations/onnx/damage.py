"""Damaged files of every format: each is read in bounded memory, or refused in words that name it.

An audit hook watches: a damaged file causes no import, code, library, process or opened file that whole files do not.
"""

from __future__ import annotations

import argparse
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sublet.base.errors import SubletError
from tests.support.audit_hook import Event, require_known, watched

EACH_BYTE = 400
"""Bytes of memory that a byte of a file may cost: small records of a few bytes each."""

FIXED = 1 << 20
NAME = "damaged"
LIES = (0, 1, 7, 255, 0x7FFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFF0)
T = TypeVar("T")


@dataclass(frozen=True)
class Format(Generic[T]):
    """What is damaged, and what is done with it.

    `read` makes something of the bytes of a file called `damaged`, or raises an error of Sublet's. `used` goes on with
    that, and further where it is told to (`deep`): it gives a verdict, and raises what must not be. No message is
    longer than `longest`.
    """

    files: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], T]
    used: Callable[[bytes, T, bool], str]
    longest: int = 500


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """A few bits turned or bytes changed, bytes cut off, cut out, doubled or put in, or a number that lies."""
    made = bytearray(raw)
    kinds = ["flip", "flip", "flip", "change", "cut", "remove", "double", "insert", "lie", "lie", "length"]
    kind, at = rng.choice(kinds), rng.randrange(len(made) - 4)
    if kind == "flip":
        for _ in range(rng.choice([1, 1, 2, 8])):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    elif kind == "change":
        for _ in range(rng.randint(1, 4)):
            made[rng.randrange(len(made))] = rng.randrange(256)
    elif kind == "cut":
        del made[at:]
    elif kind == "remove":
        del made[at : at + rng.randrange(1, 40)]
    elif kind == "double":
        made[at:at] = made[at : at + rng.randrange(1, 400)]
    elif kind == "insert":
        made[at:at] = rng.randbytes(rng.randrange(1, 20))
    elif kind == "lie":
        struct.pack_into("<I", made, at // 4 * 4, rng.choice([*LIES, rng.randrange(len(made))]))
    else:
        made[at : at + 5] = b"\xff\xff\xff\xff\x0f"  # the largest number of 32 bits, in seven bits a byte
    return bytes(made)


def judged(form: Format[T], raw: bytes, deep: bool, measured: bool) -> str:
    """What becomes of damaged bytes. Raises AssertionError, or what escapes, when they are not dealt with."""
    try:
        found = _measured(form, raw) if measured else form.read(raw)
    except SubletError as error:
        refusal = str(error)
    else:
        return form.used(raw, found, deep)
    assert NAME in refusal, f"a message that names no file: {refusal}"
    assert len(refusal) < form.longest, "a message that a file makes long"
    return "refused"


def _measured(form: Format[T], raw: bytes) -> T:
    """What is read, in bounded memory: the second time at the latest, when libraries keep what they load once."""
    for last in (False, True):
        tracemalloc.start()
        error, found = None, None
        try:
            found = form.read(raw)
        except SubletError as refusal:
            error = refusal
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if used <= EACH_BYTE * len(raw) + FIXED:
            break
        assert not last, f"{len(raw)} bytes took {used} bytes"
    if error is not None:
        raise error
    return found  # type: ignore[return-value]  # read, as there is no error


def honest_events(form: Format[T], files: Sequence[bytes]) -> set[Event]:
    """What reading and using whole files causes, once what they need is imported; a file that is none is read too."""
    events: set[Event] = set()
    for last in (False, True):
        for raw in (*files, b"\0" * 64, *(each[: len(each) // 2] for each in files)):
            for deep in (False, True):
                with watched() as seen:
                    verdict = judged(form, raw, deep, False)
                assert raw not in files or verdict != "refused", "a file that is whole is refused"
                events = events | seen if last else events
    return events


def judge_many(form: Format[T], count: int, seed: int = 0, deep: int = 20, measured: int = 5) -> Counter[str]:
    """What became of `count` damaged files; with one in `deep` more is done, of one in `measured` memory is counted."""
    files = form.files()
    honest = honest_events(form, files)
    tally: Counter[str] = Counter()
    for case in range(seed, seed + count):
        rng = random.Random(case)
        raw = damaged(files[case % len(files)], rng)
        try:
            with watched() as events:
                tally[judged(form, raw, case % deep == 0, case % measured == 0)] += 1
            require_known(events, honest, NAME)
        except Exception as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    return tally


def arguments(description: str | None) -> argparse.ArgumentParser:
    """How many are asked for on the command line, from which case on."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def tell(form: Format[T], asked: argparse.Namespace) -> None:
    """Damage so many files and print what became of them."""
    for verdict, count in judge_many(form, asked.flips, asked.seed).most_common():
        print(f"{count:>8} {verdict}")
