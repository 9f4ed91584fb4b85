"""What a manifest promises of a file, against what its runtime makes of it.

Every difference is one line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.bundle.manifest import Port
from nnstretch.errors import BrokenFile, one_line


def check_outputs(where: str, ports: Sequence[Port], outputs: Sequence[np.ndarray]) -> None:
    """Check outputs: a symbolic dimension may still have come out wrong.

    Raises BrokenFile when shape or dtype differ from the manifest's.
    """
    for port, output in zip(ports, outputs, strict=True):
        spec = port.spec
        if output.shape != spec.shape or output.dtype.name != spec.dtype:
            raise BrokenFile(
                f"{where}, {port.name} came out as {output.shape} {output.dtype}, the manifest says"
                f" {port.spec}"
            )


def first_line(error: BaseException) -> str:
    """Return the first line that says something; runtimes put their own source files before it."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.startswith("Exception from src/")
    ]
    return one_line(lines[0])[:200] if lines else type(error).__name__
