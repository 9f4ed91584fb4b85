"""Measure some kernels of a profile again: whether it still fits this machine.

Kernels are measured in the medley that they were profiled in, because how long one takes depends on
its company, and the medleys take turns with all that the sampler knows about other work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.profile.activity.activity_watch import ActivityWatch
from nnstretch.profile.activity.steady_rounds import (
    Attempt,
    faster_half_us,
    may_stop,
    merge_attempts,
    steady_rounds,
)
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.registry import meter_for
from nnstretch.profile.machine import ACCELERATORS, Cluster, clusters, description, pin_process
from nnstretch.profile.sampling.journal import NAME, JournalHead, read_medleys
from nnstretch.profile.sampling.kernel_sampler import REFERENCE, RETRIES, ROUNDS
from nnstretch.profile.sampling.sample import Sample

MEDLEYS = 5
COMPARED = 10
"""Kernels that are compared, if there are as many; the others of a medley are their company."""
LEAST_TOGETHER = 4
LEAST_US = 20.0
"""A kernel shorter than this varies with the harness."""
NEAR = 0.15
"""How far off a kernel may be."""
MOST_OFF = 0.2
"""Share of the kernels that may be further off."""
DRIFT = 0.10
"""How far off the median may be."""
FITS, DIFFERS, UNKNOWN = "fits", "does not fit", "cannot tell"


@dataclass(frozen=True, slots=True)
class CheckedKernel:
    """One kernel, then and now."""

    name: str
    then_us: float
    now_us: float
    steady: bool
    """Whether enough of its rounds were undisturbed now."""

    @property
    def ratio(self) -> float:
        """Return how many times as long it takes now."""
        return self.now_us / self.then_us


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """Kernels measured again, and what else has changed."""

    kernels: tuple[CheckedKernel, ...]
    changed: tuple[str, ...]
    """Machine, runtime and cores, where they are not those of the profile."""

    @property
    def ratios(self) -> list[float]:
        """Return the ratios of the kernels that nobody disturbed."""
        return [kernel.ratio for kernel in self.kernels if kernel.steady]

    @property
    def verdict(self) -> str:
        """Return whether the profile fits; unknown where too few kernels were undisturbed."""
        return judge(self.ratios, len(self.kernels))


def judge(ratios: Sequence[float], kernels: int) -> str:
    """Return the verdict from the ratios of undisturbed kernels among so many.

    It is unknown where they are no more than half, of COMPARED kernels where there were fewer: the
    bounds are shares, and of a few kernels they allow none to be off.
    """
    if 2 * len(ratios) <= max(kernels, COMPARED):
        return UNKNOWN
    far = sum(abs(ratio - 1) > NEAR for ratio in ratios)
    drift = abs(float(np.median(ratios)) - 1)
    return FITS if far <= MOST_OFF * len(ratios) and drift <= DRIFT else DIFFERS


def check_profile(
    folder: Path,
    progress: Callable[[str, float, float], None],
    watch: ActivityWatch | None = None,
    meter: Meter | None = None,
) -> ProfileCheck:
    """Measure kernels of the profile in a folder again, on the core of its first cluster.

    Raises BadInput for a folder that holds no profile or none of a core of this machine, BrokenFile
    where its files are wrong, UnknownName for a backend that nobody knows.
    """
    if not (folder / NAME).is_file():
        why = "there is no such folder"
        if folder.is_dir():
            why = f"it holds no {NAME}, kernels that `nnstretch profile` measured on this machine"
        elif folder.exists():
            why = "it is a file, name the folder of a profile"
        raise BadInput(f"no profile in {folder}, --check, {why}")
    if not (folder / "soc.json").is_file():
        why = "it has kernels and no soc.json, the same `nnstretch profile` again goes on with them"
        raise BadInput(f"no profile yet in {folder}, --check, {why}")
    head, medleys = read_medleys(folder / NAME)
    meter = meter or meter_for(head.backend, head.dtype)
    cluster = min((medley.cluster for medley in medleys), default=ACCELERATORS)
    core_clusters = clusters()
    core = core_of(head, cluster, core_clusters)
    if core is None:
        raise BadInput(f"no core of cluster {cluster} here, {folder / NAME}, it has kernels of it")
    chosen = choose_medleys([m.samples for m in medleys if m.cluster == cluster])
    if not chosen:
        raise BrokenFile(
            f"too few kernels, {folder / NAME}, a check needs {LEAST_TOGETHER} at once"
        )
    checked: list[CheckedKernel] = []
    of_each = ceil(COMPARED / len(chosen))
    with pin_process(core):
        for done, samples in enumerate(chosen):
            progress("measuring kernels again", done, len(chosen))
            checked += measure_again(samples, of_each, meter, watch or ActivityWatch())
    return ProfileCheck(tuple(checked), changes(head, meter, core_clusters))


def core_of(head: JournalHead, cluster: int, core_clusters: Sequence[Cluster]) -> int | None:
    """Return a core to measure a profile's cluster on again, None where there is none.

    One that it had and that is still as fast, else one as fast, else one that it had. Clusters are
    counted anew on each machine: their number tells only where a profile names no cores.
    """
    if not 0 <= cluster < len(head.cores or core_clusters):
        return None
    if not head.cores:
        return core_clusters[cluster].cores[0]
    profiled = head.cores[cluster]
    candidates: list[tuple[bool, bool, int]] = []
    for each in core_clusters:
        is_other = profiled[:1] != (each.max_khz,)
        candidates += [(is_other, core not in profiled[1:], core) for core in each.cores]
    is_other, is_new, core = min(candidates)
    return None if is_other and is_new else core


def changes(head: JournalHead, meter: Meter, core_clusters: Sequence[Cluster]) -> tuple[str, ...]:
    """Return what of machine, cores and runtime is not as it was."""
    cores = tuple((cluster.max_khz, *cluster.cores) for cluster in core_clusters)
    pairs = (
        ("machine", head.machine, description()),
        ("runtime", head.version, meter.version),
        ("set of cores", cores_text(head.cores or cores), cores_text(cores)),
    )
    return tuple(f"{what} was {then}, is {now}" for what, then, now in pairs if then != now)


def cores_text(cores: Sequence[Sequence[int | None]]) -> str:
    """Return clusters of cores for messages, with their highest clock."""
    parts: list[str] = []
    for max_khz, *numbers in cores:
        clock = f" at {max_khz / 1e6:.2f} GHz" if max_khz else ""
        parts.append(",".join(map(str, numbers)) + clock)
    return " and ".join(parts)


def choose_medleys(medleys: Sequence[Sequence[Sample]]) -> list[Sequence[Sample]]:
    """Return some medleys, evenly from short to long ones, each with enough kernels."""
    whole = [medley for medley in medleys if len(medley) >= LEAST_TOGETHER]
    whole.sort(key=lambda medley: sum(sample.latency_us for sample in medley))
    if len(whole) <= MEDLEYS:
        return list(whole)
    places = np.linspace(0, len(whole) - 1, MEDLEYS + 2)[1:-1]
    return [whole[round(place)] for place in places]


def choose_kernels(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return the kernels of a medley to compare, evenly from its long enough ones."""
    count = min(most, len(samples))
    order = sorted(samples, key=lambda sample: sample.latency_us)
    long = [sample for sample in order if sample.latency_us >= LEAST_US]
    order = long if len(long) >= count else order[-count:]
    return [order[(2 * k + 1) * len(order) // (2 * count)] for k in range(count)]


def measure_again(
    samples: Sequence[Sample], most: int, meter: Meter, watch: ActivityWatch
) -> list[CheckedKernel]:
    """Measure a medley, again while others disturb, and return so many kernels to compare."""
    chains = [(REFERENCE,), *((sample.kernel,) for sample in samples)]
    attempts: list[Attempt] = []
    while len(attempts) <= RETRIES:
        attempts.append(watch.attempt(lambda: meter.measure(chains, ROUNDS)))
        if may_stop(attempts, 1 + RETRIES):
            break
    _, *rounds = steady_rounds(merge_attempts(attempts))
    now = {sample.kernel.key: kept for sample, kept in zip(samples, rounds, strict=True)}
    compared: list[CheckedKernel] = []
    for sample in choose_kernels(samples, most):
        kernel, kept = sample.kernel, now[sample.kernel.key]
        if kept.times_us:
            name = f"{kernel.kind} {'x'.join(map(str, kernel.shape_out))}"
            now_us = faster_half_us(kept.times_us)
            compared.append(CheckedKernel(name, sample.latency_us, now_us, kept.steady))
    return compared
