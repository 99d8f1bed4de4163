"""ExecuTorch's programs damaged and their plans changed, thousands of times: `make fuzz`.

    python -m tests.integrations.executorch.hostile [--flips 10000] [--mutants 1000]

A damaged file is a ModelError or is judged; nothing else is raised. A changed plan that the judge accepts computes
right on random ways through the program over real bytes.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.integrations.executorch.instructions import ByteRange, ExecutorchMethod
from sublet.integrations.executorch.plan_reader import judge_programs, methods_of
from sublet.integrations.executorch.replay import replay
from tests.integrations.executorch.executed import Executed
from tests.integrations.onnx.damage import NAME, Format, arguments, tell

PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.pte"))
WAYS = 6


def method(path: Path) -> ExecutorchMethod:
    """The only method of a program."""
    (only,) = methods_of(path.read_bytes(), path.name)
    return only


def with_places(whole: ExecutorchMethod, draw: random.Random) -> ExecutorchMethod:
    """The method with a few tensors elsewhere; in half of the cases all that lie in one place go together."""
    values = list(whole.values)
    for _ in range(draw.randint(1, 3)):
        chosen = draw.choice([k for k, value in enumerate(values) if value.nbytes and value.place is not None])
        place = values[chosen].place
        assert place is not None
        begin = draw.randrange(0, whole.memories[place.memory], 16)
        together = draw.random() < 0.5
        for number, value in enumerate(values):
            if number == chosen or (together and value.place == place):
                values[number] = replace(value, place=ByteRange(place.memory, begin, begin + (value.nbytes or 0)))
    return replace(whole, values=values)


def used(_: bytes, methods: list[ExecutorchMethod], __: bool) -> str:
    """A program that was read is judged, or refused in words."""
    try:
        judge_programs([each.as_steps() for each in methods])
    except ModelError:
        return "read, and refused"
    return "judged"


def files() -> list[bytes]:
    return [path.read_bytes() for path in PROGRAMS]


FILES = Format(files, lambda raw: methods_of(raw, NAME), used)


def accepted(changed: ExecutorchMethod) -> bool:
    """Whether the judge accepts a changed plan. Raises AssertionError for one that then computes wrong."""
    if replay(changed.as_steps()):
        return False
    wrong = [words for seed in range(WAYS) if (words := Executed(changed, seed).run())]
    assert not wrong, wrong[0]
    return True


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mutants", type=int, default=1_000)
    asked = parser.parse_args()
    tell(FILES, asked)
    draw, methods = random.Random(asked.seed), [method(path) for path in PROGRAMS]
    right = sum(accepted(with_places(draw.choice(methods), draw)) for _ in range(asked.mutants))
    print(f"{asked.mutants:>8} changed plans: {right} accepted, all of which compute right")


if __name__ == "__main__":
    main()
