"""Random networks, planned and run in TensorFlow Lite Micro; and plans with a mistake in them, judged and run.

python -m tests.integrations.tflite.in_tflm --networks 400

A plan of Sublet's, and any other that is judged right, must compute what TFLM's own plan does.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator

from sublet.analysis.options import Options
from sublet.checker.external import ForeignOutcome, judge_by_replay
from sublet.integrations.tflite.offline_plan import Offsets, encode_offsets, with_offline_plan
from sublet.integrations.tflite.plan_offsets import (
    Trial,
    in_planned_order,
    offsets_of_plan,
    plan_from_tflite,
    run_trials,
)
from sublet.integrations.tflite.program import decode
from sublet.integrations.tflite.reader import ALIGNMENT, from_program
from sublet.planning.pipeline import plan_memory
from tests.integrations.tflite.generated import calling, straight

RUNS = 12
BATCH = 60
ACCEPTED = (ForeignOutcome.RIGHT, ForeignOutcome.PARTLY)


def mutated(offsets: Offsets, rng: random.Random) -> Offsets:
    """One tensor somewhere else."""
    main = list(offsets[0])
    told = [i for i, offset in enumerate(main) if offset is not None]
    highest = max(offset or 0 for offset in main)
    main[rng.choice(told)] = rng.choice([rng.randrange(0, highest + 1, ALIGNMENT), main[rng.choice(told)]])
    return tuple(main), *offsets[1:]


def cases(first: int, count: int) -> Iterator[tuple[str, list[Trial]]]:
    """A network as TFLM plans it and at our offsets, or at others; and what is said of these."""
    for seed in range(first, first + count):
        rng, make = random.Random(seed), (straight, calling)[seed % 2]
        raw = make(seed)
        program = decode(raw, str(seed))
        model = from_program(program)
        plan = plan_memory(model, Options(alignment=ALIGNMENT, order="less" if seed % 3 == 1 else "given"))
        ordered = in_planned_order(raw, program, plan)
        offsets, said = offsets_of_plan(program, plan), "ours" if ordered == raw else "ours, in another order"
        if seed % 3 == 0:
            offsets = mutated(offsets, rng)
        planned = with_offline_plan(ordered, str(seed), encode_offsets(offsets))
        if seed % 3 == 0:
            found = judge_by_replay(model, plan_from_tflite(decode(planned, str(seed)))).outcome
            said = "mutated, accepted" if found in ACCEPTED else "mutated, refused"
        ends = len(program.subgraphs[0].inputs), len(program.subgraphs[0].outputs)
        yield said, [Trial(each, *ends, runs=RUNS, seed=seed) for each in (raw, planned)]


def run_many(count: int, first: int = 0) -> Counter[str]:
    """How often what was said, and came out. Raises AssertionError when what was accepted computes something else."""
    tally: Counter[str] = Counter()
    for start in range(first, first + count, BATCH):
        drawn = list(cases(start, min(BATCH, first + count - start)))
        answers = run_trials([trial for _, pair in drawn for trial in pair])
        for i, (said, _) in enumerate(drawn):
            own, other = answers[2 * i : 2 * i + 2]
            assert not own.refused, f"network {start + i}: {own.refused}"
            equal = own.outputs == other.outputs
            assert equal or said == "mutated, refused", (
                f"network {start + i}, {said}: {other.refused or 'other outputs'}"
            )
            tally[f"{said}: {'equal' if equal else 'different'}"] += 1
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=400)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    for verdict, count in run_many(arguments.networks, arguments.first).most_common():
        print(f"{count:>8} {verdict}")


if __name__ == "__main__":
    main()
