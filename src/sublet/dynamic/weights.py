"""The weights of a dynamic graph by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sublet.base.errors import SpecError
from sublet.base.escape import printable
from sublet.base.interrupts import defer_interrupts
from sublet.dynamic.parameter_registry import ParameterRegistry
from sublet.dynamic.tensor import EagerTensor, TensorOwner
from sublet.nn.source_location import at_line
from sublet.runtime.kernel import Array


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
