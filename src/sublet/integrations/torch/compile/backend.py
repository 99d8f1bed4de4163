"""`torch.compile(module, backend="sublet")`: graphs captured by Dynamo, run and trained in planned arenas."""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from sublet.analysis.options import Options
from sublet.base.errors import CapacityError, ModelError, RunError, SubletError
from sublet.base.formatting import parse_bytes
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.arena_pool import ArenaPool
from sublet.integrations.torch.compile.compile_report import Compiled, add_record, remove_record
from sublet.integrations.torch.compile.device_pool import CUDA, CudaGraphs, DevicePool
from sublet.integrations.torch.compile.inductor_kernels import compile_with_inductor
from sublet.integrations.torch.compile.joint_graph import CapturedProgram, PassValue, capture_program, symbol_extents
from sublet.integrations.torch.compile.joint_partition import partition_joint
from sublet.integrations.torch.compile.loss_rows import LOSSES, merge_losses
from sublet.integrations.torch.compile.micro_batched_inference import MicroBatches, split_in_micro_batches
from sublet.integrations.torch.compile.shared_scratch import ArenaLease, CapturedGraphPool, recomputes
from sublet.integrations.torch.operator_facts import version_remark
from sublet.integrations.torch.reader.exported_program import CPU, device_of, error_summary, silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.reader.tracing_rules import decompositions, keep_operators
from sublet.ir.recipe import LESS

if TYPE_CHECKING:
    from torch import Tensor
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
    from torch.fx import GraphModule
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

# A warning for DistributedDataParallel under `torch.compile(backend="sublet")` if Dynamo captures no graph.
#
#     torch.compile(DDP(module))   Dynamo begins at the forward of `module`, and skips a forward in PyTorch's own code,
#                                  as of nn.Sequential: no graph reaches any backend
#     DDP(torch.compile(module))   Dynamo begins at `module` itself
#
# Dynamo calls a backend only with graphs. A missing graph is therefore detected in DistributedDataParallel itself.


class CapturedGraphCalls:
    """The number of calls of captured graphs in this process."""

    count = 0


def watch_data_parallel(is_backend: Callable[[object], bool]) -> None:
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
    seen: WeakSet[Module] = WeakSet()

    @torch()._disable_dynamo  # type: ignore[untyped-decorator]
    def judge(parallel: DistributedDataParallel, callback: object) -> None:
        """Warn, once a module, about a run without a captured graph."""
        if parallel in seen or not callable(callback) or frames._stance.stance != "default":
            return
        called = callback
        while hasattr(called, "_torchdynamo_orig_backend"):
            called = called._torchdynamo_orig_backend
        if is_backend(getattr(called, "compiler_fn", called)):
            seen.add(parallel)
            _warn_not_captured(type(parallel.module).__name__)

    @contextmanager
    @torch()._disable_dynamo(recursive=False)  # type: ignore[untyped-decorator]
    def inside_forward(self: DistributedDataParallel) -> Iterator[None]:
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


@dataclass(frozen=True)
class PlannedRegion:
    """A planned graph: the pool of arenas, and the micro-batches; None to compute all samples at once."""

    pool: CapturedGraphPool
    micro_batches: MicroBatches | None = None

    def run_inference(self, args: Sequence[PassValue]) -> Sequence[PassValue]:
        """Run an inference and return the results."""
        flight = self.pool.lease(args)
        try:
            run = partial(flight.run_pass, 0)
            return run(args) if self.micro_batches is None else self.micro_batches.run_all(run, args)
        finally:
            flight.release()


MAX_PLANS = 32
"""Maximum number of plans kept for a graph with changing extents. The plan unused for longest is dropped."""

OPTIONS = ("alignment", "budget", "graphs", "kernels", "losses", "order", "samples", "strategy")
KERNELS = ("sublet", "inductor")
INDUCTOR_OPTIONS = {"budget", "losses"}
"""The options for Inductor's kernels."""
SAMPLES = ("auto", "all")
DEFAULT_OPTIONS = Options(alignment=64, order=LESS)
"""The default planning options of graphs."""


