"""Parameters and states of a dynamic graph by name, in scopes that can be entered again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np

from sublet.base.arrays import array_of, has_memory
from sublet.base.errors import SpecError
from sublet.base.formatting import printable
from sublet.base.interrupts import defer_interrupts
from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic.eager_executor import EagerExecutor
from sublet.dynamic.gradient_record import Symbol
from sublet.dynamic.tensor import EagerTensor, Parameter, TensorOwner
from sublet.dynamic.tensor_storage import TensorKind, TensorStorage, element_type
from sublet.nn.graph import as_array, spec_for
from sublet.nn.source_location import NamedModule, RandomContent, at_line, first_free_name, name_in_parent
from sublet.runtime.kernel import Array


class ParameterRegistry:
    """The registry of parameters and states: each is created at the first request.

    all      the parameters and states by full name
    given    initial contents of parameters created later, by full name
    prefix   the prefix of new names: the open scopes
    """

    def __init__(self, owner: TensorOwner, eager: EagerExecutor) -> None:
        self._owner = owner
        self._eager = eager
        self.all: dict[str, Parameter] = {}
        self.given: Mapping[str, Any] = {}  # initial contents of later parameters, by name
        self.prefix = ""
        self._used: set[str] = set()
        self._around: NamedModule | None = None  # the module being called
        self._paths: dict[int, tuple[ref[NamedModule], str]] = {}  # the scope of each live called module

    def parameter(
        self, name: str, shape: Sequence[int] | None, dtype: DType | str, initial: Any, *, trained: bool
    ) -> Parameter:
        """Return the parameter `name` in the open scopes; create it if necessary.

        shape    the extents; by default those of `initial`
        initial  an array of the shape, a number for every element, or a function drawing the content; unused if `given`
                 has the name
        trained  False for a state

        Raises SpecError for a parameter of another shape or type, and for a new parameter without content.
        """
        self._eager.require_open()
        if not isinstance(name, str) or not name:
            raise SpecError(at_line(f"{name!r} is not a name: pass a non-empty string"))
        full = self.prefix + name
        existing = self.all.get(full)
        if existing is not None and shape.__class__ is tuple and existing.declared_as == (shape, dtype, trained):
            return existing
        if shape is None:
            shape = () if initial is None or callable(initial) else np.shape(initial)
        spec = spec_for(shape, dtype)
        if existing is not None:
            if existing._kind.spec != spec or existing.trained != trained:
                raise SpecError(
                    at_line(f"{full!r} was declared as {existing._kind.spec}, and is now requested as {spec}")
                )
            return existing
        kind = self._eager.kinds.kind_of(spec)
        content = self.given[full] if full in self.given else self._initial_content(full, spec, initial)
        storage = self.store_content(full, kind, content)
        created = self.all[full] = Parameter(self._owner, kind, storage, Symbol(kind, True), full, trained)
        created.declared_as = (tuple(shape), dtype, trained)
        return created

    def store_content(self, full: str, kind: TensorKind, content: Any) -> TensorStorage:
        """Return new memory with a copy of a content.

        Raises SpecError unless the content has the shape and type of `kind`; `full` is the name in the message.
        """
        array = array_of(content, full) if has_memory(content) else as_array(content, kind.dtype)
        if (array.dtype, array.shape) != (element_type(kind), kind.spec.shape):
            raise SpecError(at_line(f"{full!r} is {kind.spec}; the content is {array.dtype}{list(array.shape)}"))
        return self._eager.store_array(array, kind.dtype, kind)[1]

    def forget(self, names: Sequence[str]) -> None:
        """Remove parameters by full name."""
        for name in names:
            self.all.pop(name, None)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Begin names inside `with` with `name/`.

        Layers without a name are numbered from the beginning, and so find their parameters when the scope is entered
        again.
        """
        before, used = self.prefix, self._used
        self._used.add(f"{before}{name}/")
        self.prefix, self._used = f"{before}{name}/", set()
        try:
            yield
        finally:
            self.prefix, self._used = before, used

    @contextmanager
    def module(self, module: NamedModule) -> Iterator[None]:
        """Begin names inside `with` with the scope of a module: the scope of the first call of the module."""
        here, known = id(module), self._paths.get(id(module))
        if known is None:
            name = name_in_parent(self._around, module)
            name = self.unused_scope_name(module.kind) if name is None else name
            path = f"{self.prefix}{name}/" if name else self.prefix
            self._paths[here] = known = ref(module, lambda _: self._paths.pop(here, None)), path
        before, used, around = self.prefix, self._used, self._around
        self._used.add(known[1])
        self.prefix, self._used, self._around = known[1], set(), module
        try:
            yield
        finally:
            self.prefix, self._used, self._around = before, used, around

    def unused_scope_name(self, name: str) -> str:
        """Return a scope name based on `name`, not used since the enclosing scope was entered."""
        return first_free_name(self._used, self.prefix, name)

    @contextmanager
    def restart_numbering(self) -> Iterator[None]:
        """Number layers without a name from the beginning inside `with`, outside of all scopes."""
        before, used = self.prefix, self._used
        self.prefix, self._used = "", set()
        try:
            yield
        finally:
            self.prefix, self._used = before, used

    @staticmethod
    def _initial_content(full: str, spec: TensorSpec, initial: Any) -> Any:
        """Return the initial content of a parameter. Raises SpecError for no content, or another shape."""
        if initial is None:
            raise SpecError(at_line(f"{full!r} has no content, which a dynamic graph needs at once: pass `initial`"))
        if callable(initial):
            return RandomContent(full, spec, initial).array()
        array = as_array(initial, spec.dtype)
        if array.shape not in ((), spec.shape):
            raise SpecError(at_line(f"the initial content of {full!r} has shape {list(array.shape)}; expected {spec}"))
        return np.broadcast_to(array, spec.shape)


