"""Memory of an eager training step or inference, from a run on fake tensors: no tensor gets bytes.

PyTorch's autograd engine and the optimizer run as in the real step, so tensors die in the real order. A dispatch mode
notes the birth and the death of every storage.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.base.errors import ModelError, SubletError
from sublet.base.optional_imports import require
from sublet.integrations.torch.kernel_effects import (
    PRODUCTS,
    KnownContents,
    cublas_workspace_bytes,
    with_kept_workspace,
    workspace_bytes,
)
from sublet.integrations.torch.reader.exported_program import error_summary, preserve_attributes, silence_tracing
from sublet.integrations.torch.reader.traced_tensor import torch

PARAMETERS, BUFFERS, STATE, ARGUMENTS = "parameters", "buffers", "optimizer state", "arguments"
RESIDENT = (PARAMETERS, BUFFERS, STATE, ARGUMENTS)
"""The kinds of tensors alive before and after a step."""

GRADIENTS, FORWARD, BACKWARD, OPTIMIZER = "gradients", "forward", "backward", "optimizer"
WORKSPACE = "workspace of a kernel"
CUDA_BLOCK_BYTES = 512
"""PyTorch's allocator of CUDA memory rounds the bytes of a tensor up to a multiple of this number."""

CUBLAS = "workspaces of cuBLAS"
"""Bytes kept by the thread of the forward pass, and by the thread of the backward pass."""

DISPATCH_WRAPPERS = ("_fn", "inner")
"""Functions of PyTorch between an operator and a dispatch mode."""


@dataclass(eq=False)
class _Block:
    """A storage of a run: bytes, points in time of birth and death, and the place of the birth."""

    nbytes: int
    born: int
    kind: str
    operator: str = ""
    module: str = ""
    line: str = ""
    died: int | None = None


@dataclass(frozen=True)
class LiveTensors:
    """Tensors alive at the peak, of one kind and from one line of a module.

    kind      "parameters", "buffers", "optimizer state", "arguments", "gradients"; for other tensors the phase of the
              birth: "forward", "backward", "optimizer"; or "workspace of a kernel"
    module    path of the module that computed the tensors, or whose backward pass did; "" outside of modules
    operator  the operator with the most bytes of them
    line      "file.py:line" of the module's code
    """

    kind: str
    module: str
    operator: str
    line: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class EagerMemory:
    """Bytes of an eager step.

    peak_bytes       the most bytes alive at once, parameters and all else included
    phase            the phase of the peak: "forward", "backward" or "optimizer"
    resident         bytes by kind of the tensors alive before and after the step, see `RESIDENT`
    gradients        bytes of all gradients
    results          bytes of the results of the call
    optimizer_bytes  the most bytes that the optimizer's update allocates at once
    live             the tensors alive at the peak, largest first
    """

    peak_bytes: int
    phase: str
    resident: Mapping[str, int]
    gradients: int
    results: int
    optimizer_bytes: int
    live: tuple[LiveTensors, ...]

    @property
    def resident_bytes(self) -> int:
        """The bytes alive before and after the step."""
        return sum(self.resident.values())


@dataclass(frozen=True)
class StepCall:
    """A training step to estimate, or an inference without `loss`; all tensors are fake.

    arguments  the arguments of the module
    targets    further arguments of the loss
    optimizer  a copy of the optimizer with fake parameters, or None
    autocast   makes the context of forward pass and loss
    """

    mode: Any
    module: Any
    loss: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    targets: tuple[Any, ...]
    optimizer: Any
    autocast: Callable[[], AbstractContextManager[Any]]

    def forward(self) -> Any:
        """Return the result of the module, or of the loss."""
        with self.autocast():
            result = self.module(*self.arguments)
            return result if self.loss is None else self.loss(result, *self.targets)


@contextmanager
def fake_call(
    module: Any,
    loss: Callable[..., Any] | None,
    optimizer: Any,
    arguments: tuple[Any, ...],
    targets: tuple[Any, ...],
    device: str,
    amp: Any = None,
) -> Iterator[StepCall]:
    """Provide a call on fake tensors of `device`, as a context manager; the module has fake weights inside.

    Raises ModelError for a step impossible to run on fake tensors.
    """
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")
    mode = require("torch._subclasses.fake_tensor", extra="torch").FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, Any] = {}
    originals = []  # keeps the ids of `fakes` in use

    def fake(tensor: Any) -> Any:
        if not isinstance(tensor, t.Tensor):
            return tensor
        if id(tensor) not in fakes:
            originals.append(tensor)
            with mode:
                made = t.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            is_parameter = isinstance(tensor, t.nn.Parameter)
            fakes[id(tensor)] = t.nn.Parameter(made, tensor.requires_grad) if is_parameter else made
        return fakes[id(tensor)]

    try:
        with preserve_attributes(module, loss) as modules, silence_tracing(), t.random.fork_rng(devices=[]):
            for table in (table for each in modules for table in (each._parameters, each._buffers)):
                table.update({name: fake(tensor) for name, tensor in table.items()})
            copied = None if optimizer is None else _with_tensors(optimizer, fake)
            autocast = nullcontext if amp is None else lambda: t.autocast(t.device(device).type, amp)
            given, wanted = pytree.tree_map(fake, (tuple(arguments), tuple(targets)))
            yield StepCall(mode, module, loss, given, wanted, copied, autocast)
    except SubletError:
        raise
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"the step cannot run on tensors without content: {error_summary(error)}") from error


