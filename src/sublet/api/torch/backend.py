"""`torch.compile(module, backend="sublet")`: graphs that Dynamo captures, run and trained in planned arenas."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from sublet.analysis.options import Options
from sublet.api.torch.captured import Captured, capture, extents_of
from sublet.api.torch.cuda import CUDA, CudaGraphs
from sublet.api.torch.flights import Flight, Pool
from sublet.api.torch.on_device import DevicePool
from sublet.api.torch.partition import partition
from sublet.api.torch.parts import Parts, in_parts
from sublet.api.torch.reporting import Compiled, note
from sublet.base.bytesize import parse_bytes
from sublet.base.errors import ModelError, SubletError
from sublet.base.extras import require
from sublet.frontends.torch.devices import CPU, device_of
from sublet.frontends.torch.exported import first_line, quietly
from sublet.frontends.torch.tensors import torch
from sublet.ir.recipe import LESS

Pools = Pool | DevicePool


@dataclass(frozen=True)
class Planned:
    """The arenas of a graph, and how it is run several times, each for some of the samples; None to run it once."""

    pool: Pools
    parts: Parts | None = None

    def once(self, args: Sequence[Any]) -> Sequence[Any]:
        """Run what has no backward: what it gives."""
        flight = self.pool.take(args)
        try:
            run = partial(self.pool.run, flight.arena, 0)
            return run(args) if self.parts is None else self.parts.run(run, args)
        finally:
            flight.land()


MOST_SHAPES = 32
"""So many plans are kept of a graph whose extents change."""

OPTIONS = ("alignment", "budget", "graphs", "order", "samples", "strategy")
SAMPLES = ("auto", "all")
PLANNED = Options(alignment=64, order=LESS)
"""What graphs are planned with unless asked otherwise."""


def backend(module: Any, example: Sequence[Any], options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """What `torch.compile(backend="sublet", options=...)` calls with a graph of Dynamo's and example arguments.

    options   "budget": bytes of an arena that no plan may need more than, a number or "64MiB"; "alignment", "order"
              and "strategy": see `Options`; operators run in an order of less memory unless "order" is "given";
              "samples": how many an inference computes at a time, "all" or by default on the CPU as many as keep
              tensors small ("auto"), where it computes sample by sample; "graphs": on CUDA, whether what runs without
              a decision in between is captured as CUDA graphs
    Forward and backward are one plan in one arena, on the device that the tensors lie on; CUDA's is untested. What
    cannot be planned is left to PyTorch, with one warning; see `report`. Raises SubletError for an option that it does
    not know or that there is not on the device, and for a plan above the budget.
    """
    asked = dict(options or {})
    unknown = [name for name in asked if name not in OPTIONS]
    if unknown:
        raise SubletError(f"options={{{unknown[0]!r}: ...}}: there are {', '.join(OPTIONS)}")
    budget, samples = _budget(asked.pop("budget", None)), asked.pop("samples", "auto")
    if samples not in SAMPLES and not (type(samples) is int and samples > 0):
        raise SubletError(f"samples={samples!r}: there are {', '.join(map(repr, SAMPLES))} and numbers from 1 on")
    graphs = bool(asked.pop("graphs", False))
    pair = Pair(replace(PLANNED, **asked), budget, graphs, samples)
    return compiled_by(pair, module, example)


def _budget(asked: Any) -> int | None:
    """Return a budget in bytes. Raises SubletError for what is no number of bytes."""
    if isinstance(asked, str):
        return parse_bytes(asked)
    if asked is not None and (type(asked) is not int or asked < 0):
        raise SubletError(f"options={{'budget': {asked!r}}}: expected a number of bytes, such as 67108864 or '64MiB'")
    return asked


def compiled_by(pair: Pair, module: Any, example: Sequence[Any]) -> Callable[..., Any]:
    """A graph of Dynamo's, whose forward and backward the pair runs."""
    common = require("torch._dynamo.backends.common", extra="torch")
    config = require("torch._functorch.config", extra="torch")
    compiled: Callable[..., Any]
    with config.patch(force_non_lazy_backward_lowering=True), quietly():
        compiled = common.aot_autograd(
            fw_compiler=pair.forward,
            bw_compiler=pair.backward,
            inference_compiler=pair.inference,
            partition_fn=partition,
        )(module, example)
    return compiled


