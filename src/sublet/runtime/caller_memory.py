"""Memory of the caller: contents of inputs, weights and state, copied or used in place; and forms of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sublet.base.arrays import array_of, contiguous, has_memory, has_shape, is_packed, pack, torch_over
from sublet.base.dlpack import SharedArray
from sublet.base.errors import RunError
from sublet.base.formatting import known_names, printable
from sublet.base.tensor import NUMPY, TensorSpec, Unplannable
from sublet.ir.graph import Graph, Value
from sublet.plan import bound_storage_name
from sublet.runtime.kernel import Array, Operand, UnplannedCell
from sublet.runtime.memory import ExecutableMemory, Raw, aligned_bytes, raw_bytes
from sublet.runtime.state import ExecutableState

# Validation of arrays passed by the caller against the plan.

PYTHON_NUMBERS = {"f": "fi", "V": "fi", "i": "i", "u": "i"}
"""Kinds of Python numbers accepted for each kind of NumPy type; types of ml_dtypes have kind V."""


def inputs_by_name(inputs: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs given as a mapping, as keywords, or both. Raises RunError for anything else."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise RunError(f"pass inputs by name, as keywords or in a mapping, not as one {type(inputs).__name__}")
    return {**(inputs or {}), **named}


def aligned_or_copy(array: Array, alignment: int) -> Raw:
    """Return the bytes of an array, copied only if not contiguous or not aligned to `alignment`.

    Arrays mapped from a file may be unaligned. A copy is aligned to 64 bytes, fastest for kernels.
    """
    if array.flags.c_contiguous and (alignment < 2 or array.ctypes.data % alignment == 0):
        return raw_bytes(array)
    moved = aligned_bytes(array.nbytes, 64)
    moved.view(array.dtype).reshape(array.shape)[...] = array
    return moved


def fitting_array(spec: TensorSpec, content: Any, what: str) -> Array:
    """Return an array over the memory of `content`, as a tensor of `spec`.

    For packed types the result has the packed bytes, or one element per byte. A flat array of bytes of the right size
    is accepted for any tensor, as is a flat object without a shape, such as `array.array`. Raises RunError when type
    or shape differ from the plan.
    """
    array, wanted = array_of(content, what), NUMPY[spec.dtype]
    if array.dtype == wanted and array.shape == spec.shape:
        return array
    flat = array.ndim == 1 and array.nbytes == spec.nbytes and array.flags.c_contiguous
    if flat and (array.dtype == np.uint8 or (array.dtype == wanted and not has_shape(content))):
        return array if is_packed(spec) else array.view(wanted).reshape(spec.shape)
    expected = f"an array of {wanted} with the shape {list(spec.shape)}"
    raise RunError(f"{what}: must be {spec}, {expected}, not {array.dtype}{list(array.shape)}")


def memory_for(spec: TensorSpec, content: Any, what: str) -> Raw:
    """Return the bytes of the memory given for a tensor, for use in place.

    Raises RunError when type, shape or layout do not fit.
    """
    array = contiguous(fitting_array(spec, content, what), what)
    if is_packed(spec) and array.dtype != np.uint8:
        raise RunError(f"{what}: elements of {spec.dtype} share bytes: pass {spec.nbytes} bytes, not {array.dtype}")
    return raw_bytes(array)


def content_for(value: Value, content: Any, what: str) -> Any:
    """Return the array to store for `value`, over the memory of `content` where possible.

    Raises RunError when type or shape differ from the plan.
    """
    spec = value.spec
    if not isinstance(spec, TensorSpec):
        elsewhere = hasattr(content, "__dlpack__") and not isinstance(
            content, np.ndarray
        )  # NumPy arrays may hold texts
        return array_of(content, what) if elsewhere else content
    if type(content) is np.ndarray and content.shape == spec.shape and content.dtype == NUMPY[spec.dtype]:
        return pack(content, spec) if is_packed(spec) else content
    array = fitting_array(spec, content if has_memory(content) else _array_of_numbers(content, spec, what), what)
    return pack(array, spec) if is_packed(spec) and array.dtype != np.uint8 else array


def _array_of_numbers(content: Any, spec: TensorSpec, what: str) -> Array:
    """Return an array of Python numbers, converted to the planned type, or of any array-like object."""
    wanted = NUMPY[spec.dtype]
    try:
        array = np.asarray(content)
        python = isinstance(content, float | int | list | tuple)
        return array.astype(wanted) if python and array.dtype.kind in PYTHON_NUMBERS.get(wanted.kind, "") else array
    except Exception as error:  # an array-like object of the caller may raise anything
        raise RunError(f"{what}: {type(content).__name__} is no array: {error}") from None


def _overlaps_any(array: Array, homes: Iterable[Operand]) -> bool:
    """True if the array may share bytes with an array of `homes`. Every call asks; `any` would be slower."""
    for home in homes:  # noqa: SIM110
        if isinstance(home, np.ndarray) and np.may_share_memory(array, home):
            return True
    return False


class CallerContents:
    """Checks contents passed by the caller and writes them to the storages of their values."""

    def __init__(
        self,
        graph: Graph,
        memory: ExecutableMemory,
        state: ExecutableState,
        weights: Mapping[Value, Any],
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        defaults: Mapping[str, Any],
        fixed: Mapping[str, str],
    ) -> None:
        self._graph = graph
        self._memory = memory
        self._state = state
        self._inputs = inputs
        self._titles = {name: f"input {name}" for name in inputs}
        self._outputs = outputs
        self._defaults = defaults
        self._fixed = fixed
        self._weights = {value: content for value, content in weights.items() if value not in graph.updated_values}
        self._named_weights = {value.name: value for value in graph.weights}
        self._bound: set[str] = set()
        self._updated_weights = [value for value in graph.updated_values if value not in graph.inputs]
        self.load_weights()
        for value in (value for value in graph.updated_values if value in weights):
            self.set_content(value, weights[value], f"weight {value.name}")

    def load_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Check every input, then write all inputs to their storages, with defaults for inputs left out."""
        if inputs.keys() != self._inputs.keys():
            inputs = self._with_defaults(inputs)
        contents = {
            name: content_for(self._inputs[name], content, self._titles[name]) for name, content in inputs.items()
        }
        for value in self._updated_weights:
            self._state.require(value, value.name)
        for name, content in self._copy_aliases(contents).items():
            self._store_content(self._inputs[name], content)

    def _with_defaults(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inputs with the defaults of inputs left out. Raises RunError for unknown and missing inputs."""
        unknown = [name for name in inputs if name not in self._inputs]
        if unknown and unknown[0] in self._fixed:
            raise RunError(f"input {printable(unknown[0])}: {self._fixed[unknown[0]]}")
        if unknown:
            raise RunError(f"there is no input {printable(unknown[0])!r}; the inputs are {known_names(self._inputs)}")
        left_out = {name: given for name, given in self._defaults.items() if not self._has_content(self._inputs[name])}
        for name in left_out.keys() - inputs.keys():
            self._state.require_certain(self._inputs[name], name)
        inputs = {**left_out, **inputs}
        missing = [name for name, value in self._inputs.items() if name not in inputs and not self._has_content(value)]
        if missing:
            self._state.require_certain(self._inputs[missing[0]], missing[0])
            raise RunError(f"the input {missing[0]!r} is missing; the inputs are {known_names(self._inputs)}")
        return inputs

    def set_content(self, value: Value, content: Any, what: str) -> None:
        """Set the content of an updated value."""
        self._store_content(value, content_for(value, content, what))

    def replace(self, value: Value, content: Any) -> None:
        """Set the content of a weight not updated by runs; the content is copied."""
        self._weights[value] = content.copy() if isinstance(content, np.ndarray) else content
        self._bound.discard(value.name)
        self._load_weight(value, self._weights[value])

    def load_weights(self) -> None:
        """Load all weights: weights with separate storages are used in place, weights in the arena are copied."""
        for value, given in self._weights.items():
            if value.name not in self._bound:
                self._load_weight(value, given)

    def enter_arena(self) -> None:
        """Begin an access to the arenas: repair contents overwritten by another executable in the same bytes.

        Weights are copied again, a state becomes uncertain. The caller holds both locks.
        """
        if not self._memory.locks.enter():
            return
        for value, given in self._weights.items():
            if isinstance(value.spec, TensorSpec) and bound_storage_name(value.name) not in self._memory.storages:
                self._store_content(value, content_for(value, given, f"weight {value.name}"))
        self._state.mark_overwritten()

    def _load_weight(self, value: Value, array_like: Any) -> None:
        """Load one weight, in place or by copy."""
        if not isinstance(value.spec, TensorSpec):
            self._memory.cells[value.name].content = array_like
            return
        content = content_for(value, array_like, f"weight {value.name}")
        storage = bound_storage_name(value.name)
        if storage in self._memory.storages:
            self._memory.adopt_bytes(
                storage, aligned_or_copy(content, value.spec.dtype.bits // 8), f"weight {value.name}", 1
            )
        else:
            self._store_content(value, content)

    def bind(self, name: str, memory: Any) -> tuple[Value, bool]:
        """Use memory of the caller as the storage of a value.

        Return the value, and True if the memory is another content of a weight not updated by runs. Raises RunError for
        an unknown name, a value outside the plan, a value in an arena, and memory that does not fit.
        """
        value = self._value_by_name(name)
        if isinstance(value.spec, Unplannable):
            found = printable(f"{value.spec.type}; {value.spec.reason}")
            raise RunError(
                f"{printable(name)!r} lies outside the plan: expected a size known before the run, found {found}. "
                "Leave the value to the run, or declare a tensor's shape with assume="
            )
        known = value.name
        storage = bound_storage_name(known)
        if storage not in self._memory.storages:
            raise RunError(f"{name!r} lies in the arena: plan with io='bound' (or weights='bound') to bind it")
        assert isinstance(value.spec, TensorSpec)
        raw = memory_for(value.spec, memory, name)
        self._memory.adopt_bytes(storage, raw, name, max(1, value.spec.dtype.bits // 8))
        self._bound.add(known)
        self._memory.caller_storages.add(storage)
        self._state.set(value)
        if known not in self._named_weights or value not in self._weights:
            return value, False
        self._weights[value] = self._memory.places_at().array(value)
        return value, True

    def _has_content(self, value: Value) -> bool:
        """True if an input has a content without being passed."""
        return self._state.has_content(value) if value in self._graph.updated_values else value.name in self._bound

    def _copy_aliases(self, contents: Mapping[str, Any]) -> dict[str, Any]:
        """Return the contents, with copies of contents overlapping a storage: inputs may be views of former outputs."""
        memory, bound = self._memory, self._bound
        apart = list(self._state.values)
        for name in contents if bound else ():
            value = self._inputs[name]
            if value.name in bound:
                if not memory.places_at().bytes_of(value).flags.writeable:
                    raise RunError(f"input {name}: is bound to read-only memory; bind other memory to change it")
                apart.append(value)
        homes = [*map(memory.raw, memory.arenas), *map(memory.outer_operand, apart)]
        return {
            name: content.copy() if isinstance(content, np.ndarray) and _overlaps_any(content, homes) else content
            for name, content in contents.items()
        }

    def _store_content(self, value: Value, content: Any) -> None:
        """Write a content of the right type and shape to the storage of a value."""
        operand = self._memory.outer_operand(value)
        with self._state.writing(value):
            if isinstance(operand, UnplannedCell):
                operand.content = content
            else:
                operand[...] = content

    def _value_by_name(self, name: str) -> Value:
        """Return the input, output or weight with the given name. Raises RunError for an unknown name."""
        found = self._inputs.get(name) or self._outputs.get(name) or self._named_weights.get(name)
        if found is not None:
            return found
        known = known_names([*self._inputs, *self._outputs, *self._memory.arenas])
        inner = any(value.name == name for value in self._graph.values())
        hint = " (an intermediate value, which only a run computes)" if inner else ""
        raise RunError(
            f"there is no input, output or weight {printable(name)!r}{hint}; there are {known} and the weights"
        )


Form = Callable[[Array], Any]


def as_numpy(array: Array) -> Array:
    """Return the NumPy array unchanged."""
    return array


FORMS: Mapping[str, Form] = {"numpy": as_numpy, "torch": torch_over, "dlpack": SharedArray}


def output_form(form: str | Callable[[Any], Any]) -> Form:
    """Return the converter of outputs: by name, or a function of a `Shared`. Raises RunError for another name."""
    if callable(form):
        make = form
        return lambda array: make(SharedArray(array))
    if form not in FORMS:
        raise RunError(
            f"outputs cannot be returned as {printable(str(form))!r}: pass {known_names(FORMS)}, or a function"
        )
    return FORMS[form]


class Views(Mapping[str, Any]):
    """Outputs by name, as views of the memory of an executable; valid until the next run or `bind`.

    After the next run, access raises RunError, since other values lie in the memory. `hold` keeps an output.
    """

    def __init__(
        self, found: Mapping[str, Any], runs: Callable[[], int], hold: Callable[[str], Any], owner: object
    ) -> None:
        self._outputs = dict(found)
        self._runs, self._made_at = runs, runs()
        self._hold = hold
        self._owner = owner
        self._held_names: set[str] = set()

    @property
    def good(self) -> bool:
        """True if the executable has not run since."""
        return self._runs() == self._made_at

    def __getitem__(self, name: str) -> Any:
        found = self._outputs[name]
        if name not in self._held_names and not self.good:
            raise RunError(
                f"the view of {printable(name)!r} was valid until the next run of {self._owner}. Call hold() before."
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        until = "valid until the next run" if self.good else "no longer valid, because the executable ran again"
        return f"<Views of {self._owner}: {known_names(self._outputs)}; {until}>"

    def hold(self, name: str) -> Any:
        """Return an output that stays valid permanently: see `Executable.hold`."""
        if name not in self._held_names:
            self[name]
            self._outputs[name] = self._hold(name)
            self._held_names.add(name)
        return self._outputs[name]
