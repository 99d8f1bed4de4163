from collections.abc import Callable, Sequence

Rows = Sequence[Sequence[int]]

class Problem:
    def curve(self, order: Sequence[int]) -> list[int]: ...
    def at_start(self) -> int: ...
    def least_during(self, node: int) -> int: ...
    def improved(
        self, order: Sequence[int], effort: int, should_stop: Callable[[], bool]
    ) -> tuple[list[int], int, int, int, bool, int]: ...

def problem(
    size: Sequence[int],
    kept: Sequence[bool],
    maker: Sequence[int],
    before: Rows,
    read: Rows,
    over: Sequence[Sequence[tuple[int, Rows]]],
    extra: Sequence[int],
) -> Problem: ...
