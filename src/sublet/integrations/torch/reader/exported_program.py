"""`torch.export` programs as models: weights stay in PyTorch's memory, buffers changed by a run become updates."""

from __future__ import annotations

import copy
import gc
import logging
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from threading import RLock
from typing import TYPE_CHECKING, Any

from sublet.base.arrays import Array, array_of
from sublet.base.errors import ModelError
from sublet.base.interrupts import release_in_children
from sublet.base.optional_imports import require
from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.conversion import TorchConversion
from sublet.integrations.torch.reader.fx_conversion import convert_graph, placeholders, source_line
from sublet.integrations.torch.reader.traced_tensor import TracedTensor, torch
from sublet.ir.graph import Value
from sublet.ir.model import Model

if TYPE_CHECKING:
    from torch.nn import Module

# The device of a traced program. Sublet plans only programs on a single device.

CPU = "cpu"
KNOWN_DEVICES = (CPU, "cuda", "meta")
"""Device types with arenas. On `meta`, tensors have no bytes: a program is planned, but not run."""

NUMBER_OPERATORS = ("aten.full.default", "aten.scalar_tensor.default")
"""Operators making a number for use with tensors of any device: the number is made on the device of the tensors."""


def device_of(*modules: Any) -> str:
    """Return the device of all tensors of some traced programs, "cpu" or "cuda:0".

    Numbers without axes made on the CPU by the program may be on any device; arguments may not.

    Raises ModelError for tensors on several devices, and for an unsupported device.
    """
    places: dict[str, str] = {}
    for module in modules:
        for graph in module.modules():
            for node in getattr(getattr(graph, "graph", None), "nodes", ()):
                for tensor in _tensors_of(graph, node):
                    places.setdefault(str(tensor.device), source_line(node))
    if len(places) > 1:
        (one, _), (other, place), *_ = places.items()
        raise ModelError(f"{place}: a tensor on {other} in a graph on {one}: only graphs on one device are planned")
    device = next(iter(places), CPU)
    if device.partition(":")[0] not in KNOWN_DEVICES:
        raise ModelError(f"a graph on {device}: there are arenas on {', '.join(KNOWN_DEVICES)}")
    return device


def require_cpu(device: str, what: str, *others: str) -> None:
    """Raise ModelError for a device outside of the CPU and `others`; `what` names the refused feature."""
    if device not in (CPU, *others):
        raise ModelError(
            f"{what} runs on the CPU, and here are tensors on {device}: move module and arguments there (.cpu()), or "
            'take torch.compile(backend="sublet"), which runs where the tensors are'
        )


def _tensors_of(module: Any, node: Any) -> Iterator[Any]:
    """Yield the tensors of a node, except numbers allowed on any device."""
    t = torch()
    if node.op == "get_attr":
        tensors = module
        for part in node.target.split("."):
            tensors = getattr(tensors, part, None)
    else:
        tensors = node.meta.get("val")
    for each in tensors if isinstance(tensors, list | tuple) else (tensors,):
        if isinstance(each, t.Tensor) and not (str(node.target) in NUMBER_OPERATORS and _is_inner_number(each, node)):
            yield each


def _is_inner_number(tensor: Any, node: Any) -> bool:
    """True if a tensor is a number on the CPU, and not a result of the program."""
    return tensor.device.type == CPU and tensor.dim() == 0 and all(user.op != "output" for user in node.users)


@dataclass(frozen=True)
class TorchContent:
    """A PyTorch tensor as the content of a value of the given shape; no copy for a dense tensor."""

    tensor: Any
    shape: tuple[int, ...]

    def array(self) -> Array:
        """Return the elements in the order of `spec_and_layout`: for a dense tensor the order in memory."""
        tensor = self.tensor.detach()
        layout = StridedLayout(tuple(tensor.shape), tuple(tensor.stride()))
        if layout.is_dense:
            single = (axis for axis, extent in enumerate(layout.size) if extent == 1)
            tensor = tensor.permute((*single, *layout.axes_by_stride))
        return array_of(tensor.contiguous().reshape(self.shape), "a tensor")


def from_exported(
    program: Any, where: str = "program", weights: Mapping[str, str] | None = None, inputs: Sequence[str] = ()
) -> Model:
    """Return an exported program as a model, functionalised and without composite operators.

    Args:
        program: an ExportedProgram of PyTorch.
        where: the name of the program in errors.
        weights: names of weights in the model, by the names in the program; the default is the name in the program.
        inputs: names of the user's inputs in the model, in order; the default is the names in the program.

    Raises:
        ModelError: for a program impossible to plan, with the line of the user's program.
    """
    weight_names, input_names = weights or {}, iter(inputs)
    try:
        with silence_tracing():
            program = program.run_decompositions({})  # {}: only the decompositions of composite operators
    except ModelError as error:  # from `bounded_trace`; FX appends lines to the message
        raise ModelError(str(error).partition("\n")[0]) from None
    except Exception as error:  # a program from a file may raise errors of any type
        raise ModelError(f"{where}: PyTorch cannot take the program apart: {error_summary(error)}") from error
    require_cpu(device_of(program.graph_module), "a model of a module", "meta")
    conversion = TorchConversion(where=where)
    level = conversion.root_level()
    signature = program.graph_signature
    contents = {**program.state_dict, **program.constants}
    given: list[Any] = []
    user_inputs: dict[str, TracedTensor] = {}
    homes: dict[str, TracedTensor] = {}
    for spec, node in zip(signature.input_specs, placeholders(program), strict=True):
        fake = node.meta.get("val")
        kind = spec.kind.name
        if kind == "USER_INPUT":
            name = next(input_names, node.name)
            if not hasattr(fake, "stride"):
                given.append(fake)
                continue
            given.append(conversion.new_tensor(name, fake))
            user_inputs[name] = homes[node.name] = given[-1]
        elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            given.append(conversion.add_weight(weight_names.get(spec.target, spec.target), contents[spec.target]))
            homes[spec.target] = given[-1]
        else:
            raise ModelError(f"{where}: the input {node.name} is a {kind.lower()}, which cannot be planned")
    results = convert_graph(level, program.graph_module, given)
    outputs: dict[str, Value] = {}
    updates: list[tuple[Value, Value]] = []
    for spec, result in zip(signature.output_specs, results, strict=True):
        kind = spec.kind.name
        if kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
            home = homes[spec.target]
            updates.append((home.value, level.with_layout_of(result, home).value))
        elif kind == "USER_OUTPUT" and isinstance(result, TracedTensor):
            name = spec.arg.name if spec.arg.name not in outputs else f"{spec.arg.name}.{len(outputs)}"
            outputs[name] = level.as_row_major(result).value
        elif kind != "USER_OUTPUT":
            raise ModelError(f"{where}: the output {spec.arg} is a {kind.lower()}, which cannot be planned")
    graph = level.program_graph([each.value for each in user_inputs.values()], list(outputs.values()), updates)
    return Model(graph, weights=torch_contents(conversion.weights), inputs=tuple(user_inputs), outputs=tuple(outputs))


