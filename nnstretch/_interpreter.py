"""Packages whose names load on first use, packages that can be called, paused collection.

`nnstretch.capture(...)` is a function beside the folder `nnstretch.capture.onnx`: Python binds a
sub-package to its parent's attribute when it is first imported, which would hide a function of the
same name; so such a folder answers calls itself.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType

# None of `typing`, `inspect` and `contextlib`: an interrupt while they are imported finds no
# handler yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports a name from its module on first use.

    Modules are named from the package on, or whole where they lie elsewhere.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        whole = home if home.startswith("nnstretch.") else f"{package}.{home}"
        value = getattr(import_module(whole), name)
        vars(sys.modules[package]).setdefault(name, value)  # a sub-package of the name stays
        return value

    return load


class CallableModule(ModuleType):
    """A package that passes calls to its function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(getattr(self, self.__name__.rpartition(".")[2]))


def make_callable(package: str) -> None:
    """Let a package be called as the function of its own name that it defines."""
    sys.modules[package].__class__ = CallableModule


class PausedCollector:
    """Context in which the collector of cycles does not run.

    For code that makes many objects and few cycles: the collector would look at all of them again
    and again.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()
