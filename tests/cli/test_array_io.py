"""Arrays from files: an archive must begin as its format does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import Cli

NETWORK = """
graph @net(%x: f32[2]) {
  %y: f32[2] = nn.relu(%x)
  return %y
}
"""


@pytest.mark.parametrize("front", [b"\x7fELF", b"#!/bin/sh\n"])
def test_an_archive_behind_another_file_is_refused(cli: Cli, tmp_path: Path, front: bytes) -> None:
    """A zip is found from its end, so any program may lie in front."""
    graph, archive = tmp_path / "net.sublet", tmp_path / "x.npz"
    graph.write_text(NETWORK)
    np.savez(archive, x=np.float32([1, -1]))
    words = ("run", graph, "--input", archive, "--backend", "reference")
    assert cli(*words)[0] == 0
    archive.write_bytes(front + archive.read_bytes())
    status, _, errors = cli(*words)
    assert status == 2
    assert "x.npz: begins with" in errors
    assert "a .npz file is a zip" in errors
