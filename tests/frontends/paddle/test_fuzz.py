"""Random programs that Paddle makes: rewritten, judged, and run in Paddle. `make fuzz-paddle` does more of them."""

from __future__ import annotations

import pytest

from sublet.errors import MissingExtraError
from sublet.frontends.paddle.running.verify import python

from .fuzz import Tally, batch


def test_what_is_accepted_computes_the_same_bits_in_paddle() -> None:
    try:
        found = python()
    except MissingExtraError as missing:
        pytest.skip(str(missing))
    tally = Tally(arenas=True)
    batch(9000, 12, 4, found, tally)
    assert not tally.wrong
    assert tally.accepted["ours"]
    assert tally.accepted["arena"]
    assert sum(tally.refused.values())
