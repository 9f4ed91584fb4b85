"""Modules of an example, as a script in its folder sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def example_modules(folder: Path, names: Sequence[str]) -> Iterator[dict[str, ModuleType]]:
    """Import modules by name from a folder, and forget them afterwards."""
    sys.path.insert(0, str(folder))
    before = {name: sys.modules.pop(name, None) for name in names}
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
