"""Fuzzing of plans over ranges: generated programs, at random points or in sessions, beside ONNX Runtime.

    python -m tests.fuzz_ranges --programs 2000 --first 10000

Each seed makes a program without and a program with loops and branches. Every other seed ranges from 0, and makes a
program with extents that depend on data besides. Every fourth seed also makes a decoder with caches, and runs a session
in memory full of NaN, and makes a loop with growing values. Prints the programs and points that differ, the share of
programs not planned, and of caches that grow in place; exits 1 if any differ.
"""

from __future__ import annotations

import argparse
import random
import sys

import numpy as np
import onnx

from benchmarks.models.builder import Builder
from sublet.analysis.options import Options
from sublet.api.ranges import compile_ranges
from tests.runtime.test_growing_caches import ByHand
from tests.runtime.test_measured import wrong_runs
from tests.runtime.test_ranged import FROM_ZERO, differing_points, session_of
from tests.support.onnx.growing_programs import MOST_TRIPS, growing_program
from tests.support.onnx.growing_programs import RANGES as GROWING
from tests.support.onnx.ranged_programs import RANGES, ranged_program

POINTS = 5
WIDTH, SIZE, LENGTHS = 6, 5, (3, 1, 8, 1, 5, 2)
LAYOUTS = ("bhrd", "brhd", "bhdr", "hbrd", "bdrh", "rbhd")
"""Orders of the axes of a cache: batch, heads, rows, depth."""

DECODER_DIMS = {"batch": (1, 3), "new": (1, 8), "past": (0, 20)}


def decoder(rng: random.Random) -> onnx.ModelProto:
    """Return a decoder of some layers, with caches of random layouts and readers."""
    b = Builder("decoder", rng.randrange(10**6))
    x, heads = b.input("x", ("batch", "new", WIDTH)), rng.randint(1, 3)
    results: dict[str, str] = {}
    for layer in range(rng.randint(1, 3)):
        views = []
        for kind in "kv":
            layout, new = rng.choice(LAYOUTS), b.op("MatMul", x, b.random_weight(WIDTH, heads * SIZE))
            new = b.op("Reshape", new, b.ints(0, 0, heads, SIZE))
            new = b.op("Transpose", new, perm=["brhd".index(axis) for axis in layout])
            extents = {"b": "batch", "h": heads, "r": "past", "d": SIZE}
            past = b.input(f"{layer}{kind}", [extents[axis] for axis in layout])
            present = b.op("Concat", past, new, axis=layout.index("r") - rng.choice((0, 4)))
            results[f"next_{past}"] = present
            if rng.random() < 0.15:
                results[f"read_{past}"] = b.op(rng.choice(("Relu", "Identity", "Size")), rng.choice((past, present)))
            order = "bhdr" if kind == "k" else "bhrd"
            views.append(b.op("Transpose", present, perm=[layout.index(axis) for axis in order]))
        query = b.op("Reshape", b.op("MatMul", x, b.random_weight(WIDTH, heads * SIZE)), b.ints(0, 0, heads, SIZE))
        query = b.op("Transpose", query, perm=[0, 2, 1, 3])
        if rng.random() < 0.3:  # the cache is the first operand
            sides = [b.op("Transpose", each, perm=[0, 1, 3, 2]) for each in (views[0], query)]
            scores = b.op("Transpose", b.op("MatMul", *sides), perm=[0, 1, 3, 2])
        else:
            scores = b.op("MatMul", query, views[0])
        mixed = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), views[1]), perm=[0, 2, 1, 3])
        mixed = b.op("Reshape", mixed, b.ints(0, 0, heads * SIZE))
        x = b.op("Tanh", b.op("MatMul", mixed, b.random_weight(heads * SIZE, WIDTH)))
    return b.model(**results, y=x)


