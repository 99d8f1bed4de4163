"""Linear programs over variables from 0 to 1, built row by row, solved by HiGHS through SciPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

INFEASIBLE = 2
"""SciPy's status of an infeasible program."""

RELATIVE_GAP = 0.01
"""Relative gap between the proven bound and the best solution at which branch and bound stops."""

Term = tuple[int, float]
"""A variable and its factor."""


@dataclass
class LinearProgram:
    """A linear program: variables from 0 to 1 with costs, and upper limits on weighted sums of variables."""

    costs: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)

    def add_variable(self, cost: float = 0.0) -> int:
        """Add a variable; return its number."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def add_constraint(self, terms: Iterable[Term], most: float) -> None:
        """Add the constraint: the weighted sum of variables is at most `most`."""
        self.entries += [(len(self.limits), unknown, factor) for unknown, factor in terms]
        self.limits.append(most)

    def lower_bound(self, nodes: int = 0) -> float | None:
        """Return a proven lower bound on the cost of any solution; None if infeasible.

        With `nodes`, variables are 0 or 1, and the bound is the bound proved after exploring `nodes` nodes of branch
        and bound. Nodes are counted, so the result does not depend on the clock.
        """
        if not self.entries:
            return 0.0 if min(self.limits, default=0.0) >= 0 else None
        rows, columns, factors = zip(*self.entries, strict=True)
        matrix = coo_array((factors, (rows, columns)), shape=(len(self.limits), len(self.costs))).tocsr()
        solution = milp(
            self.costs,
            constraints=LinearConstraint(matrix, -np.inf, self.limits),
            bounds=Bounds(0, 1),
            integrality=np.full(len(self.costs), int(nodes > 0)),
            options={"node_limit": nodes, "mip_rel_gap": RELATIVE_GAP} if nodes else None,
        )
        if solution.status == INFEASIBLE:
            return None
        bound = solution.mip_dual_bound if nodes else solution.fun
        return float(bound) if bound is not None and np.isfinite(bound) else -np.inf
