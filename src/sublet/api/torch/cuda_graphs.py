"""The use of `torch.cuda`: recorded and replayed CUDA graphs, and the order of streams sharing an arena.

Tested on a GPU by `make gpu`, see docs/torch.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sublet.base.errors import RunError
from sublet.frontends.torch.traced_tensor import torch
from sublet.runtime.kernel import Call

CUDA = "cuda"


class CudaGraphs:
    """Records calls as CUDA graphs.

    All graphs share one memory pool for tensors allocated by operators. The graphs run one after another and keep no
    data in the pool from one graph to the next.
    """

    def __init__(self, device: str) -> None:
        self._device = torch().device(device)
        self._stream = self._pool = None

    def record(self, call: Call) -> Call:
        """Capture a call as a CUDA graph, replay the graph once, and return the replay: a capture runs no kernel.

        Raises RunError for a call without a possible capture.
        """
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


class StreamOrder:
    """Orders the calls in an arena. Each call runs on the stream current at the start of the call."""

    def __init__(self) -> None:
        self._last: Any = None

    def wait_for_previous(self, device: str, tensors: Iterable[Any]) -> None:
        """Let the current stream wait for all work of the previous stream in the arena.

        `tensors` are recorded on the current stream: PyTorch's allocator must not reuse their memory before the stream
        is done. No effect on devices other than CUDA.
        """
        if not device.startswith(CUDA):
            return
        now = torch().cuda.current_stream(device)
        if self._last is not None and now != self._last:
            now.wait_stream(self._last)
            for each in tensors:
                each.record_stream(now)
        self._last = now
