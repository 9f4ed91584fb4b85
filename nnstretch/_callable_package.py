"""A verb is a folder and a function of one name.

`nnstretch.capture(...)` and `nnstretch.capture.trace`.

Python binds a sub-package to its parent's attribute when it is first imported, which would hide the
function behind the folder; so the folder answers calls itself.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


def callable_verb(module: str) -> None:
    """Let a package be called as the function of its own name that it defines."""
    sys.modules[module].__class__ = CallableModule