def _with_tensors(optimizer: Any, fake: Callable[[Any], Any]) -> Any:
    """Return a copy of an optimizer with fake parameters and fake state."""
    pytree = require("torch.utils._pytree", extra="torch")
    copied = copy.copy(optimizer)
    copied.param_groups = [
        {**group, "params": [fake(each) for each in group["params"]]} for group in optimizer.param_groups
    ]
    copied.state = defaultdict(dict)
    for parameter, state in optimizer.state.items():
        copied.state[fake(parameter)] = pytree.tree_map(fake, state)
    return copied


def measure_eager(call: StepCall) -> EagerMemory:
    """Return the memory of an eager step, with the optimizer's state already made."""
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")
    tracker = storage_tracker(call.module)
    parameters = [each for each in call.module.parameters() if each.requires_grad]
    kinds: dict[str, Sequence[Any]] = {
        PARAMETERS: list(call.module.parameters()),
        BUFFERS: list(call.module.buffers()),
        ARGUMENTS: [x for x in pytree.tree_leaves((call.arguments, call.targets)) if isinstance(x, t.Tensor)],
    }
    for kind, tensors in kinds.items():
        tracker.mark(tensors, kind)
    for each in parameters:
        each.grad = None
    tracker.begin()
    with preserve_attributes(call.module, call.loss), _hide_fakeness(), tracker, call.mode:
        optimizer_bytes = _run_step(call, tracker)
    gradients = [each.grad for each in parameters if each.grad is not None]
    tracker.mark(gradients, GRADIENTS)
    resident = {kind: tracker.bytes_of(kind) for kind in RESIDENT}
    if tracker.product_phases:
        resident[CUBLAS] = len(tracker.product_phases) * cublas_workspace_bytes()
    return EagerMemory(
        tracker.peak_bytes + resident.get(CUBLAS, 0),
        tracker.phase_at(tracker.peak_time),
        resident,
        tracker.bytes_of(GRADIENTS),
        tracker.result_bytes,
        optimizer_bytes,
        tuple(tracker.live_at_peak()),
    )


@contextmanager
def _hide_fakeness() -> Iterator[None]:
    """Answer no, as a context manager, if code outside of PyTorch asks whether a tensor is fake.

    Some models compute fake tensors in another way, because they take fake tensors for a sign of compilation.
    """
    package: Any = require("torch._subclasses", extra="torch")
    true_class, folder = package.FakeTensor, str(Path(str(torch().__file__)).parent)

    class Answer(type):
        def __instancecheck__(cls, each: Any) -> bool:
            return sys._getframe(1).f_code.co_filename.startswith(folder) and isinstance(each, true_class)

        def __subclasscheck__(cls, each: type) -> bool:
            return issubclass(each, true_class)

    package.FakeTensor = Answer("FakeTensor", (), {})
    try:
        yield
    finally:
        package.FakeTensor = true_class


def _run_step(call: StepCall, tracker: Any) -> int:
    """Run a step, and return the most bytes that the optimizer's update allocates at once.

    The first update makes the optimizer's state, the second is that of the step.
    """
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")
    if call.loss is None:
        with t.no_grad():
            tracker.note_results(call.forward())
        return 0
    result = call.forward()
    tracker.note_results(result)
    loss, *_ = pytree.tree_leaves(result)
    tracker.enter(BACKWARD)
    loss.backward()
    if call.optimizer is None:
        return 0
    tracker.enter(OPTIMIZER)
    with tracker.keep_peak():
        call.optimizer.step()
    states = pytree.tree_leaves(list(call.optimizer.state.values()))
    tracker.mark_since_begin([each for each in states if isinstance(each, t.Tensor)], STATE)
    before, tracker.phase_peak = tracker.live_bytes, tracker.live_bytes
    call.optimizer.step()
    return int(tracker.phase_peak - before)


