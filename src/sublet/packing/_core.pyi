from collections.abc import Callable
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

class Hole(Enum):
    lowest = 0
    smallest = 1

class Problem:
    def set_conflicts(self, conflicts: NDArray[np.int32]) -> None: ...
    def set_shifts(self, shifts: NDArray[np.int64]) -> None: ...
    def greedy_in_order(self, order: NDArray[np.int32], hole: Hole) -> NDArray[np.int64]: ...
    def greedy_by_tightness(self) -> NDArray[np.int64]: ...
    def sweep(self) -> NDArray[np.int64]: ...
    def count_overlaps(self) -> int: ...
    def solve(
        self, capacity: int, seed: int, max_steps: int, should_stop: Callable[[], bool]
    ) -> tuple[Literal["feasible", "infeasible", "unknown"], NDArray[np.int64], int, bool]: ...
    def repack(
        self,
        lower_bound: int,
        incumbent: NDArray[np.int64],
        seed: int,
        max_steps: int,
        should_stop: Callable[[], bool],
    ) -> tuple[NDArray[np.int64], int, bool]: ...
    def minimise(
        self,
        lower_bound: int,
        incumbent: NDArray[np.int64],
        seed: int,
        max_steps: int,
        should_stop: Callable[[], bool],
    ) -> tuple[NDArray[np.int64], int, int, bool]: ...

def problem(
    sizes: NDArray[np.int64],
    alignments: NDArray[np.int64],
    pinned: NDArray[np.int64],
    first_piece: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    companions: NDArray[np.int32],
) -> Problem: ...
def heaviest_antichain(related: NDArray[np.bool_], weights: NDArray[np.int64]) -> list[int]: ...
