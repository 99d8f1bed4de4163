"""Keywords of functions: a wrong keyword raises a SpecError as a wrong attribute of a command does."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from sublet.base.errors import SpecError
from sublet.nn.source_location import at_line

P = ParamSpec("P")
R = TypeVar("R")


def require_known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, raising SpecError with the user's line for an unknown keyword, such as `axis` for `axes`.

    The first parameter is the tensor; the others are the attributes named in the error.
    """
    first, *parameters = signature(function).parameters.values()
    keywords = {one.name for one in (first, *parameters) if one.kind is not Parameter.VAR_POSITIONAL}
    names = [one.name if one.name in keywords else f"{one.name} (by position)" for one in parameters]
    prefix = "" if "." in function.__qualname__ else "nn."

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [key for key in kwargs if key not in keywords]
        if unknown:
            attributes = f"Its attributes: {', '.join(names)}."
            raise SpecError(at_line(f"{prefix}{function.__qualname__} has no attribute {unknown[0]!r}. {attributes}"))
        return function(*args, **kwargs)

    return checked
