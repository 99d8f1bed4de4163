from collections.abc import Sequence

class Library:
    def __init__(self, entry: int) -> None: ...

class Session:
    def __init__(
        self,
        library: Library,
        model: bytes,
        constants: Sequence[tuple[str, int, tuple[int, ...], int]],
        threads: int,
        shared_pool: bool,
        optimized_path: str,
    ) -> None: ...

class Table:
    def __init__(
        self, session: Session, operands: Sequence[tuple[str, int, int, int]], inputs: int, moving: Sequence[int]
    ) -> None: ...

class Binding:
    def __init__(self, table: Table, shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]) -> None: ...
    def bind(self, number: int, shape: tuple[int, ...], address: int) -> None: ...
    def move(self, shapes: list[tuple[int, ...]], addresses: list[int]) -> None: ...
    def __call__(self) -> None: ...
