"""What a FILE.py of the user's own makes: a network, a data set."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torch import nn

from nnstretch.errors import BadInput, BrokenFile, NnstretchError, UnknownName
from nnstretch.files.read import MOST_TEXT_BYTES, check_file

_IMPORTED: dict[Path, dict[str, ModuleType]] = {}
"""What model files have imported from their folders, by folder."""


def load_from_factory(path: Path, factory: str, settings: dict[str, Any]) -> nn.Module:
    """Run a FILE.py, the user's own program, and call its factory.

    Raises UnknownName when file or factory do not exist; BadInput when no module is returned.
    """
    network = call_in_file(path, factory, "model file", settings)
    if not isinstance(network, nn.Module):
        raise BadInput(
            f"no network from {path}:{factory}, it returned a {type(network).__name__}, not a"
            " torch.nn.Module"
        )
    return network


def call_in_file(path: Path, factory: str, kind: str, settings: dict[str, Any], *args: Any) -> Any:
    """Run a FILE.py and return what its factory does; `kind` names the file in messages.

    Raises UnknownName when file or factory do not exist, BrokenFile or BadInput when they fail.
    """
    check_file(path, kind, MOST_TEXT_BYTES)
    with imports_from(path.parent.resolve()):
        module = run_python_file(path, kind)
        make = getattr(module, factory, None)
        if not callable(make):
            public = ", ".join(name for name in vars(module) if not name.startswith("_"))
            raise UnknownName(f"no factory {factory!r}, {kind} {path}, it defines {public}")
        return call_factory(f"{path}:{factory}", make, settings, *args)


@contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Let a model file import what lies beside it.

    Files of other folders have helpers of their own, perhaps of the same name.
    """
    for place, modules in _IMPORTED.items():
        for name in modules if place != folder else ():
            sys.modules.pop(name, None)
    sys.modules.update(_IMPORTED.setdefault(folder, {}))
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - known:
            if lies_beside(name.partition(".")[0], folder):
                _IMPORTED[folder][name] = sys.modules[name]


def lies_beside(name: str, folder: Path) -> bool:
    """Return whether a module or package lies in a folder itself, not in an environment there."""
    module = sys.modules.get(name)
    source = getattr(module, "__file__", None)
    packages = [Path(package) for package in getattr(module, "__path__", ())]
    files = [Path(source)] if source is not None and not packages else packages
    return any(file.resolve().parent == folder for file in files)


class SourceLoader(importlib.machinery.SourceFileLoader):
    """Compile a file from its source at every load.

    A compiled one beside it counts as its own while size and second of its last change agree.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file as it is now."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def run_python_file(path: Path, kind: str) -> ModuleType:
    """Run a Python file as a module and return it. Raises BrokenFile when it fails."""
    name = f"nnstretch_model_{path.stem}"
    loader = SourceLoader(name, str(path))
    module_spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # where dataclasses and pickle look for it
    try:
        module_spec.loader.exec_module(module)
    except NnstretchError:
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BrokenFile(f"cannot run {kind} {path}, {type(error).__name__}, {error}") from error
    return module


def call_factory(what: str, make: Any, settings: dict[str, Any], *args: Any) -> Any:
    """Call a factory. Raises BadInput, with the reason in one line, when it fails."""
    try:
        return make(*args, **settings)
    except NnstretchError:
        raise
    except (Exception, SystemExit) as error:
        settings_text = ", ".join(f"{k}={v}" for k, v in settings.items())
        called = f", called with {settings_text}" if settings_text else ""
        reason = " ".join(str(error).split())[:300]
        raise BadInput(f"cannot make {what}{called}, {type(error).__name__}: {reason}") from error