def backend(
    module: GraphModule, example: Sequence[object], options: Mapping[str, Any] | None = None
) -> Callable[..., object]:
    """Return the callable for a graph of Dynamo; the function behind `torch.compile(backend="sublet", options=...)`.

    Forward and backward become one plan in one arena, on the device of the tensors. A graph without a possible plan is
    left to PyTorch, with one warning; see `report`.

    Args:
        module: the FX graph module captured by Dynamo.
        example: example arguments.
        options: a dictionary with any of the following keys:

            "budget"     the most bytes of an arena, a number or a text such as "64MiB"; the backward pass recomputes
                         values if necessary, and then cannot run twice (`retain_graph=True`)
            "order"      "less" (default): search for an execution order with less memory; "given": the traced order
            "alignment"  see `Options`
            "strategy"   see `Options`
            "kernels"    "sublet": the kernels of Sublet and PyTorch, in an arena; "inductor": Sublet decides which
                         tensors are saved and which are computed again, Inductor generates the kernels. Default:
                         "inductor" on CUDA if Triton is installed and no option but "budget" and "losses" is given,
                         else "sublet"
            "losses"     a large cross entropy over a vocabulary: "rows": in groups of rows; "whole": at once; "auto"
                         (default): in groups of rows, but whole in bf16 on a GPU. Sublet's kernels compute groups
                         of f32 on the CPU alone
            "samples"    samples of an inference computed at a time: a number; "all"; or "auto" (default): on the CPU,
                         few enough samples to keep tensors small, if the graph computes sample by sample
            "graphs"     True captures CUDA graphs of the calls between two decisions of Python; only on CUDA

    Returns:
        A callable with the arguments and results of `module`.

    Raises:
        SubletError: for an unknown option, an option without meaning on the device, and without a known plan within
                the budget.
    """
    watch_data_parallel(_is_backend)
    asked = {"kernels": _default_kernels(example, options or {}), **(options or {})}
    unknown = [name for name in asked if name not in OPTIONS]
    if unknown:
        raise SubletError(f"options={{{unknown[0]!r}: ...}}: there are {', '.join(OPTIONS)}")
    budget, samples = _budget_bytes(asked.pop("budget", None)), asked.pop("samples", "auto")
    if samples not in SAMPLES and not (type(samples) is int and samples > 0):
        raise SubletError(f"samples={samples!r}: there are {', '.join(map(repr, SAMPLES))} and numbers from 1 on")
    graphs = bool(asked.pop("graphs", False))
    kernels = asked.pop("kernels")
    if kernels not in KERNELS:
        raise SubletError(f"options={{'kernels': {kernels!r}}}: there are {' and '.join(map(repr, KERNELS))}")
    losses = asked.pop("losses", "auto")
    if losses not in LOSSES:
        raise SubletError(f"options={{'losses': {losses!r}}}: there are {', '.join(map(repr, LOSSES))}")
    if kernels == "inductor":
        others = sorted({*(options or {})} - {"kernels"} - INDUCTOR_OPTIONS)
        if others:
            raise SubletError(
                f"options={{'kernels': 'inductor', {others[0]!r}: ...}}: Inductor's kernels take only 'budget' and "
                f"'losses'. Drop {others[0]!r}, or drop 'kernels'"
            )
        return _count_calls(compile_with_inductor(module, example, budget, losses))
    pair = CompiledRegion(replace(DEFAULT_OPTIONS, **asked), budget, graphs, samples)
    return compile_region(pair, module, example, losses)


def _default_kernels(example: Sequence[object], options: Collection[str]) -> str:
    """Return the value of the option "kernels" for a graph of Dynamo with other `options`."""
    on_cuda = any(getattr(getattr(each, "device", None), "type", "") == CUDA for each in example)
    if not on_cuda or {*options} - INDUCTOR_OPTIONS:
        return KERNELS[0]
    triton = require("torch.utils._triton", extra="torch")
    return KERNELS[1] if triton.has_triton() else KERNELS[0]


