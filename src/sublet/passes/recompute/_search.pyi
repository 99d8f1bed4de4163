from collections.abc import Callable, Sequence

Pairs = Sequence[tuple[int, int]]
Rows = Sequence[Sequence[int]]

class Level:
    def figures(self, pairs: Pairs) -> tuple[int, int]: ...
    def within(
        self, budget: int, start: Pairs, seed: int, most: int, should_stop: Callable[[], bool]
    ) -> tuple[list[tuple[int, int]], bool]: ...
    def segments(self, count: int) -> list[tuple[int, int]]: ...

def level(
    nbytes: Sequence[int],
    kept: Sequence[bool],
    read: Rows,
    cloned: Rows,
    born: Rows,
    renewed: Rows,
    over: Rows,
    at_home: Rows,
    extra: Sequence[int],
    wasted: Sequence[int],
    cost: Sequence[int],
    latest: Sequence[int],
    away: Sequence[int],
    steady: int,
) -> Level: ...
