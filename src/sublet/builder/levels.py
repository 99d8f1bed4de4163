"""The levels of a graph that is being written: the root, and inside it bodies of loops and arms of branches."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.builder.lines import at_line
from sublet.builder.tensor import Tensor
from sublet.errors import SpecError
from sublet.ir.emitter import Emitter
from sublet.ir.graph import Value


@dataclass(eq=False)
class Level:
    """A graph or sub-graph that nodes are appended to. `what` names it in messages."""

    emit: Emitter
    what: str
    made: dict[str, Value] = field(default_factory=dict)


class Levels:
    """The levels that are open, from the root down, and where every value was made."""

    def __init__(self, root: Emitter) -> None:
        self.open = [Level(root, "the graph")]
        self._home: dict[str, Level] = {}

    @property
    def here(self) -> Level:
        return self.open[-1]

    def made(self, value: Value, level: Level | None = None) -> Value:
        """Note where a value was made: at the innermost level unless told."""
        self._home[value.name] = level or self.here
        return value

    def require_visible(self, tensor: Tensor) -> Value:
        """The value of a tensor that may be read here. Raises SpecError when its level is closed."""
        home = self._home[tensor.value.name]
        if home not in self.open:
            what = f"{tensor!r} was made in {home.what} and is not known outside of it"
            raise SpecError(at_line(f"{what}: take what the loop or branch gives instead"))
        return tensor.value

    def push(self, what: str) -> Level:
        """Open a level below the innermost."""
        self.open.append(Level(self.here.emit.inside(), what))
        return self.here

    def pop(self) -> Level:
        """Close the innermost level."""
        return self.open.pop()
