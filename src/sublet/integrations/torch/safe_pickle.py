"""Safe reader of untrusted pickles: dicts, lists, tuples, strings, bytes and numbers, without execution of any code.

The reader interprets only the opcodes that build plain data. It refuses every opcode that imports, calls or builds an
object, by name. The file bounds the result: no element is longer than the file, keys are strings, and the containers
are counted. An object referenced twice is shared in the result, so a consumer must count its own steps.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from sublet.base.errors import ModelError

MAX_BYTES = 1 << 30
"""Limit of bytes of a pickle. Beyond, the pickle is refused."""
MAX_CONTAINERS = 1 << 24
"""Limit of dicts, lists and tuples in a pickle. Beyond, the pickle is refused."""
MAX_LONG_BYTES = 16
"""Limit of bytes of an integer: no address or size is longer. Beyond, the pickle is refused."""
PROTOCOLS = range(2, 6)

REFUSED_OPCODES = {
    "GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "EXT2", "EXT4",
    "PERSID", "BINPERSID",
}  # fmt: skip
NAMES = {opcode.code.encode("latin-1")[0]: opcode.name for opcode in pickletools.opcodes}
MARK = object()


def safe_unpickle(raw: bytes, where: str) -> Any:
    """Return the plain data in a pickle.

    Raises ModelError for opcodes other than those of plain data, and for a truncated or oversized pickle.
    """
    if len(raw) > MAX_BYTES:
        raise ModelError(f"{where}: {len(raw)} bytes; a pickle of more than 1 GiB is not read")
    return _PickleMachine(raw, where).run()


class _PickleMachine:
    """A stack machine for the supported pickle opcodes."""

    def __init__(self, raw: bytes, where: str) -> None:
        self._raw, self._where, self._at = raw, where, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0

    def error(self, what: str) -> ModelError:
        """Return the error with the current byte position."""
        return ModelError(f"{self._where}: byte {self._at}: {what}")

    def run(self) -> Any:
        """Execute the opcodes up to STOP and return the single remaining object."""
        raw, stop = self._raw, ord(".")
        if len(raw) < 2 or raw[0] != 0x80 or raw[1] not in PROTOCOLS:
            raise self.error("not a pickle of protocol 2 to 5")
        while self._at < len(raw):
            code = raw[self._at]
            self._at += 1
            if code == stop:
                if len(self._stack) != 1 or self._stack[0] is MARK:
                    raise self.error("the pickle ends with an empty or unfinished stack")
                return self._stack[0]
            action = ACTIONS.get(code)
            if action is None:
                raise self.error(_refusal(code))
            action(self)
        raise self.error("the pickle is truncated")

    def read_bytes(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises ModelError at the end of the file."""
        if count > len(self._raw) - self._at:
            raise self.error("the pickle is truncated, or a length in the pickle is wrong")
        self._at += count
        return self._raw[self._at - count : self._at]

    def read_number(self, form: str) -> Any:
        """Return the next number, little-endian, in the `struct` format `form`."""
        return struct.unpack("<" + form, self.read_bytes(struct.calcsize("<" + form)))[0]

    def push(self, item: Any) -> None:
        """Push an object."""
        self._stack.append(item)

    def pop(self) -> Any:
        """Pop an object. Raises ModelError if the stack is empty or its top is a mark."""
        if not self._stack or self._stack[-1] is MARK:
            raise self.error("an opcode pops an object from an empty stack")
        return self._stack.pop()

    def push_container(self, item: Any) -> None:
        """Push a new container. Raises ModelError beyond MAX_CONTAINERS."""
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise self.error(f"the pickle has more than {MAX_CONTAINERS} containers")
        self.push(item)

    def pop_to_mark(self) -> list[Any]:
        """Pop the last mark and all objects above the mark, and return the objects."""
        for i in range(len(self._stack) - 1, -1, -1):
            if self._stack[i] is MARK:
                items = self._stack[i + 1 :]
                del self._stack[i:]
                return items
        raise self.error("an opcode pops a list without a mark")

    def push_tuple(self, count: int) -> None:
        """Pop `count` objects and push them as a tuple."""
        self.push_container(tuple(reversed([self.pop() for _ in range(count)])))

    def push_text(self, form: str) -> None:
        """Push a UTF-8 string with a length in the format `form`."""
        try:
            self.push(self.read_bytes(self.read_number(form)).decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise self.error("a string is not UTF-8") from error

    def push_long(self, form: str) -> None:
        """Push a signed integer with a byte count in the format `form`, at most MAX_LONG_BYTES."""
        count = self.read_number(form)
        if not 0 <= count <= MAX_LONG_BYTES:
            raise self.error(f"an integer of {count} bytes; addresses and sizes have at most {MAX_LONG_BYTES}")
        self.push(int.from_bytes(self.read_bytes(count), "little", signed=True))

    def extend(self, items: list[Any]) -> None:
        """Append `items` to the list on top of the stack."""
        target = self.pop()
        if not isinstance(target, list):
            raise self.error("an opcode appends to an object that is not a list")
        target.extend(items)
        self.push(target)

    def set_items(self, items: list[Any]) -> None:
        """Store alternating keys and values of `items` in the dict on top of the stack."""
        target = self.pop()
        if not isinstance(target, dict) or len(items) % 2:
            raise self.error("an opcode sets items of an object that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise self.error(f"a key is a {type(key).__name__}; expected a string")
            target[key] = value
        self.push(target)

    def append(self) -> None:
        """Pop an object and append it to the list below."""
        self.extend([self.pop()])

    def set_item(self) -> None:
        """Pop a value and a key and store them in the dict below."""
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def remember(self, key: int) -> None:
        """Store the top of the stack in the memo under `key`."""
        if not self._stack or self._stack[-1] is MARK:
            raise self.error("an opcode stores an object from an empty stack")
        self._memo[key] = self._stack[-1]

    def memoize(self) -> None:
        """Store the top of the stack in the memo under the next number."""
        self.remember(len(self._memo))

    def recall(self, form: str) -> None:
        """Push the memo entry with the number in the format `form`."""
        key = self.read_number(form)
        if key not in self._memo:
            raise self.error(f"refers to memo entry {key}, which does not exist")
        self.push(self._memo[key])


def _refusal(code: int) -> str:
    """Return the error text for an unsupported opcode."""
    name = NAMES.get(code, f"0x{code:02x}")
    if name in REFUSED_OPCODES:
        return (
            f"the pickle imports or calls an object ({name}), which Sublet never executes. A memory snapshot has only "
            "dicts, lists, strings and numbers"
        )
    return f"a memory snapshot does not use the opcode {name}"


def _skip_frame_length(machine: _PickleMachine) -> None:
    """Skip the length of a frame: frames are only a hint for buffering."""
    machine.read_number("Q")


ACTIONS: dict[int, Callable[[_PickleMachine], None]] = {
    code[0]: action
    for code, action in {
        b"\x80": lambda m: m.read_bytes(1) and None,
        b"\x95": _skip_frame_length,
        b"(": lambda m: m.push(MARK),
        b"N": lambda m: m.push(None),
        b"\x88": lambda m: m.push(True),
        b"\x89": lambda m: m.push(False),
        b"K": lambda m: m.push(m.read_number("B")),
        b"M": lambda m: m.push(m.read_number("H")),
        b"J": lambda m: m.push(m.read_number("i")),
        b"\x8a": lambda m: m.push_long("B"),
        b"\x8b": lambda m: m.push_long("i"),
        b"G": lambda m: m.push(struct.unpack(">d", m.read_bytes(8))[0]),
        b"\x8c": lambda m: m.push_text("B"),
        b"X": lambda m: m.push_text("I"),
        b"\x8d": lambda m: m.push_text("Q"),
        b"C": lambda m: m.push(m.read_bytes(m.read_number("B"))),
        b"B": lambda m: m.push(m.read_bytes(m.read_number("I"))),
        b"\x8e": lambda m: m.push(m.read_bytes(m.read_number("Q"))),
        b"}": lambda m: m.push_container({}),
        b"]": lambda m: m.push_container([]),
        b")": lambda m: m.push_container(()),
        b"\x85": lambda m: m.push_tuple(1),
        b"\x86": lambda m: m.push_tuple(2),
        b"\x87": lambda m: m.push_tuple(3),
        b"t": lambda m: m.push_container(tuple(m.pop_to_mark())),
        b"a": _PickleMachine.append,
        b"e": lambda m: m.extend(m.pop_to_mark()),
        b"s": _PickleMachine.set_item,
        b"u": lambda m: m.set_items(m.pop_to_mark()),
        b"q": lambda m: m.remember(m.read_number("B")),
        b"r": lambda m: m.remember(m.read_number("I")),
        b"\x94": _PickleMachine.memoize,
        b"h": lambda m: m.recall("B"),
        b"j": lambda m: m.recall("I"),
    }.items()
}
"""The action of each supported opcode."""
