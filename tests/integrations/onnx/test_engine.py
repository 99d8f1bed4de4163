"""The two ways to open a session of ONNX Runtime: C library and Python package give the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from benchmarks.models.architectures import SMALL
from sublet.api.compiling import compile
from sublet.api.ranges import compile_ranges
from sublet.base.errors import KernelError, SubletError
from sublet.integrations.onnx.kernels import engine
from tests.runtime.test_onnxruntime import feeds_of, one_node, same_bits

pytest.importorskip("onnxruntime")


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions open through the Python package."""
    monkeypatch.setattr(engine, "c_library", lambda: None)


def test_the_installed_onnx_runtime_has_a_c_library_with_a_pool() -> None:
    found = engine.c_library()
    assert found is not None
    assert found.process == os.getpid()


@pytest.mark.parametrize("name", ["mobilenet_v2", "googlenet"])
def test_both_ways_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compile(SMALL[name]())
    feeds = feeds_of(executable)
    expected = executable(feeds)
    monkeypatch.setattr(engine, "c_library", lambda: None)
    assert same_bits(compile(SMALL[name]())(feeds), expected)


def softmax_of_rows() -> Any:
    return one_node("Softmax", {"x": ("f4", ["rows", 8])}, axis=1)


@pytest.mark.usefixtures("no_library")
def test_the_python_package_serves_ranges() -> None:
    executable = compile_ranges(softmax_of_rows(), {"rows": (1, 64)})
    for rows in (3, 64, 1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        found = executable(x=x)["y0"]
        assert found.shape == (rows, 8)
        assert found.tobytes() == compile(softmax_of_rows(), dims={"rows": rows})(x=x)["y0"].tobytes()


@pytest.mark.parametrize("library", [True, False])
def test_a_failed_kernel_names_its_node(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.setattr(engine, "c_library", lambda: None)
    model = one_node("Gather", {"x": ("f4", [4]), "indices": ("i8", [2])})
    executable = compile(model)
    with pytest.raises(KernelError, match=r"Gather.*idx=9 must be within"):
        executable(x=np.zeros(4, np.float32), indices=np.array([0, 9]))
    good = executable(x=np.arange(4, dtype=np.float32), indices=np.array([3, 0]))["y0"]
    assert good.tolist() == [3, 0]


@pytest.mark.parametrize("why", ["order", "library"])
def test_an_unknown_library_is_left_to_the_python_package(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with another order of nodes would compute something else."""
    if why == "order":
        monkeypatch.setattr(engine, "_runs_last_first", lambda library, shared_pool: False)
    else:
        monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert engine.c_library.__wrapped__() is None


def test_a_file_that_is_no_library_is_passed_over(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime.so.9").write_bytes(b"no library")

    class Package:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(engine, "find_spec", lambda name: Package)
    assert engine.c_library.__wrapped__() is None


THREADS = """
import numpy as np, sublet
from benchmarks.models.architectures import SMALL
def threads():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads"))
counts = []
for name in ("mobilenet_v2", "googlenet", "resnet50"):
    executable = sublet.compile(SMALL[name]())
    feeds = {key: np.ones(value.spec.shape, np.float32) for key, value in executable.inputs.items()}
    executable(feeds)
    counts.append(threads())
print(*counts)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_sessions_share_one_pool_of_threads() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    ran = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, cwd=root, check=True)
    first, *others = map(int, ran.stdout.split())
    assert others == [first] * len(others)


THREADS_OF_A_RUN = """
import numpy as np
from sublet.api.compiling import compile
from tests.integrations.onnx.test_engine import softmax_of_rows
compile(softmax_of_rows(), dims={"rows": 4})(x=np.ones((4, 8), np.float32))
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("Threads")))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_a_variable_sets_the_threads_of_the_pool() -> None:
    def count(threads: int) -> int:
        environment = {**os.environ, "SUBLET_THREADS": str(threads)}
        command = [sys.executable, "-c", THREADS_OF_A_RUN]
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert count(3) - count(1) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_a_function_sets_the_threads_of_the_pool_before_the_first_kernel() -> None:
    def count(threads: int) -> list[str]:
        change = f"sublet.set_threads({threads})\n{{}}\nsublet.set_threads({threads})\n"
        refused = f"try: sublet.set_threads({threads + 1})\nexcept sublet.SubletError as error: print(error)"
        code = f"import sublet\n{change.format(THREADS_OF_A_RUN)}{refused}"
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    (three, refused), (one, _) = count(3), count(1)
    assert int(three) - int(one) == 2
    assert refused == "the pool of this process is open with 3 threads: set 4 before the first model"


@pytest.mark.parametrize("threads", [-1, 5000])
def test_a_number_of_threads_out_of_range_changes_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "c_library", lru_cache(engine.c_library.__wrapped__))  # as if no kernel were open
    monkeypatch.setenv("SUBLET_THREADS", "2")
    with pytest.raises(SubletError, match=f"SUBLET_THREADS={threads}: expected a number of threads"):
        engine.set_threads(threads)
    assert engine.pool_threads() == 2


@pytest.mark.parametrize("text", ["two", "-1", "5000"])
def test_a_variable_without_a_number_of_threads_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_THREADS", text)
    with pytest.raises(SubletError, match=f"SUBLET_THREADS={text}: expected a number of threads"):
        engine.pool_threads()