class Pair:
    """The graphs of one region: a forward, and the backward that goes with it. They are planned at the first call."""

    def __init__(self, options: Options, budget: int | None, graphs: bool = False, samples: int | str = "auto") -> None:
        self._options, self._budget, self._recorded, self._samples = options, budget, graphs, samples
        self._modules: list[Any] = []
        self._static: Collection[int] = ()
        self._once = False
        self._pools: OrderedDict[tuple[int, ...], Planned | None] = OrderedDict()
        self._flights: WeakValueDictionary[int, Flight] = WeakValueDictionary()

    def inference(self, graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
        """A forward without a backward."""
        self._modules, self._static, self._once = [graph], _static(), True
        return _boxed(self._run_once)

    def forward(self, graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
        """A forward whose backward is not known yet."""
        self._modules, self._static = [graph], _static()
        return _boxed(self._run_forward)

    def backward(self, graph: Any, example: Sequence[Any]) -> Callable[..., Any]:
        """The backward: now both are known."""
        self._modules.append(graph)
        metadata = _metadata()
        if metadata is not None:
            metadata.bw_donated_idxs = []  # nothing is written over before the last backward: it may be run once more
        return _boxed(self._run_backward)

    @property
    def _name(self) -> str:
        return " and ".join(("forward", "backward")[: len(self._modules)])

    def _planned(self, args: Sequence[Any]) -> Planned | None:
        """The arenas for arguments of these shapes; None when all is left to PyTorch."""
        key = tuple(each for each in args if isinstance(each, int))
        if key not in self._pools:
            self._pools[key] = self._made(args)
            if len(self._pools) > MOST_SHAPES:
                self._pools.popitem(last=False)
        self._pools.move_to_end(key)
        return self._pools[key]

    def _made(self, args: Sequence[Any]) -> Planned | None:
        try:
            device = device_of(*self._modules)
            captured, parts, whole = self._captured(args, device, device)
            pool = self._pool(captured, args, device)
        except SubletError as error:
            self._leave(str(error))
            return None
        except Exception as error:  # a mistake of ours must not stop a program that PyTorch runs
            self._leave(first_line(error))
            return None
        if self._recorded and not device.startswith(CUDA):
            raise SubletError(
                f"options={{'graphs': True}}: there are graphs on CUDA, and these tensors are on {device}"
            )
        if self._budget is not None and pool.plan.arena_bytes > self._budget:
            needs = f"{pool.plan.arena_bytes:,} bytes of an arena"
            raise SubletError(f"{self._name} needs {needs}, and the budget is {self._budget:,}")
        name = self._name if device == CPU else f"{self._name} on {device}"
        count = 1 if parts is None else parts.count
        note(Compiled(name, len(pool.plan.nodes), pool.copied, pool.plan, parts=count, whole=whole))
        return Planned(pool, parts)

    def _captured(self, args: Sequence[Any], device: str, runs_on: str) -> tuple[Captured, Parts | None, str]:
        """The program, and how it is one for a few samples at a time; if it is not, why, where that was tried."""
        whole, (forward, backward) = "", [*self._modules, None][:2]
        extents = extents_of(forward, args)
        at_once = self._samples if isinstance(self._samples, int) else None
        if self._once and (at_once is not None or (self._samples == "auto" and runs_on == CPU)):
            try:
                parts = in_parts(forward, self._static, at_once, extents)
                if parts is not None:
                    captured = capture(parts.fewer.module, None, self._static, {}, device, runs_on)
                    if all(result.shared is None for result in captured.pieces[0].results):
                        return captured, parts, ""
                    whole = "results that are elements of each other"
            except ModelError as error:
                whole = str(error)
        return capture(forward, backward, self._static, extents, device, runs_on), None, whole

    def _pool(self, captured: Captured, args: Sequence[Any], device: str) -> Pools:
        """Arenas on the device that all tensors lie on."""
        if device == CPU:
            apart = self._budget is None  # what is kept and what is shared are together no less than one arena
            return Pool(captured, args, self._options, shares=apart)
        recorder = CudaGraphs if self._recorded else None
        return DevicePool(captured, self._options, device, recorder)

    def _leave(self, reason: str) -> None:
        """Leave the graphs to PyTorch."""
        warnings.warn(f"sublet leaves a graph to PyTorch: {reason}", stacklevel=2)
        nodes = sum(node.op == "call_function" for module in self._modules for node in module.graph.nodes)
        note(Compiled(self._name, nodes, reason=reason))

    def _run_once(self, *args: Any) -> Sequence[Any]:
        planned = self._planned(args)
        return self._modules[0](*args) if planned is None else planned.once(args)

    def _run_forward(self, *args: Any) -> Sequence[Any]:
        planned = self._planned(args)
        if planned is None:
            return self._modules[0](*args)  # type: ignore[no-any-return]
        pool = planned.pool
        flight = pool.take(args)
        try:
            found = pool.run(flight.arena, 0, args)
        except BaseException:
            flight.land()
            raise
        for position, tensor in pool.kept(flight):
            found[position] = tensor
            if tensor.numel():
                self._flights[tensor.data_ptr()] = flight
        return found

    def _run_backward(self, *args: Any) -> Sequence[Any]:
        flight = self._flight(args)
        again = torch()._C._autograd._get_current_graph_task_keep_graph()
        if flight is None or again:  # who may come back for what is kept must find it as it is
            return self._modules[1](*args)  # type: ignore[no-any-return]
        found: Sequence[Any] = flight.pool.run(flight.arena, 1, args)
        flight.land()
        return found

    def _flight(self, args: Sequence[Any]) -> Flight | None:
        """The call that these arguments were kept by, if it is under way still."""
        tensors = (each for each in args if hasattr(each, "data_ptr") and each.numel())
        found = next(filter(None, (self._flights.get(each.data_ptr()) for each in tensors)), None)
        return found if found is not None and found.land.alive else None


def _static() -> Collection[int]:
    """The arguments that stay where they are from call to call, as parameters do, by position."""
    metadata = _metadata()
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def _metadata() -> Any:
    """What AOTAutograd knows of the graph that it compiles now."""
    context = torch()._guards.TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd gives arguments in a list, which is emptied so that they can be freed."""

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return function(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
