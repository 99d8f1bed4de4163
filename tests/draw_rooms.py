"""The picture of the rooms in ARCHITECTURE.md: the floors of FLOORS, and a mark for each room imported by another.

python -m tests.draw_rooms
"""

from __future__ import annotations

from tests.test_architecture import FLOORS, edges, modules

COLUMN = 3
"""The width of a column, in characters."""


def room_of(module: str) -> str:
    """Return the top-level room of a module; "" for the package itself."""
    return module.partition(".")[0]


def imported_rooms() -> dict[str, set[str]]:
    """Map every top-level room to the rooms imported by its modules."""
    found: dict[str, set[str]] = {}
    for module in modules():
        found.setdefault(room_of(module), set()).update(room_of(target) for target in edges(module))
    return found


def inner_rooms(room: str) -> list[str]:
    """Return the names of the rooms inside a room, in the order of their floors."""
    inside = [floor.split(".")[1] for floor in FLOORS if floor.startswith(f"{room}.")]
    return list(dict.fromkeys(inside))


def draw_rooms() -> str:
    """Return the picture: one line a floor, the ground floor last, each room's name at the foot of its column."""
    rooms, imports, lines = [room for room in FLOORS if "." not in room], imported_rooms(), []
    for number, room in enumerate(rooms, 1):
        marks = "".join(("#" if below in imports[room] else ".").ljust(COLUMN) for below in rooms[: number - 1])
        inner = inner_rooms(room)
        lines.append(f"{number:>2}  {marks}{room}{': ' if inner else ''}{' '.join(inner)}")
    return "\n".join(reversed(lines))


if __name__ == "__main__":
    print(draw_rooms())
