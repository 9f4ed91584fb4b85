"""`nnstretch partition --measure`: candidates streamed on this machine, the fastest kept first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nnstretch.cli.subjects import progress


def fastest_first(paths: Sequence[Path]) -> tuple[list[int], list[float]]:
    """Which candidate is now in which place, and milliseconds between two results of each; the files change places."""
    from nnstretch.bench.pipelines import candidates_us

    with progress("measuring") as tick:
        times_us = candidates_us(paths, tell=lambda done, total: tick(done, total, "rounds"))
    order = sorted(range(len(paths)), key=lambda k: times_us[k])
    aside = [path.with_name(f".{path.name}.{os.getpid()}") for path in paths]
    for path, other in zip(paths, aside, strict=True):
        path.rename(other)
    for place, k in enumerate(order):
        aside[k].rename(paths[place])
    return order, [times_us[k] / 1e3 for k in order]
