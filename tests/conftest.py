"""What all tests share: cores, interrupts, a heap that is not searched again and again, and a cache of their own."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator

import pytest

# Workers side by side share the cores, and so do the processes they start. Threads of several libraries that wait for
# one another on the same cores took more of their time than all tests. To be told before any of these is imported.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // WORKERS)))

# A shell starts its background jobs with interrupts ignored, and Python leaves it at that: some tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A name that holds an address is another one in every process: it cannot be run again nor given to a worker."""
    named = [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]+", item.nodeid)]
    if named:
        raise pytest.UsageError(f"give these parameters ids: {', '.join(named[:5])}")


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import are there until the end: searching them for cycles took a quarter of the
    time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # what comes later is large, too: PyTorch's compiler, for one


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the user's cache, nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