def _budget_bytes(asked: object) -> int | None:
    """Return a budget in bytes, or None. Raises SubletError for a value with no meaning as bytes."""
    if isinstance(asked, str):
        return parse_bytes(asked)
    if asked is not None and (type(asked) is not int or asked < 0):
        raise SubletError(f"options={{'budget': {asked!r}}}: expected a number of bytes, such as 67108864 or '64MiB'")
    return asked


def compile_region(
    pair: CompiledRegion, module: GraphModule, example: Sequence[object], losses: str = LOSSES[0]
) -> Callable[..., object]:
    """Return the callable for a graph of Dynamo, with `pair` to run the forward and backward graphs.

    Large losses over a vocabulary are computed in groups of rows; `losses` is one of `LOSSES`.
    """
    common = require("torch._dynamo.backends.common", extra="torch")
    config = require("torch._functorch.config", extra="torch")
    compiled: Callable[..., object]
    messages: list[str] = []
    merge_losses(module, losses, planned=True)
    with config.patch(force_non_lazy_backward_lowering=True), silence_tracing(), keep_operators():
        compiled = common.aot_autograd(
            fw_compiler=pair.compile_forward,
            bw_compiler=pair.compile_backward,
            inference_compiler=pair.compile_inference,
            partition_fn=partial(partition_joint, warn=messages.append),
            decompositions=decompositions(),
        )(module, example)
    for words in messages:
        warnings.warn(words, stacklevel=2)
    return compiled


