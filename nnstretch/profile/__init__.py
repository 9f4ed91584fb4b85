"""Measure this machine and fit its predictors.

profile_run.py         whole profile run
sampling_phase.py      its sampling: probes, kernels of each cluster
profile_request.py     what a run is asked for, and its result
budget.py              seconds of each phase
interleaved_timing.py  interleaved timing
fusion_probe.py        which operators a backend fuses
uncertainty.py         which kernels are predicted badly
check_profile.py       whether a profile still fits this machine
validation.py          held-out networks
earlier_profile.py     what earlier runs left, kept where there is no time for it again
system_costs.py        queue round trips, merges, copies, contention
contention_worker.py   process that keeps a core busy
energy.py              RAPL, NVML
machine.py             cores, clusters, pinning
card.py                CARD.md writer
activity/              other work on the machine, seen while it happens
sampling/              kernels drawn, measured and kept
fitting/               measured kernels -> predictor with intervals
kernel_models/         kernels as ONNX, TFLite and PyTorch models
backends/              meters of runtimes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from nnstretch._interpreter import make_callable
from nnstretch.errors import BadInput
from nnstretch.files.checked import checked
from nnstretch.graph import Graph

if TYPE_CHECKING:
    from nnstretch.profile.profile_request import ProfileResult

make_callable(__name__)
__all__ = ["profile"]


@checked
def profile(
    out: Path | str,
    *,
    backend: str = "onnxruntime",
    dtype: str | None = None,
    budget_s: float = 420.0,
    processors: str | None = None,
    networks: Sequence[str] = (),
    seed: int = 0,
    fresh: bool = False,
    most_kernels: int = 20_000,
    targets: Sequence[Graph] = (),
    started_s: float = -1.0,
    progress: Callable[[str, float, float], None] | None = None,
) -> ProfileResult:
    """Measure this machine's kernels, fit a predictor, and write a chip to the folder `out`.

    The budget covers everything: what did not fit into it is told. `processors` is NAME=CORE,... ;
    `networks` are only predicted and measured, to validate. Kernels of `targets` are measured
    first, with others near them. `started_s` is when the budget began, as `time.perf_counter`
    tells. Raises BadInput for a folder that cannot be used, a budget too short, or a package that
    is missing; BrokenFile for a foreign journal.
    """
    from nnstretch.profile.backends.registry import meter_for

    if started_s < 0:
        started_s = perf_counter()
    meter = meter_for(backend, dtype)
    try:
        from nnstretch.profile.profile_request import ProfileRequest
        from nnstretch.profile.profile_run import ProfileRun
    except ImportError as error:
        raise BadInput(
            f"profiling is not installed ({error}), profile, pip install 'nnstretch[profile]'"
        ) from error
    request = ProfileRequest(
        Path(out),
        budget_s,
        processors,
        tuple(networks),
        seed,
        fresh,
        most_kernels,
        tuple(targets),
        started_s,
    )
    return ProfileRun(request, meter, progress or (lambda what, done, total: None)).run()
