"""Minimum cuts of the values to store, against SciPy's maximum flow."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Value
from sublet.passes.autodiff.tape import min_cut_values

ENDLESS = 1 << 30


def cut_of_scipy(
    wanted: Sequence[Value], uses: Mapping[Value, Sequence[Value] | None], price: Mapping[Value, int]
) -> set[Value]:
    """The minimum cut closest to the wanted values, each value split into an entry and an exit."""
    at = {value: 2 * i for i, value in enumerate(uses)}
    source, sink = 2 * len(at), 2 * len(at) + 1
    edges = {(i, i + 1): price[value] for value, i in at.items()}
    for value, of in uses.items():
        edges |= {(begin, at[value]): ENDLESS for begin in ([source] if of is None else [at[use] + 1 for use in of])}
    edges |= {(at[value] + 1, sink): ENDLESS for value in wanted}
    begins, ends = np.array([*edges]).T
    shape = (sink + 1, sink + 1)
    room = csr_array(coo_array((np.array([*edges.values()], np.int32), (begins, ends)), shape=shape))
    left = csr_array(room - maximum_flow(room, source, sink).flow)
    left.eliminate_zeros()
    near = set(breadth_first_order(csr_array(left.T), sink, return_predecessors=False).tolist())
    return {value for value, i in at.items() if i not in near and i + 1 in near}


@pytest.mark.parametrize("count", [1, 4, 10, 30, 100])
def test_the_values_stored_are_the_cut_of_scipy(count: int) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        values = [Value(f"v{i}", TensorSpec(DType.F32, ())) for i in range(count)]
        uses: dict[Value, list[Value] | None] = {}
        for i, value in enumerate(values):
            operands = rng.choices(values[max(0, i - 20) : i], k=rng.choice((1, 2, 2, 3))) if i else []
            uses[value] = None if rng.random() < 0.3 else operands
        price = {value: rng.choice((1, 2, 64, 64, 256, rng.randrange(1, 5000))) for value in values}
        wanted = rng.sample(values, 1 + count // 3)
        assert min_cut_values(wanted, uses, price) == cut_of_scipy(wanted, uses, price)
