"""All that is asked of `torch.cuda`: graphs that replay what was recorded, and streams that wait for one another.

Written by its documentation, and never run: there was no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sublet.base.errors import RunError
from sublet.frontends.torch.tensors import torch
from sublet.runtime.kernel import Call

CUDA = "cuda"


class CudaGraphs:
    """Records calls as CUDA graphs. What operators allocate meanwhile lies in one pool, which the graphs share: they
    run one after another, and keep nothing there from one to the next."""

    def __init__(self, device: str) -> None:
        self._device = torch().device(device)
        self._stream = self._pool = None

    def record(self, call: Call) -> Call:
        """Capturing runs nothing, the replay after it does. Raises RunError for what cannot be captured."""
        cuda = torch().cuda
        with torch().inference_mode(False), torch().no_grad(), cuda.device(self._device):
            self._stream = self._stream or cuda.Stream()
            self._pool = self._pool or cuda.graph_pool_handle()
            graph = cuda.CUDAGraph()
            try:
                with cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    call()
            except RuntimeError as error:
                words = str(error).splitlines()[0]
                raise RunError(f"cannot be captured as a CUDA graph: {words}: leave options['graphs'] out") from error
        replay: Call = graph.replay
        replay()
        return replay


class Turns:
    """An arena is used by one call after another, each on the stream that is current when it comes."""

    def __init__(self) -> None:
        self._last: Any = None

    def take(self, device: str, tensors: Iterable[Any]) -> None:
        """What this stream does from now on waits for what the one before has been told to do with the arena; its
        `tensors` are not given back before this stream has used them."""
        if not device.startswith(CUDA):
            return
        now = torch().cuda.current_stream(device)
        if self._last is not None and now != self._last:
            now.wait_stream(self._last)
            for each in tensors:
                each.record_stream(now)
        self._last = now
