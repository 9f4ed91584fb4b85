"""Arguments of an operator's call by the names of its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def named_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults where the call leaves them out."""
    values: dict[str, Any] = {}
    for number, parameter in enumerate(target._schema.arguments):
        keyword = kwargs.get(parameter.name, parameter.default_value)
        values[parameter.name] = args[number] if number < len(args) else keyword
    return values
