"""The request behind `sublet.compile`: one record with the arguments, received by every step to the executable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from sublet.passes.trip_counts import Trips
from sublet.plan import MemoryPlan
from sublet.runtime.backends.registry import AUTO
from sublet.runtime.kernel import Array, Backend
from sublet.runtime.tuning import WORKSPACE_BYTES

if TYPE_CHECKING:  # who runs a plan loads no planner
    from sublet.analysis.options import Options, Progress


@dataclass(frozen=True)
class CompileRequest:
    """The arguments of `sublet.compile`, which defines each of them."""

    model: Any
    _: KW_ONLY
    dims: Mapping[str, int] | None = None
    const: Mapping[str, Any] | None = None
    state: Mapping[str, str] | None = None
    max_trips: Trips = None
    backend: str | Backend | Sequence[str | Backend] = AUTO
    optimize: str = AUTO
    assume: Mapping[str, str] | None = None
    options: Options | None = None
    plan: MemoryPlan | None = None
    arena: Any = None
    weights: Mapping[str, Array] | None = None
    autotune: bool = False
    workspace: int = WORKSPACE_BYTES
    simplify: bool | None = None
    patches: str | None = None
    budget: int | str | None = None
    measure: bool = False
    progress: Progress | None = None
