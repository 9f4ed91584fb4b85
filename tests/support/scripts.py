"""Commands under `scripts/`; their files can be imported by name once this module is imported.

A command in a folder imports its own files so, and `python scripts/COMMAND` makes it possible.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[2] / "scripts"
FOLDERS = sorted(path.parent for path in SCRIPTS.glob("*/__main__.py"))
COMMANDS = sorted(path.stem for path in [*SCRIPTS.glob("*.py"), *FOLDERS])
sys.path.extend(map(str, [SCRIPTS, *FOLDERS]))


def load_command(command: str) -> ModuleType:
    """Import a command without running it."""
    if (SCRIPTS / f"{command}.py").exists():
        return importlib.import_module(command)
    name = f"scripts_{command}"
    if name not in sys.modules:
        file = SCRIPTS / command / "__main__.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