def torch_contents(tensors: Mapping[Value, Any]) -> dict[str, TorchContent]:
    """Return the contents of weights by name, each a `TorchContent` over a PyTorch tensor."""
    return {value.name: TorchContent(each, value.spec.shape) for value, each in tensors.items()}  # type: ignore[union-attr]


def error_summary(error: Exception) -> str:
    """Return the type and the first line of a PyTorch error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


@contextmanager
def preserve_attributes(*owners: object) -> Iterator[list[Module]]:
    """Restore the attributes of modules afterwards, with the content of lists, dictionaries and sets among them.

    Caches of functions with tensors of a trace are cleared.

    Args:
        owners: modules; all else is ignored.

    Yields:
        The modules and the modules inside.
    """
    modules = [each for owner in owners if isinstance(owner, torch().nn.Module) for each in owner.modules()]
    before = {id(table): (table, copy.copy(table)) for each in modules for table in _tables_of(each.__dict__, 2)}
    kinds = {kind for each in modules for kind in type(each).__mro__ if is_users(kind)}
    classes = {kind: dict(vars(kind)) for kind in kinds}
    try:
        yield modules
    finally:
        for kind, attributes in classes.items():
            for name in [name for name, value in attributes.items() if vars(kind).get(name) is not value]:
                setattr(kind, name, attributes[name])
        for table, content in before.values():
            if not _is_same(table, content):
                table.clear()
                (table.extend if isinstance(table, list) else table.update)(content)
        _clear_caches_of_traces()


def _tables_of(table: Any, depth: int) -> Iterator[Any]:
    """Yield a dictionary, the containers among its values, and the attributes of the objects among its values."""
    yield table
    for value in table.values():
        if type(value) in (dict, OrderedDict, list, set):
            yield value
        elif depth and hasattr(value, "__dict__") and not isinstance(value, (torch().nn.Module, torch().Tensor, type)):
            yield from _tables_of(vars(value), depth - 1)


def _is_same(table: Any, content: Any) -> bool:
    """True if a container has the elements of its earlier content, the same objects."""
    if len(table) != len(content) or isinstance(table, set):
        return bool(table == content)
    if isinstance(table, list):
        return all(one is other for one, other in zip(table, content, strict=True))
    return all(name in table and table[name] is value for name, value in content.items())


def is_users(kind: type) -> bool:
    """True for a class that is neither of PyTorch nor of Python's builtins."""
    return kind.__module__.partition(".")[0] not in ("torch", "builtins")


def _clear_caches_of_traces() -> None:
    """Clear each `functools.lru_cache` of a module or a class that holds a tensor of a trace.

    Later calls of the function would return the tensor, which has no content.
    """
    fake_tensor = require("torch._subclasses.fake_tensor", extra="torch")
    functional = require("torch._subclasses.functional_tensor", extra="torch")
    traced = (fake_tensor.FakeTensor, functional.FunctionalTensor)
    for each in _cached_functions():
        held = gc.get_referents(each)  # keys, results, and for an unbounded cache a dictionary of both
        held += [value for table in held if type(table) is dict for value in table.values()]
        held += [value for values in held if type(values) in (tuple, list) for value in values]
        if any(isinstance(value, traced) for value in held):
            each.cache_clear()


def _cached_functions() -> Iterator[Any]:
    """Yield the functions with a cache in modules and in the classes of modules."""
    for module in list(sys.modules.values()):
        tables = [getattr(module, "__dict__", {})]
        tables += [vars(each) for each in tables[0].values() if issubclass(type(each), type)]
        for table in tables:
            for value in list(table.values()):
                function = value.__func__ if type(value) in (staticmethod, classmethod) else value
                if type(function) is _lru_cache_wrapper:
                    yield function


def tracing_lock() -> RLock:
    """Return the lock under which `torch.compile` traces."""
    lock: RLock = require("torch._dynamo.convert_frame", extra="torch").compile_lock
    release_in_children(lock)
    return lock


@contextmanager
def silence_tracing() -> Iterator[None]:
    """Silence PyTorch while tracing, as a context manager: warnings, and logged tracebacks of errors also raised.

    One thread traces at a time, as in `torch.compile`, and with the same lock: PyTorch's tracers patch the process.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with tracing_lock(), warnings.catch_warnings():
        level = log.level
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)
