"""A few seconds of generated programs whose gradients must be PyTorch's; `make fuzz` goes on for longer."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

from sublet.ops.nn import COMMANDS
from tests.nn.gradient_programs import MADE_BY_PASSES, USES, check_program


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_gradients_of_generated_programs_are_pytorchs(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 20):
        check_program(seed, seen)
    assert seen["programs"] == 20
    assert seen["view"]
    assert seen["inplace"]


def test_every_command_with_a_gradient_is_in_them() -> None:
    differentiable = {name for name, record in COMMANDS.items() if record.gradient and not name.endswith("_gradient")}
    assert not differentiable - set(USES) - set(MADE_BY_PASSES), "add these to USES in tests/nn/gradient_programs.py"
    assert set(USES) | set(MADE_BY_PASSES) == differentiable