class CompiledRegion:
    """A compiled region: a forward graph, and the matching backward graph if any. The first call plans the region."""

    def __init__(self, options: Options, budget: int | None, graphs: bool = False, samples: int | str = "auto") -> None:
        self._options, self._budget, self._uses_cuda_graphs, self._samples = options, budget, graphs, samples
        self._modules: list[GraphModule] = []
        self._static_positions: Collection[int] = ()
        self._is_inference = False
        self._plans: OrderedDict[tuple[int, ...], tuple[PlannedRegion | None, Compiled]] = OrderedDict()
        self._leases: WeakValueDictionary[int, ArenaLease] = WeakValueDictionary()  # by id: a set safe in threads

    def compile_inference(self, graph: GraphModule, example: Sequence[object]) -> Callable[..., object]:
        """Return the callable of a forward graph without a backward graph."""
        self._modules, self._static_positions, self._is_inference = [graph], _static_arguments(), True
        return _boxed_callable(self._run_inference)

    def compile_forward(self, graph: GraphModule, example: Sequence[object]) -> Callable[..., object]:
        """Return the callable of a forward graph with a backward graph still to come."""
        self._modules = [graph]
        self._static_positions = _static_arguments() - (frozenset() if self._budget is None else _mutated_arguments())
        return _boxed_callable(self._run_forward)

    def compile_backward(self, graph: GraphModule, example: Sequence[object]) -> Callable[..., object]:
        """Return the callable of the backward graph. With both graphs known, the region can be planned."""
        self._modules.append(graph)
        metadata = _aot_metadata()
        if metadata is not None:
            metadata.bw_donated_idxs = []  # the backward may run again: overwrite no saved tensor
        return _boxed_callable(self._run_backward)

    @property
    def _recomputes(self) -> bool:
        """True if the backward pass of a plan recomputes values."""
        return any(planned is not None and recomputes(planned.pool.plan) for planned, _ in self._plans.values())

    @property
    def _pass_names(self) -> str:
        """ "forward", or "forward and backward"."""
        return " and ".join(("forward", "backward")[: len(self._modules)])

    def _plan_for(self, args: Sequence[PassValue]) -> PlannedRegion | None:
        """Return the plan for arguments of the given extents; None if the region is left to PyTorch.

        The region keeps the `MAX_PLANS` plans used last.
        """
        key = tuple(each for each in args if isinstance(each, int))
        if key not in self._plans:
            self._plans[key] = self._make_plan(args)
            self._keep_record(self._plans[key][1])
            if len(self._plans) > MAX_PLANS:
                remove_record(self._plans.popitem(last=False)[1][1])
        self._plans.move_to_end(key)
        return self._plans[key][0]

    def _keep_record(self, compiled: Compiled) -> None:
        """Add a record to `report`, kept as long as the plan."""
        add_record(compiled)

    def _make_plan(self, args: Sequence[PassValue]) -> tuple[PlannedRegion | None, Compiled]:
        """Return a new plan for arguments of the given extents, None if the region is left to PyTorch, and the record.

        Raises SubletError for a plan above the budget, and for CUDA graphs on another device.
        """
        try:
            device = device_of(*self._modules)
            captured, parts, whole = self._capture(args, device, device)
            pool = self._make_pool(captured, args, device)
        except CapacityError as error:
            raise SubletError(f"{self._pass_names}: {error}") from None
        except SubletError as error:
            return None, self._leave_to_torch(str(error))
        except Exception as error:  # an error in Sublet must not stop the program
            return None, self._leave_to_torch(error_summary(error))
        if self._uses_cuda_graphs and not device.startswith(CUDA):
            raise SubletError(
                f"options={{'graphs': True}}: there are graphs on CUDA, and these tensors are on {device}"
            )
        name = self._pass_names if device == CPU else f"{self._pass_names} on {device}"
        count = 1 if parts is None else parts.count
        remark = version_remark(torch().__version__)
        record = Compiled(name, len(pool.plan.nodes), pool.allocations, pool.plan, "", count, whole, remark)
        return PlannedRegion(pool, parts), record

    def _capture(
        self, args: Sequence[PassValue], device: str, runs_on: str
    ) -> tuple[CapturedProgram, MicroBatches | None, str]:
        """Return the captured program, the micro-batches or None, and the reason against micro-batches if tried."""
        whole, forward = "", self._modules[0]
        backward = self._modules[1] if len(self._modules) > 1 else None
        extents = symbol_extents(forward, args)
        at_once = self._samples if isinstance(self._samples, int) else None
        if self._is_inference and (at_once is not None or (self._samples == "auto" and runs_on == CPU)):
            try:
                parts = split_in_micro_batches(forward, self._static_positions, at_once, extents)
                if parts is not None:
                    captured = capture_program(parts.smaller.module, None, self._static_positions, {}, device, runs_on)
                    if all(result.shared_with is None for result in captured.passes[0].results):
                        return captured, parts, ""
                    whole = "results that are elements of each other"
            except ModelError as error:
                whole = str(error)
        return capture_program(forward, backward, self._static_positions, extents, device, runs_on), None, whole

    def _make_pool(self, captured: CapturedProgram, args: Sequence[PassValue], device: str) -> CapturedGraphPool:
        """Return the pool of arenas on `device`."""
        if device == CPU:
            return ArenaPool(captured, args, self._options, self._budget)
        recorder = CudaGraphs if self._uses_cuda_graphs else None
        return DevicePool(captured, self._options, device, recorder, budget=self._budget)

    def _leave_to_torch(self, reason: str) -> Compiled:
        """Warn about a region left to PyTorch, and return the record."""
        warnings.warn(f"sublet leaves a graph to PyTorch: {reason}", stacklevel=2)
        nodes = sum(node.op == "call_function" for module in self._modules for node in module.graph.nodes)
        return Compiled(self._pass_names, nodes, reason=reason)

    def _run_inference(self, *args: PassValue) -> Sequence[PassValue]:
        """Run the inference in the arena, or by PyTorch if unplanned."""
        planned = self._plan_for(args)
        return self._modules[0](*args) if planned is None else planned.run_inference(args)

    def _run_forward(self, *args: PassValue) -> Sequence[PassValue]:
        """Run the forward pass, and return results with saved tensors in the leased arena."""
        planned = self._plan_for(args)
        if planned is None:
            return self._modules[0](*args)  # type: ignore[no-any-return]
        pool = planned.pool
        read_again = _with_versions([args[i] for i in pool.captured.weights]) if recomputes(pool.plan) else ()
        flight = pool.lease(args)
        flight.read_again = read_again
        try:
            results = flight.run_pass(0, args)
        except BaseException:
            flight.release()
            raise
        for position, tensor in flight.take_saved(pool.captured).items():
            results[position] = tensor
        self._leases[id(flight)] = flight
        return results

    def _run_backward(self, *args: PassValue) -> Sequence[PassValue]:
        """Run the backward pass in the arena leased by the forward pass, then release the arena.

        PyTorch runs the backward graph if the graph is retained: a second backward pass must find the saved tensors
        unchanged.
        """
        flight = self._lease_of(args)
        again = torch()._C._autograd._get_current_graph_task_keep_graph()
        if flight is None and self._recomputes:
            raise RunError(
                "the backward pass of a region compiled with a budget recomputes values in the arena of the forward "
                "pass: expected the saved tensors of the arena, found copies. Drop saved_tensors_hooks, or raise the "
                "budget"
            )
        if flight is not None and again and flight.recomputes:
            raise RunError(
                "the backward pass of a region compiled with a budget recomputes values, and can run only once: "
                "drop retain_graph=True, or raise the budget"
            )
        if flight is None or again:  # a second backward must find the saved tensors unchanged
            with nullcontext() if flight is None else flight.arena.exclusive_scratch:
                return self._modules[1](*args)  # type: ignore[no-any-return]
        if any(tensor._version != version for tensor, version in flight.read_again):
            raise RunError(
                "a parameter or buffer was changed between the forward and the backward pass. A region compiled with a "
                "budget reads the content again to recompute values: run the backward pass first, or raise the budget"
            )
        results = flight.run_pass(1, args)
        flight.release()
        return results

    def _lease_of(self, args: Sequence[PassValue]) -> ArenaLease | None:
        """Return the lease of the forward call with saved tensors in `args`; None if no lease is left."""
        found = [reference() for reference in self._leases.valuerefs()]
        alive = [lease for lease in found if lease is not None and lease.release.alive]
        tensors = (each for each in reversed(args) if hasattr(each, "data_ptr"))
        places = ((lease, each.data_ptr()) for each in tensors for lease in alive)
        return next((lease for lease, address in places if address in lease.saved_addresses), None)


