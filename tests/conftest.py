"""What all tests share: a cache of their own, and interrupts."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

# A shell starts its background jobs with interrupts ignored, and Python leaves it at that: some tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the user's cache, nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
