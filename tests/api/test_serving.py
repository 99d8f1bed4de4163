"""`examples/serve.py`: a server over one executable, with a session for each client."""

from __future__ import annotations

import io
import random
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path
from threading import Thread
from typing import Any

import numpy as np
import onnx
import pytest

from tests.runtime.test_ranged import DECODER_DIMS, DECODER_STATE, decoder, session_of

ROOT = Path(__file__).resolve().parents[2]


def post(address: str, client: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs for the inputs of a client."""
    content = io.BytesIO()
    np.savez(content, **inputs)
    request = urllib.request.Request(f"{address}/{client}", content.getvalue())
    with urllib.request.urlopen(request, timeout=60) as answer, np.load(io.BytesIO(answer.read())) as found:
        return dict(found)


@pytest.fixture
def address(tmp_path: Path) -> Any:
    """The address of a server of the decoder."""
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    server = run_path(str(ROOT / "examples/serve.py"))["server_of"](
        tmp_path / "decoder.onnx", DECODER_DIMS, DECODER_STATE
    )
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_clients_have_their_own_state(address: str) -> None:
    def talk(client: int) -> bool:
        rng, alone = random.Random(client), session_of(decoder())
        rows = 1 + client % 3
        past, h = np.zeros((rows, 0, 4), np.float32), np.zeros((rows, 1, 4), np.float32)
        for _ in range(5):
            x = np.full((rows, rng.randint(1, 2), 4), rng.random(), np.float32)
            wanted, past, h = alone.run(None, {"x": x, "past": past, "h": h})
            if not np.array_equal(post(address, str(client), {"x": x})["y"], wanted):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(talk, range(6)))


def test_a_wrong_request_is_answered_and_the_server_goes_on(address: str) -> None:
    for inputs in ({"x": np.zeros((9, 1, 4), np.float32)}, {"q": np.zeros(3)}, {"x": np.zeros((1, 1, 4))}):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(address, "a", inputs)
    assert post(address, "a", {"x": np.zeros((1, 1, 4), np.float32)})["y"].shape == (1, 1, 4)
