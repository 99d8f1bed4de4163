"""A warning for DistributedDataParallel under `torch.compile(backend="sublet")` if Dynamo captures no graph.

    torch.compile(DDP(module))   Dynamo begins at the forward of `module`, and skips a forward in PyTorch's own code,
                                 as of nn.Sequential: no graph reaches any backend
    DDP(torch.compile(module))   Dynamo begins at `module` itself

Dynamo calls a backend only with graphs. A missing graph is therefore detected in DistributedDataParallel itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from sublet.api.torch.compile_report import Compiled, add_record
from sublet.base.optional_imports import require
from sublet.frontends.torch.traced_tensor import torch


class CapturedGraphCalls:
    """The number of calls of captured graphs in this process."""

    count = 0


def watch_data_parallel(is_backend: Callable[[Any], bool]) -> None:
    """Make DistributedDataParallel warn if a compiled module ran under Sublet's backend without a captured graph.

    Args:
        is_backend: True for the backend function passed to `torch.compile`.

    No effect before PyTorch is imported, and for a PyTorch without torch.distributed.
    """
    if "torch" not in sys.modules or not torch().distributed.is_available():
        return
    wrapper = torch().nn.parallel.DistributedDataParallel
    inside = wrapper._inside_ddp_forward
    if hasattr(inside, "is_watched"):
        return
    frames = require("torch._dynamo.eval_frame", extra="torch")
    current = torch()._C._dynamo.eval_frame.get_eval_frame_callback
    seen: WeakSet[Any] = WeakSet()

    @torch()._disable_dynamo  # type: ignore[untyped-decorator]
    def judge(parallel: Any, callback: Any) -> None:
        """Warn, once a module, about a run without a captured graph."""
        if parallel in seen or not callable(callback) or frames._stance.stance != "default":
            return
        called = frames.innermost_backend(callback)
        if is_backend(getattr(called, "compiler_fn", called)):
            seen.add(parallel)
            _warn_not_captured(type(parallel.module).__name__)

    @contextmanager
    @torch()._disable_dynamo(recursive=False)  # type: ignore[untyped-decorator]
    def inside_forward(self: Any) -> Iterator[None]:
        before = CapturedGraphCalls.count
        with inside(self):
            yield
        if CapturedGraphCalls.count == before:
            judge(self, current())

    inside_forward.is_watched = True  # type: ignore[attr-defined]
    wrapper._inside_ddp_forward = inside_forward


def _warn_not_captured(module: str) -> None:
    """Warn about a module without a captured graph, and add a record to `report`."""
    reason = (
        f"Dynamo captured no graph of {module}.forward: within DistributedDataParallel Dynamo skips a forward that is "
        "PyTorch's own code or is disabled. Compile the module first: DistributedDataParallel(torch.compile(module, "
        'backend="sublet"))'
    )
    name = f"DistributedDataParallel({module})"
    warnings.warn(f"sublet leaves {name} to PyTorch: {reason}", stacklevel=2)
    add_record(Compiled(name, 0, reason=reason))
