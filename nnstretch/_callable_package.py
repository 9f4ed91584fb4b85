"""Folders that are functions, too: `nnstretch.capture(...)` beside `nnstretch.capture.onnx`.

Python binds a sub-package to its parent's attribute when it is first imported, which would hide a
function of the same name; so such a folder answers calls itself.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A package that passes calls to its function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(getattr(self, self.__name__.rpartition(".")[2]))


def callable_verb(module: str) -> None:
    """Let a package be called as the function of its own name that it defines."""
    sys.modules[module].__class__ = CallableModule