def storage_tracker(module: Any) -> Any:
    """Return a dispatch mode that notes every storage of a run; see the methods."""
    base = require("torch.utils._python_dispatch", extra="torch").TorchDispatchMode
    tracker: Any = type("StorageTracker", (_StorageTracker, base), {})(module)
    return tracker


@dataclass(eq=False)
class _Place:
    """A place in the forward pass, found again in the backward pass by the number of the autograd node."""

    module: str = ""
    line: str = ""


class _StorageTracker:
    """A dispatch mode that notes every storage: its birth at an operator, and its death.

    A storage lives until no reference is left, so a weak reference reports the death at once.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._paths = {id(each): path for path, each in module.named_modules()}
        self._stack: list[str] = []
        self._blocks: dict[int, tuple[Any, _Block]] = {}
        self._dead: list[_Block] = []
        self._places: dict[int, _Place] = {}
        self._time = self.live_bytes = 0
        self._contents = KnownContents()
        self.product_phases: set[str] = set()  # phases with products on a GPU
        self._hooks = ExitStack()
        self.begin()

    def begin(self) -> None:
        """Begin a step: forget the peak of the step before."""
        self._dead, self._places = [], {}
        self.peak_time, self.peak_bytes, self.phase_peak = self._time, self.live_bytes, self.live_bytes
        self._workspace: _Block | None = None
        self._sum: tuple[weakref.ref[Any], int] | None = None
        self.result_bytes = 0
        self._phases = [(self._time, FORWARD)]

    def enter(self, phase: str) -> None:
        """Begin a phase of the step."""
        self._phases.append((self._time, phase))

    def phase_at(self, time: int) -> str:
        """Return the phase at a point in time."""
        return [phase for begin, phase in self._phases if begin <= time][-1]

    def __enter__(self) -> Any:
        hooks = require("torch.nn.modules.module", extra="torch")
        push = hooks.register_module_forward_pre_hook(self._enter_module)
        pop = hooks.register_module_forward_hook(self._leave_module, always_call=True)
        self._hooks.callback(push.remove)
        self._hooks.callback(pop.remove)
        return super().__enter__()  # type: ignore[misc]

    def __exit__(self, *raised: Any) -> None:
        self._hooks.close()
        super().__exit__(*raised)  # type: ignore[misc]

    def _enter_module(self, module: Any, _: Any) -> None:
        self._stack.append(self._paths.get(id(module), ""))

    def _leave_module(self, *_: Any) -> None:
        self._stack.pop()

    def mark(self, tensors: Sequence[Any], kind: str) -> None:
        """Set the kind of the storages of some tensors; unknown storages are alive from now on."""
        for each in tensors:
            self._block_of(each.untyped_storage(), kind).kind = kind

    def mark_since_begin(self, tensors: Sequence[Any], kind: str) -> None:
        """Set the kind of the storages of some tensors, and count the storages as alive since the step began."""
        self.mark(tensors, kind)
        begin, _ = self._phases[0]
        for block in {self._block_of(each.untyped_storage()) for each in tensors}:
            self.peak_bytes += block.nbytes if block.born > self.peak_time else 0
            block.born = begin

    @contextmanager
    def keep_peak(self) -> Iterator[None]:
        """Run operators, as a context manager, without a change of the peak."""
        peak = self.peak_bytes, self.peak_time, self._workspace
        yield
        self.peak_bytes, self.peak_time, self._workspace = peak

    def note_results(self, results: Any) -> None:
        """Count the bytes of the results of a call, without arguments among them."""
        t, pytree = torch(), require("torch.utils._pytree", extra="torch")
        blocks = {self._block_of(x.untyped_storage()) for x in pytree.tree_leaves(results) if isinstance(x, t.Tensor)}
        self.result_bytes = sum(each.nbytes for each in blocks if each.kind not in RESIDENT)

    def bytes_of(self, kind: str) -> int:
        """Return the bytes alive of a kind."""
        return sum(block.nbytes for _, block in self._blocks.values() if block.kind == kind)

    def live_at_peak(self) -> list[LiveTensors]:
        """Return the tensors alive at the peak, by kind and line, largest first."""
        groups: dict[tuple[str, str, str], list[_Block]] = defaultdict(list)
        every = [*self._dead, *(block for _, block in self._blocks.values())]
        for block in [*every, *filter(None, [self._workspace])]:
            if block.born <= self.peak_time and (block.died is None or block.died > self.peak_time):
                place = ("", "") if block.kind in (*RESIDENT, GRADIENTS) else (block.module, block.line)
                groups[block.kind, *place].append(block)
        tensors = [
            LiveTensors(
                kind, module, max(blocks, key=lambda each: each.nbytes).operator, line, len(blocks),
                sum(each.nbytes for each in blocks),
            )
            for (kind, module, line), blocks in groups.items()
        ]  # fmt: skip
        return sorted((each for each in tensors if each.nbytes), key=lambda each: -each.nbytes)

    def _block_of(self, storage: Any, kind: str = "", operator: str = "") -> _Block:
        """Return the block of a storage; a new block for an unknown storage."""
        key = id(storage)
        if key not in self._blocks:
            nbytes = storage.nbytes()
            if storage.device.type == "cuda":
                nbytes += -nbytes % CUDA_BLOCK_BYTES
            place = self._place()
            block = _Block(nbytes, self._time, kind or self._phases[-1][1], operator, place.module, place.line)
            self._blocks[key] = weakref.ref(storage, lambda _: self._drop(key)), block
            self.live_bytes += nbytes
        return self._blocks[key][1]

    def _drop(self, key: int) -> None:
        """Note the death of a storage."""
        _, block = self._blocks.pop(key)
        block.died = self._time + 1
        self.live_bytes -= block.nbytes
        self._dead.append(block)

    def _place(self) -> _Place:
        """Return the module and the line of the operator; in a backward pass those of the operator differentiated."""
        t = torch()
        node = t._C._current_autograd_node()
        if node is not None:
            return self._places.get(node._sequence_nr(), _Place())
        place = _Place(self._stack[-1] if self._stack else "", _user_line() if self._phases[-1][1] == FORWARD else "")
        # Operators without a gradient follow under the same number, as the counter of a BatchNorm after a convolution.
        self._places.setdefault(t.autograd._get_sequence_nr() - 1, place)
        return place

    def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        t, pytree = torch(), require("torch.utils._pytree", extra="torch")
        if operator is t.ops.aten._local_scalar_dense.default:
            return self._contents.number(args[0])
        if operator is t.ops.prim.device.default:  # no tensor is made
            return operator(*args)
        self._settle_sum()
        name = str(operator)
        if name in PRODUCTS and args[0].device.type == "cuda":
            self.product_phases.add(self._phases[-1][1])
        results = with_kept_workspace(name, args, operator(*args, **(kwargs or {})))
        self._contents.compute(operator, args, kwargs or {}, results)
        self._time += 1
        for each in pytree.tree_leaves(results):
            if isinstance(each, t.Tensor):
                self._block_of(each.untyped_storage(), operator=name)
        if self._is_sum_of_gradients(name, args, results):
            self._sum = weakref.ref(args[0].untyped_storage()), self.live_bytes
        else:
            workspace = workspace_bytes(name, args, results)
            self._reach(self.live_bytes + workspace, workspace, name)
        return results

    def _reach(self, total: int, workspace: int = 0, operator: str = "") -> None:
        """Note the bytes alive at the latest operator, with the workspace of its kernel."""
        self.phase_peak = max(self.phase_peak, total)
        if total > self.peak_bytes:
            self.peak_bytes, self.peak_time = total, self._time
            place = self._place()
            block = _Block(workspace, self._time, WORKSPACE, operator, place.module, place.line)
            self._workspace = block if workspace else None

    def _is_sum_of_gradients(self, name: str, args: Any, result: Any) -> bool:
        """True for a sum by autograd itself of two gradients of a value, as large as the first."""
        if name != "aten.add.Tensor" or self._phases[-1][1] != BACKWARD or not _is_called_by_autograd():
            return False
        if args[0]._is_view():  # the base holds the storage too
            return False
        return bool(args[0].untyped_storage().nbytes() == result.untyped_storage().nbytes())

    def _settle_sum(self) -> None:
        """Count the latest sum of gradients, if it lies beside the first gradient.

        Autograd sums in place of the first gradient if no other reference is left, but never under a dispatch mode:
        here this gradient dies before the next operator.
        """
        if self._sum is not None and self._sum[0]() is not None:
            self._reach(self._sum[1])
        self._sum = None


def _is_called_by_autograd() -> bool:
    """True if no Python code runs between autograd's engine and the operator."""
    frame: Any = sys._getframe(2).f_back  # beyond this function and methods of the tracker
    while frame is not None and frame.f_code.co_name in DISPATCH_WRAPPERS:
        frame = frame.f_back
    # The engine runs the operators of a GPU in a thread of its own, below which there is no Python code.
    return frame is None or bool(frame.f_code.co_name == "_engine_run_backward")


def _user_line() -> str:
    """Return "file.py:line" of the innermost Python code outside of PyTorch and Sublet; "" without such code."""
    own, theirs = str(Path(__file__).parents[2]), str(Path(str(torch().__file__)).parent)
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(own):  # the tracker
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith(own):
        name = frame.f_code.co_filename
        if not name.startswith((theirs, "<")):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
