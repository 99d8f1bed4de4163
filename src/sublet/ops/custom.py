"""User-defined dialects: ops by name, under a prefix without a built-in dialect."""

from __future__ import annotations

from functools import partial

from sublet.base.errors import RunError, SubletError
from sublet.ops.op import Op, is_registered, register

_ops: dict[str, dict[str, Op]] = {}


def define_op(op: Op) -> None:
    """Register the op; an op with the same name is replaced.

    Raises RunError if the name has no prefix, or a prefix of a built-in dialect.
    """
    prefix, _, rest = op.name.partition(".")
    if not prefix or not rest:
        raise RunError(f"{op.name!r} has no dialect prefix: name it 'prefix.name', as in 'mine.scale'")
    if prefix not in _ops:
        if is_registered(prefix):
            raise RunError(f"{op.name!r}: the dialect {prefix!r} is in use; choose another prefix")
        _ops[prefix] = {}
        register(prefix, partial(_find_op, prefix))
    _ops[prefix][op.name] = op


def _find_op(prefix: str, name: str) -> Op:
    try:
        return _ops[prefix][name]
    except KeyError:
        raise SubletError(f"there is no op {name!r}; {prefix!r} has {', '.join(sorted(_ops[prefix]))}") from None
