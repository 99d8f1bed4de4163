"""What all tests share: a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the user's cache, nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
