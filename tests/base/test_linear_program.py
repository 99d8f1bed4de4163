"""Linear programs: bounds beside SciPy's optima and brute force, and HiGHS beside other users and forks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import product

import highspy
import numpy as np
import pytest
from scipy.optimize import linprog

from sublet.base.linear_program import RELATIVE_GAP, LinearProgram


def drawn(seed: int, most: int) -> LinearProgram:
    """A covering and packing program of some variables, at times infeasible; costs between nanoseconds and hours."""
    rng = random.Random(seed)
    program, unit = LinearProgram(), 10 ** rng.uniform(-9, 4)
    variables = [program.add_variable(rng.choice((0.0, unit, rng.uniform(-0.2, 1) * unit))) for _ in range(most)]
    for _ in range(rng.randrange(1, most)):
        sign = rng.choice((-1, -1, 1))
        terms = [(rng.choice(variables), sign * rng.uniform(0.1, 1)) for _ in range(rng.randrange(1, most))]
        program.add_constraint(terms, rng.uniform(0, 0.6) * sum(factor for _, factor in terms))
    if rng.random() < 0.2:
        program.add_constraint([(0, -1.0)], -rng.choice((0.5, 1.5)))
    return program


def matrix_of(program: LinearProgram) -> np.ndarray:
    matrix = np.zeros((len(program.limits), len(program.costs)))
    for row, (begin, end) in enumerate(zip(program.starts, program.starts[1:], strict=False)):
        matrix[row, program.columns[begin:end]] = program.factors[begin:end]
    return matrix


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_is_the_optimum_of_scipy_and_not_above(seed: int) -> None:
    program = drawn(seed, 12)
    unit = max(map(abs, program.costs))
    solved = linprog(np.array(program.costs) / unit, matrix_of(program), program.limits, bounds=(0, 1))
    bound = program.lower_bound()
    assert (bound is None) == (solved.status == 2)
    if bound is not None:
        assert bound / unit == pytest.approx(solved.fun, abs=1e-6)
        assert bound / unit <= solved.fun + 1e-12


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_costs_less_than_the_bound_of_branch_and_bound(seed: int) -> None:
    program = drawn(seed, 9)
    matrix, choices = matrix_of(program), np.array(list(product((0.0, 1.0), repeat=9)))
    fits = (choices @ matrix.T <= np.array(program.limits) + 1e-9).all(axis=1)
    costs = choices[fits] @ np.array(program.costs)
    bound, few = program.lower_bound(1000), program.lower_bound(1)
    assert (bound is None) == (not len(costs))
    if bound is not None:
        least, unit = costs.min(), max(map(abs, program.costs))
        assert few is None or few <= least + 1e-6 * unit
        assert least - RELATIVE_GAP * abs(least) - 1e-6 * unit <= bound <= least + 1e-6 * unit


@pytest.mark.parametrize("seed", range(10))
def test_any_prices_give_a_bound(seed: int) -> None:
    program = drawn(seed, 12)
    best = program.lower_bound()
    prices = np.random.default_rng(seed).uniform(0, 1, len(program.limits)) * max(map(abs, program.costs))
    if best is not None:
        assert program._bound_at(prices) <= best + 1e-6 * max(map(abs, program.costs))


def test_a_program_refused_by_the_solver_has_the_bound_of_free_limits() -> None:
    program = LinearProgram()
    program.add_constraint([(program.add_variable(2.0), -1e30), (program.add_variable(-3.0), 0.0)], -1.0)
    assert program.lower_bound() == -3.0
    assert program.lower_bound(1) == -np.inf
    assert program.prices().tolist() == [0.0]


def test_limits_without_variables() -> None:
    program = LinearProgram()
    assert program.lower_bound() == 0.0
    program.add_constraint([], -1.0)
    assert program.lower_bound() is None


def test_the_solver_runs_beside_another_user_of_highs(capfd: pytest.CaptureFixture[str]) -> None:
    """Whose threads have another number, for which HiGHS refuses to run in the same thread."""
    other = highspy._Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    other.addVar(0, 1)
    other.run()
    program = LinearProgram()
    program.add_constraint([(program.add_variable(2.0), -1.0)], -0.5)
    assert (program.lower_bound(), program.lower_bound(5)) == (1.0, 2.0)
    assert capfd.readouterr().out == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_a_fork_solves() -> None:
    """HiGHS 1.16 waits forever for its threads, which a fork does not copy."""
    script = """if True:
        import os
        from tests.base.test_linear_program import drawn
        def bounds():
            return [drawn(seed, 30).lower_bound(nodes) for seed in range(10) for nodes in (0, 20)]
        before = bounds()
        child = os.fork()
        if not child:
            os._exit(0 if bounds() == before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
