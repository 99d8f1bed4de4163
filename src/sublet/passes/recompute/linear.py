"""Linear programs whose unknowns lie between 0 and 1, written down row by row, and solved by HiGHS through SciPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

INFEASIBLE = 2
"""A status of SciPy's."""

NEAR = 0.01
"""How near what is proven is to what was found, as a share, where branch and bound ends."""

Term = tuple[int, float]
"""An unknown, and its factor."""


@dataclass
class Linear:
    """Unknowns from 0 to 1 at a cost each, and sums of some of them that are held to a limit."""

    costs: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)

    def unknown(self, cost: float = 0.0) -> int:
        """One more."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def hold(self, terms: Iterable[Term], most: float) -> None:
        """The sum of these is no more than that."""
        self.entries += [(len(self.limits), unknown, factor) for unknown, factor in terms]
        self.limits.append(most)

    def least(self, nodes: int = 0) -> float | None:
        """No choice costs less, as far as was proven; None where there is none at all.

        With nodes, each unknown is 0 or 1, and what branch and bound has proven after so many of its nodes is told:
        they are counted, so that it does not depend on the clock.
        """
        if not self.entries:
            return 0.0 if min(self.limits, default=0.0) >= 0 else None
        rows, columns, factors = zip(*self.entries, strict=True)
        matrix = coo_array((factors, (rows, columns)), shape=(len(self.limits), len(self.costs))).tocsr()
        found = milp(
            self.costs,
            constraints=LinearConstraint(matrix, -np.inf, self.limits),
            bounds=Bounds(0, 1),
            integrality=np.full(len(self.costs), int(nodes > 0)),
            options={"node_limit": nodes, "mip_rel_gap": NEAR} if nodes else None,
        )
        if found.status == INFEASIBLE:
            return None
        bound = found.mip_dual_bound if nodes else found.fun
        return float(bound) if bound is not None and np.isfinite(bound) else -np.inf
