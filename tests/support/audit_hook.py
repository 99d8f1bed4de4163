"""What Python does while a file is read, by an audit hook: imports, code, opened files, libraries, processes.

A hook cannot be taken back: it is installed once a process, and records while somebody watches.
"""

from __future__ import annotations

import encodings.cp437
import encodings.unicode_escape  # noqa: F401  # codecs of zip files and of messages, imported at their first use
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WATCHED = (
    "import", "exec", "compile", "open", "ctypes.", "subprocess.", "os.system", "os.exec", "os.spawn", "os.posix_spawn",
    "os.fork", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod",
    "os.putenv", "shutil.", "socket.", "urllib.", "webbrowser.",
    "pickle.", "marshal.", "code.", "gc.", "sys.addaudithook", "sys.settrace",
)  # fmt: skip
MARK = "sublet_payload"
"""A word of every payload that a test hides in a file: an event with it is one that the file caused."""

LIBRARIES = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
"""Folders of source code, which `linecache` opens to show a line of a traceback. That says nothing of a file."""

TEMPORARY = re.escape(tempfile.gettempdir()) + r"/[\w./-]+"

Event = tuple[str, str]
_recorded: set[Event] | None = None
_installed = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _recorded is None or not event.startswith(WATCHED):
        return
    if event == "import":
        return  # `_Imports` sees those of `importlib` too
    if event == "open":
        path = str(args[0])
        if path.startswith(LIBRARIES) and path.endswith(".py") and args[1] in ("r", "rb"):
            return
        detail = f"{path} {args[1]}"
    elif event in ("exec", "compile"):
        detail = str(getattr(args[0], "co_filename", args[-1]))
    else:
        detail = repr(args)[:200]
    if MARK in repr(args):
        detail = f"{detail}, with {MARK}"
    _recorded.add((event, re.sub(r"\d+", "N", re.sub(TEMPORARY, "<temporary>", detail))))


class _Imports:
    """A finder that finds nothing: it records the name of every module that is not imported yet."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if _recorded is not None:
            _recorded.add(("import", name))


@contextmanager
def watched() -> Iterator[set[Event]]:
    """Collect the events of a block."""
    global _recorded, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    assert _recorded is None, "one block at a time"
    _recorded = set()
    sys.meta_path.insert(0, _Imports)  # type: ignore[arg-type]  # a class with the one method that is called
    try:
        yield _recorded
    finally:
        sys.meta_path.remove(_Imports)  # type: ignore[arg-type]
        _recorded = None


def require_known(events: Iterable[Event], honest: Iterable[Event], what: str) -> None:
    """Raise AssertionError for an event that reading honest files does not cause."""
    extra = sorted(set(events) - set(honest))
    assert not extra, f"{what}: reading it caused {extra[:5]}"
