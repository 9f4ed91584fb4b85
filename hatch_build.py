"""Compile the inner loops of the search while the package is built, where a C compiler is at hand.

Without one the package is complete, too: the same is then computed by arrays. So it is where the
library cannot be loaded, and a wheel stays one for every machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("nnstretch/stretch/search/compiled")
# No fused or reordered arithmetic: results are those of the arrays to the bit.
FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-ffp-contract=off")


def compile_kernels(sources: Path, library: Path) -> None:
    """Compile a folder. Raises OSError, ValueError or CalledProcessError where that fails."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    text = b"".join(path.read_bytes() for path in sorted(sources.glob("*.[ch]")))
    version = f"-DKERNELS_VERSION={zlib.crc32(text)}u"
    with TemporaryDirectory(dir=library.parent) as folder:
        new = Path(folder) / library.name
        files = map(str, sorted(sources.glob("*.c")))
        command = [*compiler, *FLAGS, version, *files, "-o", str(new), "-lm"]
        subprocess.run(command, capture_output=True, text=True, check=True)
        new.replace(library)


class CompiledKernels(BuildHookInterface):
    """Put the library beside its sources, into wheels and into a checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a failure is a warning. A library of other sources is not used."""
        folder = Path(self.root) / FOLDER
        try:
            compile_kernels(folder, folder / "kernels.so")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            self.app.display_warning(f"not compiled, so nnstretch search will be slower: {why}")
            return
        build_data["artifacts"].append(str(FOLDER / "kernels.so"))