def _with_versions(weights: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Return each weight with its version. Raises RunError for an inference tensor: PyTorch counts no changes of it."""
    if any(weight.is_inference() for weight in weights):
        raise RunError(
            "a parameter or buffer is an inference tensor. A region compiled with a budget reads the content again in "
            "the backward pass, and PyTorch counts no changes of inference tensors: clone the tensor outside of "
            "torch.inference_mode, or raise the budget"
        )
    return [(weight, weight._version) for weight in weights]


def _mutated_arguments() -> frozenset[int]:
    """Return the positions of arguments mutated by the forward pass: a recomputation must not read the new content."""
    metadata = _aot_metadata()
    return frozenset(metadata.mutated_inp_runtime_indices or ()) if metadata is not None else frozenset()


def _static_arguments() -> frozenset[int]:
    """Return the positions of arguments at fixed addresses from call to call, such as parameters."""
    metadata = _aot_metadata()
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def _aot_metadata() -> ViewAndMutationMeta | None:
    """Return AOTAutograd's metadata of the graph being compiled, or None."""
    context = torch()._guards.TracingContext.try_get()
    metadata: ViewAndMutationMeta | None = context.fw_metadata if context is not None else None
    return metadata


def _boxed_callable(function: Callable[..., Sequence[PassValue]]) -> Callable[..., object]:
    """Return a function with AOTAutograd's boxed convention: the function empties the list of arguments.

    The caller's references end before the call, so arguments can be freed early.
    """

    def call(args: list[PassValue]) -> Sequence[PassValue]:
        CapturedGraphCalls.count += 1
        given = tuple(args)
        args.clear()
        return function(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _count_calls(compiled: Callable[..., object]) -> Callable[..., object]:
    """Return a callable that counts the calls of a captured graph."""

    @wraps(compiled)
    def call(*args: PassValue) -> object:
        CapturedGraphCalls.count += 1
        return compiled(*args)

    return call


def _is_backend(called: object) -> bool:
    """True for the function called by `torch.compile` with graphs for Sublet."""
    return called is backend


watch_data_parallel(_is_backend)  # torch.compile(backend="sublet") imports this module before the first graph