def differing_calls(seed: int) -> tuple[list[int], int, int]:
    """Return the calls of a decoder with another result than ONNX Runtime's, the caches in place, and all caches."""
    rng, level, batch = random.Random(seed), ("auto", "none")[seed % 8 // 4], seed % 3 + 1
    model = decoder(rng)
    tiers = rng.choice((None, {"past": (3, 9)}))
    state = {each.name: f"next_{each.name}" for each in model.graph.input if each.name != "x"}
    options = Options(io="bound")
    executable = compile_ranges(model, DECODER_DIMS, state=state, optimize=level, tiers=tiers, options=options)  # type: ignore[arg-type]
    session, by_hand, numbers = executable.session(), ByHand(model, state, batch), np.random.default_rng(seed)
    for block in session._memory.values():
        block.raw[:] = 0xFF
    different = []
    for call, new in enumerate(rng.sample(LENGTHS, len(LENGTHS))):
        x = numbers.standard_normal((batch, new, WIDTH), dtype=np.float32)
        executable.memory.raw("arena")[:] = 0xFF
        wanted, found = by_hand(x=x), session(x=x)
        wanted.update(by_hand.caches)
        found.update({name: session.state(name) for name in state})
        if any(not np.allclose(found[name], array, rtol=1e-5, atol=1e-5) for name, array in wanted.items()):
            different.append(call)
    return different, len(executable.in_place), len(state)


def differing_shapes(seed: int) -> list[int]:
    """Return the extents at which a generated loop with growing values has another result than ONNX Runtime's."""
    model, level = growing_program(seed), ("auto", "none")[seed % 2]
    options = Options(io="bound" if seed % 3 == 0 else "arena")
    session = session_of(model, rewriting=level == "auto")
    dims = {each.name: each for each in GROWING}
    executable = compile_ranges(model, dims, optimize=level, max_trips=MOST_TRIPS, options=options)  # type: ignore[arg-type]
    different, numbers = [], np.random.default_rng(seed)
    for extent in (4, 1, 3, 4):
        given = {"x": numbers.standard_normal((extent, 1, 2), dtype=np.float32)}
        if len(session.get_inputs()) > 1:
            given["count"] = np.array(numbers.integers(0, MOST_TRIPS + 1))
        executable.memory.raw("arena")[:] = 0xA5
        found, wanted = executable(given), session.run(None, given)
        for value, array in zip(session.get_outputs(), wanted, strict=True):
            if not np.allclose(found[value.name], array, rtol=1e-5, atol=1e-5, equal_nan=True):
                different.append(extent)
    return different


def main() -> None:
    """Run the programs, and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=10_000)
    args = parser.parse_args()
    wrong = in_place = caches = too_large = 0
    refused = {False: 0, True: 0}
    for seed in range(args.first, args.first + args.programs):
        ranges = FROM_ZERO if seed % 2 else RANGES
        different: list[dict[str, int]] = []
        for control in refused:
            found = differing_points(ranged_program(seed, ranges=ranges, control=control), ranges, POINTS, seed)
            refused[control] += found is None
            different += found or []
        calls: list[int] = []
        if seed % 4 == 0:
            calls, growing, several = differing_calls(seed)
            in_place, caches = in_place + growing, caches + several
        shapes = differing_shapes(seed) if seed % 4 == 0 else []
        runs, beyond = wrong_runs(seed) if seed % 2 else ([], 0)
        too_large += beyond
        if different or calls or shapes or runs:
            wrong += 1
            print(f"seed {seed}: {different}, calls {calls} of the decoder, extents {shapes} of the loop", flush=True)
            print(f"    extents that depend on data: {runs}", flush=True)
    print(
        f"{args.programs} programs, and {args.programs} with loops and branches, {POINTS} points each: {wrong} differ"
    )
    print(f"not planned: {refused[False]} programs, and {refused[True]} with loops and branches")
    print(f"{args.programs // 2} with extents that depend on data; {too_large} runs refused beyond the range")
    print(f"{in_place} of {caches} caches of decoders grow in place")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
