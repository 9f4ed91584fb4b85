"""Compile the inner loops of the search while the package is built, where a C compiler is at hand.

Without one the package is complete, too: the same is then computed by arrays. So it is where the
library cannot be loaded, and a wheel stays one for every machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("nnstretch/stretch/search/compiled")
# No fused or reordered arithmetic: results are those of the arrays to the bit.
FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-ffp-contract=off")


class CompiledKernels(BuildHookInterface):
    """Put the library beside its source, into wheels and into a checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a failure is a warning."""
        folder = Path(self.root) / FOLDER
        library, new = folder / "kernels.so", folder / f"kernels.{os.getpid()}.so"
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if sys.platform == "win32" or shutil.which(compiler[0]) is None:
            self.app.display_warning("no C compiler: nnstretch search will be slower")
            library.unlink(missing_ok=True)
            return
        command = [*compiler, *FLAGS, str(folder / "kernels.c"), "-o", str(new), "-lm"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            new.unlink(missing_ok=True)
            library.unlink(missing_ok=True)
            self.app.display_warning(f"nnstretch search will be slower:\n{run.stderr}")
            return
        new.replace(library)
        build_data["artifacts"].append(str(FOLDER / "kernels.so"))
