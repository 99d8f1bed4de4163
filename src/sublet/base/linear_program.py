"""Linear programs over variables from 0 to 1, built row by row, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

RELATIVE_GAP = 0.01
"""Relative gap between the proven bound and the best solution at which branch and bound stops."""

Term = tuple[int, float]
"""A variable and its factor."""


@dataclass
class LinearProgram:
    """A linear program: variables from 0 to 1 with costs, and upper limits on weighted sums of variables.

    starts, columns, factors  the rows: row i has the entries from `starts[i]` to `starts[i + 1]`
    """

    costs: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def add_variable(self, cost: float = 0.0) -> int:
        """Add a variable; return its number."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def add_constraint(self, terms: Iterable[Term], most: float) -> None:
        """Add the constraint: the weighted sum of variables is at most `most`."""
        row: dict[int, float] = {}
        for variable, factor in terms:
            row[variable] = row.get(variable, 0.0) + factor
        self.columns += row
        self.factors += row.values()
        self.starts.append(len(self.columns))
        self.limits.append(most)

    def lower_bound(self, nodes: int = 0) -> float | None:
        """Return a proven lower bound on the cost of any solution; None if infeasible.

        With `nodes`, variables are 0 or 1, and the bound is the bound proved after exploring `nodes` nodes of branch
        and bound. Nodes are counted, so the result does not depend on the clock.
        """
        if not self.columns:
            return 0.0 if min(self.limits, default=0.0) >= 0 else None
        solver = self._solve(nodes)
        if solver.getModelStatus().name == "kInfeasible":
            return None
        if nodes:
            ended = solver.getModelStatus().name in ("kOptimal", "kSolutionLimit")
            return float(solver.getInfo().mip_dual_bound) * self._unit if ended else -np.inf
        return self._bound_at(self._prices_of(solver))

    def prices(self) -> NDArray[np.float64]:
        """Return a dual value for each limit, at least 0: the cost saved by a larger limit; zeros if not solved."""
        return self._prices_of(self._solve(0))

    @property
    def _unit(self) -> float:
        """The largest cost: the unit of costs in the solver, whose tolerances are absolute."""
        return max(map(abs, self.costs), default=0.0) or 1.0

    def _solve(self, nodes: int) -> Any:
        """Return the solver of HiGHS after a run without output."""
        highs = import_module("highspy")  # slow to import
        program, count = highs.HighsLp(), len(self.costs)
        program.num_col_, program.num_row_ = count, len(self.limits)
        program.col_cost_ = np.array(self.costs) / self._unit
        program.col_lower_, program.col_upper_ = np.zeros(count), np.ones(count)
        program.row_lower_, program.row_upper_ = np.full(len(self.limits), -np.inf), np.array(self.limits)
        program.a_matrix_.format_ = highs.MatrixFormat.kRowwise
        program.a_matrix_.start_, program.a_matrix_.index_ = np.array(self.starts), np.array(self.columns)
        program.a_matrix_.value_ = np.array(self.factors)
        solver = highs._Highs()  # highs.Highs prints a line
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        if nodes:
            program.integrality_ = [highs.HighsVarType.kInteger] * count
            solver.setOptionValue("mip_max_nodes", nodes)
            solver.setOptionValue("mip_rel_gap", RELATIVE_GAP)
        solver.passModel(program)
        with ThreadPoolExecutor(1) as fresh:  # HiGHS keeps a pool per thread: of another size, or dead after a fork
            fresh.submit(solver.run).result()
        return solver

    def _prices_of(self, solver: Any) -> NDArray[np.float64]:
        if solver.getModelStatus().name != "kOptimal":
            return np.zeros(len(self.limits))
        prices: NDArray[np.float64] = np.maximum(0.0, -np.array(solver.getSolution().row_dual)) * self._unit
        return prices

    def _bound_at(self, prices: NDArray[np.float64]) -> float:
        """Return the Lagrangian bound, valid for any prices: the solver's accuracy cannot make the bound wrong.

        Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004.
        """
        rows = np.repeat(np.arange(len(self.limits)), np.diff(self.starts))
        paid = np.bincount(self.columns, prices[rows] * self.factors, len(self.costs)) + self.costs
        return float(np.minimum(paid, 0.0).sum() - prices @ self.limits)