# The weights of a dynamic graph by name.


class DynamicWeights(Mapping[str, EagerTensor]):
    """All parameters and states created so far, by name.

    `weights[name]` is the parameter itself; `weights[name] = array` sets a copy of another content.
    """

    def __init__(self, owner: TensorOwner, declared: ParameterRegistry) -> None:
        self._owner, self._declared = owner, declared

    def __repr__(self) -> str:
        all_ = self._declared.all.values()
        return f"<Weights: {len(all_)}, {sum(one._kind.spec.nbytes for one in all_):,} bytes>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared.all)

    def __len__(self) -> int:
        return len(self._declared.all)

    def __getitem__(self, name: str) -> EagerTensor:
        return self._declared.all[name]

    def __setitem__(self, name: str, content: Any) -> None:
        self.take({name: content})

    def take(self, contents: Mapping[str, Any]) -> None:
        """Set several contents; all contents are checked before the first is set.

        Raises SpecError for an unknown name, for a wrong type or shape, and in a jit function.
        """
        if self._owner.calling is not None:
            raise SpecError(
                at_line("weights cannot be set inside a jit function: set them outside, or call d.update inside")
            )
        unknown = [name for name in contents if name not in self._declared.all]
        if unknown:
            raise SpecError(at_line(f"there is no weight {printable(unknown[0])!r} yet"))
        tensors = {name: self._declared.all[name] for name in contents}
        storages = {
            name: self._declared.store_content(name, one._kind, contents[name]) for name, one in tensors.items()
        }
        with defer_interrupts():
            for name, storage in storages.items():
                tensors[name].take(storage)

    def set_initial_contents(self, contents: Mapping[str, Any]) -> None:
        """Set initial contents by name for parameters created later."""
        self._declared.given = contents

    @contextmanager
    def reading(self) -> Iterator[dict[str, Array]]:
        """Yield all weights as arrays over their memory. Raises SpecError in a jit function."""
        if self._owner.calling is not None:
            raise SpecError(at_line("weights cannot be saved inside a jit function: save them outside"))
        yield {name: one._storage.array for name, one in self._declared.all.items() if one._storage is not None}
