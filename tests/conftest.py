"""What all tests share: a cache of their own, interrupts, and a heap that is not searched again and again."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Iterator

import pytest

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
