"""What a manifest promises of a file, against what its runtime makes of it.

Every difference is one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.errors import BadInput, BrokenFile, one_line

OUT_OF_TABLE = re.compile("ind(ex|ices).* out of .*bounds", re.I)
"""What runtimes say of an index that a table does not have."""


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


def cannot_run(
    where: str, runtime: str, reads: Sequence[Port], error: BaseException
) -> BadInput | BrokenFile:
    """Return what is raised where a runtime refuses to compute a file that it has loaded.

    BadInput where an index that the caller gave lies outside of a table.
    """
    reason = first_line(error)
    indices = [port.name for port in reads if port.spec.dtype in ("int32", "int64")]
    if indices and OUT_OF_TABLE.search(str(error)):
        member = where.removeprefix("broken ")
        return BadInput(
            f"input {', '.join(indices)}, {member}, an index lies outside of its table"
            f" ({reason.rpartition('Status Message: ')[2]})"
        )
    return BrokenFile(f"{where}, {runtime} cannot run it ({reason})")


def refusal_label(subgraph: Subgraph, bundle: str, backend: str) -> str:
    """Return the beginning of a refusal of a sound file by a backend that lacks what it needs."""
    return f"cannot run {bundle} by backend {backend}, member {subgraph.file}"


def first_line(error: BaseException) -> str:
    """Return the first line that says something; runtimes put their own source files before it."""
    for line in str(error).splitlines():
        if line.strip() and not line.startswith("Exception from src/"):
            return one_line(line.strip())[:200]
    return type(error).__name__
