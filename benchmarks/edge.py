"""TensorFlow Lite Micro with its own plan and with ours: what its interpreter says it needs, and whether both agree.

`make bench-edge`. Models are those that come with packages (tflite-micro's own, the wake words of pymicro-wakeword,
where they are installed), and networks written here. Each is opened in a fresh interpreter, and every input is set
before each run.

head      bytes of tensors and kernels' scratch in TFLM's arena: with its own plan, with ours, and what tensors alone
          need in any packing of the buffers that Sublet planned
arena     bytes used in all, with TFLM's own records
smallest  the smallest arena in which the interpreter can be opened
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Literal

from benchmarks.results import BOUND, Row, exact_row
from sublet.analysis.options import Options
from sublet.integrations.tflite.plan_offsets import (
    PACKAGE,
    Trial,
    in_planned_order,
    offsets_of_plan,
    run_trials,
    select_offsets,
    version,
)
from sublet.integrations.tflite.program import decode
from sublet.integrations.tflite.reader import ALIGNMENT, from_program
from sublet.planning.pipeline import plan_memory
from tests.integrations.tflite.generated import residual, straight, streaming
from tests.integrations.tflite.written import branch, chain, counting, loop

PACKAGES = ("tflite_micro", "pymicro_wakeword")
RUNS = 50
COLUMNS = (
    *("model", "operators", "head: TFLM", "ours", "bound", "arena: TFLM", "ours", "smallest: TFLM", "ours"),
    *("offsets", "equal"),
)


def models() -> Iterator[tuple[str, bytes]]:
    """The models, by name."""
    for package in PACKAGES:
        found = find_spec(package)
        for folder in (found.submodule_search_locations or ()) if found else ():
            for path in sorted(Path(folder).rglob("*.tflite")):
                yield path.stem, path.read_bytes()
    yield from ((f"written: {make.__name__}", make()) for make in (chain, branch, loop, counting))
    for dtype in ("f32", "i8"):
        yield f"written: residual {dtype}", residual(dtype=dtype)
        yield f"written: streaming {dtype}", streaming(dtype=dtype)
    yield from ((f"written: straight {seed}", straight(seed)) for seed in range(10))


def result_rows(count: int | None = None) -> Iterator[Row]:
    """Yield the bytes of tensors and scratch memory with TFLM's own plan and with Sublet's, if outputs are equal."""
    for name, raw in islice(models(), count):
        for order, of in (("given", "Sublet"), ("less", "Sublet, another order")):
            _, _, head, ours, bound, *_, equal = row(name, raw, order)
            assert equal == "yes", f"{name}: outputs differ"
            cells = {PACKAGE: head, of: ours, BOUND: bound} if order == "given" else {of: ours}
            for series, cell in cells.items():
                yield exact_row(name.removeprefix("written: "), series, int(cell.replace(",", "")))


def row(name: str, raw: bytes, order: Literal["given", "less"] = "given") -> tuple[str, ...]:
    """Return the cells of a model, with operators in the order of the file, or in an order chosen for less memory."""
    program = decode(raw, name)
    plan = plan_memory(from_program(program), Options(alignment=ALIGNMENT, order=order))
    reordered = in_planned_order(raw, program, plan)
    choice = select_offsets(raw, program, offsets_of_plan(program, plan), reordered)
    assert choice is not None, f"{name}: TFLM has no kernel for an operator"
    main = program.subgraphs[0]
    ends = len(main.inputs), len(main.outputs)
    own, ours = run_trials([Trial(each, *ends, runs=RUNS, seed=7) for each in (raw, choice.raw)])
    told = sum(offset is not None for offset in choice.offsets[0]) if choice.offsets else 0
    numbers = (
        choice.without_plan.head, choice.with_plan.head, plan.lower_bound_bytes,
        choice.without_plan.total, choice.with_plan.total, choice.without_plan.smallest, choice.with_plan.smallest,
    )  # fmt: skip
    equal = not own.refused and own.outputs == ours.outputs
    operators = str(sum(len(subgraph.operators) for subgraph in program.subgraphs))
    return name, operators, *(f"{number:,}" for number in numbers), f"{choice.how} ({told})", "yes" if equal else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", choices=("given", "less"), default="given", help="the order of the operators")
    asked = parser.parse_args()
    print(f"{PACKAGE} {version()}, {RUNS} runs on random inputs, bytes\n")
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |")
    worse = 0
    for name, raw in models():
        found = row(name, raw, asked.order)
        print(f"| {' | '.join(found)} |", flush=True)
        worse += found[-1] != "yes" or int(found[6].replace(",", "")) > int(found[5].replace(",", ""))
    verdict = "no model needs more with Sublet's plan, and all compute the same"
    print(f"\n{f'{worse} need more or compute something else' if worse else verdict}")


if __name__ == "__main__":
    main()
