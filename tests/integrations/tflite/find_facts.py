"""Finds what TensorFlow Lite Micro's kernels let share bytes, by running them so: the origin of `facts.json`.

python -m tests.integrations.tflite.find_facts          writes the file
python -m tests.integrations.tflite.find_facts --check  says what differs from it

Each operator runs at several shapes and types, once as TFLM plans it and once with an offline plan that puts the output
over an input; the same numbers must come out. A view or a part must also leave the input as it was. A fact stays only
if every case of its kind says so, and there is one.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import sublet.integrations.tflite
from sublet.integrations.tflite.offline_plan import METADATA, encode_offsets
from sublet.integrations.tflite.plan_offsets import CRASHED, Trial, run_trials, version
from tests.integrations.tflite.kernels import Case, Piece, binary, mixing, others, pieces, unary
from tests.integrations.tflite.kernels_elsewhere import elsewhere
from tests.integrations.tflite.written import NUMBERS, G, O, T, tflite

FACTS = Path(sublet.integrations.tflite.__file__).with_name("facts.json")
BATCH = 400
FAR = 16


def nbytes(tensor: T) -> int:
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count * NUMBERS[tensor.dtype][1]().itemsize


def given(tensors: Sequence[T], operator: O) -> list[int]:
    """The operands that are given at run time."""
    return [
        i for i in dict.fromkeys(operator.inputs) if i >= 0 and tensors[i].content is None and not tensors[i].variable
    ]


def trials(
    tensors: Sequence[T], operators: Sequence[O], outputs: Sequence[int], offsets: Sequence[int | None]
) -> list[Trial]:
    """The operators as TFLM plans them, and at the offsets."""
    inputs = given(tensors, operators[0])
    graph = G(tensors, operators, inputs, outputs)
    raws = tflite(graph), tflite(graph, metadata=[(METADATA, encode_offsets([offsets]))])
    return [Trial(raw, len(inputs), len(outputs), runs=3) for raw in raws]


def laid_out(tensors: Sequence[T], fixed: dict[int, int], behind: int) -> list[int | None]:
    """Offsets: those that are fixed, all others that lie in the arena behind them."""
    offsets: list[int | None] = []
    for i, tensor in enumerate(tensors):
        if i in fixed or tensor.content is not None or tensor.variable:
            offsets.append(fixed.get(i))
            continue
        offsets.append(behind)
        behind += -(-nbytes(tensor) // FAR) * FAR + FAR
    return offsets


def overwriting(case: Case) -> list[Trial]:
    """The output takes the place of an operand."""
    source, result = case.operator.inputs[case.over], case.operator.outputs[0]
    behind = -(-nbytes(case.tensors[source]) // FAR) * FAR + 4096
    offsets = laid_out(case.tensors, {source: 0, result: 0}, behind)
    return trials(case.tensors, [case.operator], case.operator.outputs, offsets)


def sharing(piece: Piece) -> list[Trial]:
    """Outputs lie within their input, or inputs within their output; then every input is read once more."""
    tensors, fixed, at = list(piece.tensors), {}, 0
    inner = piece.operator.outputs if piece.kind == "view" else piece.operator.inputs
    wholes = given(tensors, piece.operator) if piece.kind == "view" else list(piece.operator.outputs)
    at = start_of(piece)
    for index in inner:
        fixed[index] = at
        at += nbytes(tensors[index])
    fixed[wholes[0]] = 0
    operators, outputs = [piece.operator], list(piece.operator.outputs)
    for index in given(piece.tensors, piece.operator):
        like = tensors[index]
        tensors.append(T(like.shape, like.dtype, None, like.scale, like.zero))
        operators.append(O("MAXIMUM", (index, index), (len(tensors) - 1,)))
        outputs.append(len(tensors) - 1)
    return trials(tensors, operators, outputs, laid_out(tensors, fixed, 1 << 10))


def start_of(piece: Piece) -> int:
    """The byte of the whole where the first piece starts: slices and gathers say it in their second operand."""
    if piece.operator.name not in ("STRIDED_SLICE", "SLICE", "GATHER"):
        return 0
    whole, begin = piece.tensors[0], piece.tensors[1].array().reshape(-1).tolist()
    return int(begin[0]) * nbytes(whole) // whole.shape[0]


def holds(answers: Sequence[Any]) -> bool | None:
    """Whether two runs computed the same; None when the operator does not run like that at all.

    One that ends the process, for want of a check, cannot be tried: nothing is said for it.
    """
    plain, shared = answers
    if plain.refused:
        return False if plain.refused == CRASHED else None
    assert shared.refused or shared.head != plain.head, "the offline plan is not obeyed, so that nothing was tried"
    return not shared.refused and plain.outputs == shared.outputs


def verdicts(cases: Sequence[Any], trial: Callable[[Any], list[Trial]]) -> list[bool | None]:
    found: list[bool | None] = []
    for first in range(0, len(cases), BATCH):
        answers = run_trials([each for case in cases[first : first + BATCH] for each in trial(case)])
        found += [holds(answers[i : i + 2]) for i in range(0, len(answers), 2)]
    return found


def passing(cases: Iterable[Case]) -> dict[str, list[list[Any]]]:
    """The facts that all their cases bear out: by operator, types, positions and how the operands may look."""
    listed, seen = list(cases), defaultdict(list)
    for case, verdict in zip(listed, verdicts(listed, overwriting), strict=True):
        if verdict is not None:
            seen[case.key].append(verdict)
    rows: dict[str, dict[tuple[str, int], list[str]]] = defaultdict(dict)
    for (name, types, over, kind), results in seen.items():
        if all(results):
            rows[name].setdefault((types, over), []).append(kind)
    return {name: [[*key, *sorted(kinds)] for key, kinds in sorted(rows[name].items())] for name in sorted(rows)}


def moving() -> dict[str, list[str]]:
    """The operators whose outputs may be bytes of an input, or hold their inputs."""
    listed, seen = list(pieces()), defaultdict(list)
    for piece, verdict in zip(listed, verdicts(listed, sharing), strict=True):
        if verdict is not None:
            seen[piece.kind, piece.operator.name].append(verdict)
    kinds = ("view", "part")
    return {kind: sorted(name for (of, name), results in seen.items() if of == kind and all(results)) for kind in kinds}


def found() -> dict[str, Any]:
    """All facts. Raises AssertionError when operators pass that cannot be computed in place."""
    wrong = passing(mixing())
    assert not wrong, f"the experiment does not notice what is overwritten: {wrong}"
    moved = moving()
    inplace = passing([*unary(), *binary(), *others(), *elsewhere()])
    return {"tflite-micro": version(), "inplace": inplace, "views": moved["view"], "parts": moved["part"]}


def as_text(facts: dict[str, Any]) -> str:
    """The file: a row a line."""
    lines = []
    for name, rows in facts["inplace"].items():
        lines.append(f"  {json.dumps(name)}: {json.dumps(rows)}")
    inplace = ",\n".join(lines)
    told = {key: json.dumps(facts[key]) for key in ("tflite-micro", "views", "parts")}
    return (
        f'{{"tflite-micro": {told["tflite-micro"]},\n"views": {told["views"]},\n"parts": {told["parts"]},\n'
        f'"inplace": {{\n{inplace}\n}}}}\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = as_text(found())
    if arguments.check:
        assert text == FACTS.read_text(encoding="utf-8"), "the kernels say something else than the file"
    else:
        FACTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
