"""Arguments of public functions, checked by their annotations before anything begins.

A wrong one is told by its name, as a wrong key of a file is, where Python would tell an attribute
that it lacks, deep inside. Only what an annotation says is checked: kinds, no NaN, whole numbers of
64 bits, paths that a file can have. Ranges are checked by who knows them.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from math import isnan
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from nnstretch.errors import BadInput
from nnstretch.files.limits import shorten
from nnstretch.files.read import as_path

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
LARGEST_WHOLE = (1 << 64) - 1


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the arguments of each call. The function raises BadInput for one of another kind."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints:
                check_argument(hints[name], value, name)
        return function(*args, **kwargs)

    return call


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function but those that only type checkers can resolve."""
    hints: dict[str, Any] = {}
    for name, text in inspect.get_annotations(function).items():
        holder = type("Holder", (), {"__annotations__": {name: text}})
        with suppress(NameError):
            hints |= get_type_hints(holder, vars(sys.modules[function.__module__]))
    return hints


def check_settings(settings: object) -> None:
    """Check the fields of a dataclass. Raises BadInput with the name of one of another kind."""
    settings_type: Any = type(settings)
    for name, kind in _field_kinds(settings_type).items():
        check_argument(kind, getattr(settings, name), name)


@cache
def _field_kinds(settings_type: type) -> dict[str, Any]:
    return get_type_hints(settings_type)


def check_argument(kind: Any, value: Any, name: str) -> None:
    """Check one argument. Raises BadInput with its name, and the place of a wrong element."""
    arms = _arms(kind)
    if Path in arms and isinstance(value, str if str in arms else Path):
        as_path(value, name)
    elif not _admits(kind, value):
        for arm in arms:
            _check_elements(arm, value, name)
        needed = " or ".join(map(_word, arms))
        raise BadInput(f"{name} is {shorten(value)} ({type(value).__name__}), needed is {needed}")


def _arms(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)


def _check_elements(kind: Any, value: Any, name: str) -> None:
    element = _element_kind(kind)
    if element is None or not _is_container(get_origin(kind), value):
        return
    for index, item in enumerate(value):
        check_argument(element, item, f"{name}[{index}]")


def _element_kind(kind: Any) -> Any:
    """Return what every element of a sequence is to be; None for other kinds."""
    origin, arguments = get_origin(kind), get_args(kind)
    is_sequence = isinstance(origin, type) and issubclass(origin, Sequence)
    return arguments[0] if is_sequence and arguments[1:] in ((), (Ellipsis,)) else None


def _admits(kind: Any, value: Any) -> bool:
    origin = get_origin(kind)
    if origin is Annotated:
        return _admits(get_args(kind)[0], value)
    if origin in (types.UnionType, Union):
        return any(_admits(arm, value) for arm in get_args(kind))
    if kind is None or kind is type(None):
        return value is None
    if origin is not None:
        return _admits_container(kind, value)
    return _admits_plain(kind, value)


def _admits_plain(kind: Any, value: Any) -> bool:
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        return whole and abs(int(value)) <= LARGEST_WHOLE
    if kind is float:
        return _is_number(value)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return not isnan(float(value))
    except (OverflowError, ValueError):
        return False


def _admits_container(kind: Any, value: Any) -> bool:
    origin, element = get_origin(kind), _element_kind(kind)
    if origin is Callable or not isinstance(origin, type):
        return origin is not Callable or callable(value)
    if issubclass(origin, Callable):  # type: ignore[arg-type]
        return callable(value)
    if not _is_container(origin, value):
        return False
    return element is None or all(_admits(element, item) for item in value)


def _is_container(origin: Any, value: Any) -> bool:
    return isinstance(value, origin) and not isinstance(value, str | bytes)


def _word(kind: Any) -> str:
    if kind is None or kind is type(None):
        return "None"
    words = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
    word = words.get(kind) or str(getattr(kind, "__name__", kind))
    element = _element_kind(kind)
    # A union's own "or" would read as if it belonged to the whole.
    if element is None or len(_arms(element)) > 1:
        return word
    of_many = {int: "whole numbers", float: "numbers"}.get(element) or _word(element)
    return f"{word} of {of_many}"
