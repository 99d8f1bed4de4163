"""The heaviest antichain of a partial order, by maximum flow.

Weighted Dilworth: in the network S -> i (capacity w_i), i -> j' (unlimited, where i precedes j),
j' -> T (capacity w_j), the heaviest antichain weighs the sum of all w minus the maximum flow. The set
is read off the minimum cut: all i with i reachable from S but i' unreachable.

For any relation and any rounding of the weights, no two members of the set are related
(i reached and i before j make j' reached); rounding and an intransitive relation can only cost
weight. The set is therefore a proof by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

_CAPACITY = (1 << 31) - 1  # SciPy's flow has 32-bit capacities


def heaviest_antichain(related: NDArray[np.bool_], weights: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of a set without any related pair.

    The set is the heaviest if `related` is a strict partial order and the weights, divided by their greatest common
    divisor, sum to less than 2^31; otherwise nearly the heaviest.
    """
    count = len(weights)
    if not any(weights):
        return ()
    capacities = _small_weights(weights)
    begins, ends = np.nonzero(related)
    each = np.arange(count)
    left, right, source, target = each, each + count, 2 * count, 2 * count + 1
    rows = np.concatenate((np.full(count, source), left[begins], right))
    columns = np.concatenate((left, right[ends], np.full(count, target)))
    values = np.concatenate((capacities, np.full(len(begins), _CAPACITY, dtype=np.int32), capacities))
    shape = (2 * count + 2, 2 * count + 2)
    network = csr_array((values.astype(np.int32), (rows, columns)), shape=shape)
    flow = maximum_flow(network, source, target).flow
    residual = csr_array(network - flow)
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = np.zeros(2 * count + 2, dtype=np.bool_)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    chosen = reached[left] & ~reached[right] & (capacities > 0)
    return tuple(int(position) for position in np.flatnonzero(chosen))


def _small_weights(weights: Sequence[int]) -> NDArray[np.int32]:
    """Return the weights divided by their common divisor and, if their sum is still too large, rounded down."""
    unit = gcd(*weights)
    total = sum(weights) // unit
    unit *= -(-total // (_CAPACITY - 1))
    return np.array([weight // unit for weight in weights], dtype=np.int32)
