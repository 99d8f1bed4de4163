"""Parameters and states of a dynamic graph: by their names, in scopes that may be entered again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np

from sublet.base.arrays import array_of, gives_memory
from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic.eager import Eager
from sublet.dynamic.record import Symbol
from sublet.dynamic.storage import Kind, Storage, element_type
from sublet.dynamic.tensor import Owner, Parameter
from sublet.nn.content import Drawn
from sublet.nn.graph import as_array, spec_for
from sublet.nn.lines import at_line
from sublet.nn.naming import Named, free, name_in


class Declared:
    """Makes each parameter and state when it is asked for first, and gives it again whenever it is asked for."""

    def __init__(self, owner: Owner, eager: Eager) -> None:
        self._owner = owner
        self._eager = eager
        self.all: dict[str, Parameter] = {}
        self.given: Mapping[str, Any] = {}  # contents of what is made later, by name
        self.prefix = ""
        self._used: set[str] = set()
        self._around: Named | None = None  # the module that is called
        self._paths: dict[int, tuple[ref[Named], str]] = {}  # the scope of each module that was called and is held

    def parameter(
        self, name: str, shape: Sequence[int] | None, dtype: DType | str, initial: Any, *, trained: bool
    ) -> Parameter:
        """The one of this name. Raises SpecError when there is another spec, or nothing that it starts from."""
        self._eager.require_open()
        if not isinstance(name, str) or not name:
            raise SpecError(at_line(f"{name!r} is no name: give a word"))
        full = self.prefix + name
        found = self.all.get(full)
        if found is not None and shape.__class__ is tuple and found.asked == (shape, dtype, trained):
            return found
        if shape is None:
            shape = () if initial is None or callable(initial) else np.shape(initial)
        spec = spec_for(shape, dtype)
        if found is not None:
            if found._kind.spec != spec or found.trained != trained:
                raise SpecError(at_line(f"{full!r} is {found._kind.spec} since it was made, and not {spec}"))
            return found
        kind = self._eager.kinds.of(spec)
        given = self.given[full] if full in self.given else self._content(full, spec, initial)
        storage = self.stored(full, kind, given)
        made = self.all[full] = Parameter(self._owner, kind, storage, Symbol(kind, True), full, trained)
        made.asked = (tuple(shape), dtype, trained)
        return made

    def stored(self, full: str, kind: Kind, content: Any) -> Storage:
        """Memory of its own with a content. Raises SpecError unless it has the shape and type of `full`."""
        array = array_of(content, full) if gives_memory(content) else as_array(content, kind.dtype)
        if (array.dtype, array.shape) != (element_type(kind), kind.spec.shape):
            raise SpecError(at_line(f"{full!r} is {kind.spec}, and not {array.dtype}{list(array.shape)}"))
        return self._eager.stored(array, kind.dtype, kind)[1]

    def forget(self, names: Sequence[str]) -> None:
        """Take back what was made."""
        for name in names:
            self.all.pop(name, None)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside begin with `name/`. Layers without a name are numbered anew: they find what they made."""
        before, used = self.prefix, self._used
        self._used.add(f"{before}{name}/")
        self.prefix, self._used = f"{before}{name}/", set()
        try:
            yield
        finally:
            self.prefix, self._used = before, used

    @contextmanager
    def module(self, module: Named) -> Iterator[None]:
        """Names made inside begin with the scope of the module: the one it was called in first."""
        here, found = id(module), self._paths.get(id(module))
        if found is None:
            name = name_in(self._around, module)
            name = self.unused(module.kind) if name is None else name
            path = f"{self.prefix}{name}/" if name else self.prefix
            self._paths[here] = found = ref(module, lambda _: self._paths.pop(here, None)), path
        before, used, around = self.prefix, self._used, self._around
        self._used.add(found[1])
        self.prefix, self._used, self._around = found[1], set(), module
        try:
            yield
        finally:
            self.prefix, self._used, self._around = before, used, around

    def unused(self, name: str) -> str:
        """A name for a scope that has not been open yet, since the one around it was entered."""
        return free(self._used, self.prefix, name)

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Inside, layers without a name are numbered from the beginning."""
        before, used = self.prefix, self._used
        self.prefix, self._used = "", set()
        try:
            yield
        finally:
            self.prefix, self._used = before, used

    @staticmethod
    def _content(full: str, spec: TensorSpec, initial: Any) -> Any:
        if initial is None:
            raise SpecError(at_line(f"{full!r} needs a content, for a dynamic graph computes at once: give `initial`"))
        if callable(initial):
            return Drawn(full, spec, initial).array()
        array = as_array(initial, spec.dtype)
        if array.shape not in ((), spec.shape):
            raise SpecError(at_line(f"the content of {full!r} has the shape {list(array.shape)}, not {spec}"))
        return np.broadcast_to(array, spec.shape)
