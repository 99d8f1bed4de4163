"""Install the wheels of dist/ without a compiler, plan a network of another wheel, and print sizes and seconds.

    python -m benchmarks.install python3.11 python3.12 python3.13    # after `.ci/release` or `make wheel`

Each Python gets an empty environment, and a PATH with this environment only. pip downloads all packages anew, without
its cache. Seconds of the processor; in parentheses: seconds of waiting. Exits with 1 if a step fails or takes more than
its limit.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from time import perf_counter

DIST = Path(__file__).parent.parent / "dist"
NETWORK = "pymicro_wakeword/models/hey_jarvis.tflite"
"""A wake-word network in the wheel of pymicro-wakeword 2.5.0; reading the file needs no further package."""

ERROR = """
import numpy as np
from sublet.packing import _core
from sublet.integrations.onnx.kernels import _sessions
rows = np.zeros(2, np.float32)
op = _sessions.Append([(0, 0), (1, 1), (2, 2), (3, 3)], 0, 4)
try:
    _sessions.BoundAppend(op, [(1,), (2,), (1,), (1,)], [rows.ctypes.data] * 4)()
except IndexError as error:
    assert "no room" in str(error)
else:
    raise AssertionError("rows beyond a cache were appended")
"""
"""A program that provokes an error in C++: the wheel must pass the error on to Python, from every module."""

LIMITS = {"MB": 30.0, "install and plan": 24.0, "import": 0.25, "version": 0.3}
"""Megabytes of all downloads; seconds of the processor, so that other work on the machine does not count."""


def main(pythons: list[str]) -> int:
    print(f"{platform.platform()}, {platform.machine()}\n")
    print("| Python | wheel | downloads | `pip install` | `sublet plan` | `import sublet` | `sublet --version` |")
    print("|---|---|---|---|---|---|---|")
    return int(sum(map(install, pythons)) > 0)


def install(python: str) -> bool:
    """Install, plan and measure with one Python; True if a limit is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        own = folder / "venv" / "bin" / "python"
        environment = {**os.environ, "PATH": str(own.parent), "PIP_NO_CACHE_DIR": "1", "CC": "none", "CXX": "none"}
        assert not any(shutil.which(each, path=environment["PATH"]) for each in ("cc", "c++", "gcc", "g++", "clang"))

        def run(*words: str | Path) -> str:
            done = subprocess.run(
                [own, *words], cwd=folder, env=environment, check=True, capture_output=True, text=True
            )
            return done.stdout

        pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
        wheels = ("--only-binary", ":all:", "--find-links", DIST)
        run(*pip, "download", *wheels, "--dest", "got", "sublet")
        files = list((folder / "got").iterdir())
        [wheel] = [path.name for path in files if path.name.startswith("sublet-")]
        megabytes = sum(path.stat().st_size for path in files) / 1e6
        begin = perf_counter()
        installed = processor_seconds(own, environment, *pip, "install", *wheels, "sublet")
        waited = perf_counter() - begin
        network = ("--no-deps", "--platform", "manylinux_2_35_x86_64", "--dest", "network", "pymicro-wakeword==2.5.0")
        run(*pip, "download", "--only-binary", ":all:", *network)
        [archive] = (folder / "network").iterdir()
        path = zipfile.ZipFile(archive).extract(NETWORK, folder)
        run("-c", ERROR)
        planned = processor_seconds(own, environment, "-m", "sublet", "plan", path)
        imported = min(processor_seconds(own, environment, "-c", "import sublet") for _ in range(5))
        version = min(processor_seconds(own, environment, "-m", "sublet", "--version") for _ in range(5))
        tag = wheel.removeprefix("sublet-").removesuffix(".whl").partition("-")[2].partition(".")[0]
        print(
            f"| {run('-c', 'import platform; print(platform.python_version())').strip()} | {tag} | {megabytes:.0f} MB"
            f" | {installed:.1f} s ({waited:.0f} s) | {planned:.1f} s | {imported:.2f} s | {version:.2f} s |",
            flush=True,
        )
        found = {"MB": megabytes, "install and plan": installed + planned, "import": imported, "version": version}
        return any(value > LIMITS[key] for key, value in found.items())


def processor_seconds(python: Path, environment: dict[str, str], *words: str) -> float:
    """Return the seconds of the processor of one process, the start of Python included."""
    before = os.times()
    subprocess.run([python, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
