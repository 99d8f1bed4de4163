"""Choice of values to store for recomputation: a minimum cut, in bytes, between lost values and values to read.

Each value is an edge with the bytes of the value as capacity. Cutting the edge means storing the value: the operands of
a stored value are not needed. Values without a recomputation are connected to the source, values to read to the sink
(Ford and Fulkerson, 1956; PyTorch's partitioner solves the same problem for a whole training step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from sublet.ir.graph import Value

MAX_TOTAL_PRICE = 1 << 29
"""Maximum sum of all prices: SciPy's maximum flow has 32-bit capacities. Larger sums are scaled down."""


def min_cut_values(
    wanted: Sequence[Value], uses: Mapping[Value, Sequence[Value] | None], price: Mapping[Value, int]
) -> set[Value]:
    """Return the values to store at the least total price, making all `wanted` values stored or recomputable.

    `uses` maps each value to the operands of its recomputation, or to None if recomputation is impossible. Of several
    minimum cuts the function takes the cut closest to the wanted values, with the least recomputation.
    """
    if all(of is not None for of in uses.values()):
        return set()
    at = {value: 2 * i for i, value in enumerate(uses)}
    source, sink = 2 * len(at), 2 * len(at) + 1
    scale = max(1, -(-sum(price[value] for value in at) // MAX_TOTAL_PRICE))
    endless = 2 * MAX_TOTAL_PRICE
    edges = [(at[value], at[value] + 1, -(-price[value] // scale)) for value in at]
    for value, of in uses.items():
        begins = [source] if of is None else [at[use] + 1 for use in dict.fromkeys(of)]
        edges += [(begin, at[value], endless) for begin in begins]
    edges += [(at[value] + 1, sink, endless) for value in dict.fromkeys(wanted) if value in at]
    rows, columns, most = np.array(edges, np.int32).T
    capacity = csr_array(coo_array((most, (rows, columns)), shape=(sink + 1, sink + 1)))
    left = (capacity - maximum_flow(capacity, source, sink).flow).tocsr()
    left.eliminate_zeros()
    before_the_sink = set(breadth_first_order(left.T.tocsr(), sink, return_predecessors=False).tolist())
    return {value for value, i in at.items() if i not in before_the_sink and i + 1 in before_the_sink}
