"""Whole networks that the profile never saw, predicted and measured in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter, perf_counter_ns, process_time_ns
from typing import Annotated

import numpy as np

from nnstretch.errors import NnstretchError
from nnstretch.files.limits import Range
from nnstretch.kernel import FusionRules
from nnstretch.predict.learned import Learned
from nnstretch.profile.activity.activity_watch import ActivityWatch
from nnstretch.profile.activity.machine_activity import interference_between
from nnstretch.profile.activity.steady_rounds import is_quiet
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.budget import Budget, network_s
from nnstretch.profile.machine import PinnedProcessor, pin_process
from nnstretch.structure.kernel_fusion import fuse_kernels

NETWORKS = (
    "torchvision:resnet34",
    "torchvision:resnet50",
    "torchvision:resnext50_32x4d",
    "torchvision:regnet_x_1_6gf",
    "torchvision:regnet_y_800mf",
    "torchvision:mobilenet_v2",
    "torchvision:mobilenet_v3_large",
    "torchvision:mnasnet1_0",
    "torchvision:efficientnet_b0",
    "timm:efficientnet_lite0",
    "torchvision:densenet121",
    "torchvision:vgg13",
    "torchvision:squeezenet1_1",
    "torchvision:googlenet",
    "torchvision:shufflenet_v2_x1_0",
    "timm:ghostnet_100",
    "timm:hrnet_w18_small",
    "timm:dla34",
    "timm:repvgg_a0",
    "timm:fbnetc_100",
)
"""None of them is in prior.csv."""
FEW = (
    "torchvision:mobilenet_v3_large",
    "torchvision:efficientnet_b0",
    "torchvision:regnet_x_1_6gf",
    "torchvision:googlenet",
    "torchvision:resnet50",
)
"""The light ones first, so that a short budget has time for several."""
Amount = Annotated[float, Range(0)]
WARM_UP = 3
LEAST_RUNS, LEAST_S = 20, 1.0


@dataclass(frozen=True, slots=True)
class HeldOutNetwork:
    """One network on one processor: what was predicted, then what was measured."""

    network: str
    processor: str
    predicted_ms: Amount
    measured_ms: Annotated[float, Range(above=0)]
    """Lower quartile of the runs."""
    fastest_ms: Amount
    spread: Amount
    """Between the quartiles, as a share."""
    kernels: Annotated[int, Range(0)]
    where: str = ""
    """Core or device of the processor; empty in files of earlier versions."""

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted_ms / self.measured_ms - 1


@dataclass(frozen=True, slots=True)
class ProfiledProcessor:
    """One processor: where it is, who measures on it, and what was learned."""

    place: PinnedProcessor
    meter: Meter
    learned: Learned
    rules: FusionRules


def validate(
    processors: Sequence[ProfiledProcessor],
    names: Sequence[str],
    progress: Callable[[int, int, str], None],
    budget: Budget,
    watch: ActivityWatch,
) -> tuple[list[HeldOutNetwork], dict[str, str]]:
    """Measure and predict held-out networks on every processor; return them, and why some could not
    be told.

    An operator without an estimate, a file that cannot be written. Those for which the budget has
    no time are noted there.
    """
    rows: list[HeldOutNetwork] = []
    refused: dict[str, str] = {}
    expected_s = max((network_s(each.meter.name) for each in processors), default=0.0)
    for done, (name, processor) in enumerate(pairs := list(product(names, processors))):
        progress(done, len(pairs), name)
        subject = name if len(processors) == 1 else f"{name} on {processor.place.name}"
        if not budget.allows("validation", expected_s, f"validating on {subject}"):
            continue
        before_s, measured = budget.clock(), bool(rows)
        try:
            rows.append(measure_held_out(processor, name, watch))
        except NnstretchError as error:
            refused[subject] = str(error)
        except Exception as error:
            # Runtimes and converters raise what they like: the profile itself must not be lost.
            reason = " ".join(str(error).split())[:200]
            refused[subject] = f"{type(error).__name__}: {reason}"
        taken_s = budget.clock() - before_s
        # The first one measured is what to expect; a refusal in no time tells nothing.
        expected_s = taken_s if rows and not measured else max(expected_s, taken_s)
    progress(len(pairs), len(pairs), "")
    return rows, refused


def measure_held_out(
    processor: ProfiledProcessor, name: str, watch: ActivityWatch
) -> HeldOutNetwork:
    """Predict and measure a network held out."""
    import torch

    from nnstretch.capture import default_input, load_model
    from nnstretch.capture.torch_export import capture

    module, meter = load_model(name).eval(), processor.meter
    torch.manual_seed(0)
    example = torch.randn(default_input(name, module))
    kernels = fuse_kernels(capture(module, example, name), processor.rules)
    predicted_us = float(processor.learned.estimate_many(kernels).latency_us.sum())
    with pin_process(processor.place.core):
        predicted_us += meter.call_us
        times = durations_us(meter.network(module, example), watch)
    low, high = np.percentile(times, (25, 75))
    return HeldOutNetwork(
        name,
        processor.place.name,
        predicted_us / 1000,
        low / 1000,
        min(times) / 1000,
        float(high / low - 1),
        len(kernels),
        processor.place.where,
    )


def durations_us(run: Callable[[], None], watch: ActivityWatch) -> list[float]:
    """Return the times of repeated runs, us.

    Where others took the core meanwhile, that is processor time: a whole network is too long for a
    run that nobody interrupts, and it computes on one thread.
    """
    for _ in range(WARM_UP):
        run()
    wall_us: list[float] = []
    cpu_us: list[float] = []
    before = watch.read()
    started = perf_counter()
    while len(wall_us) < LEAST_RUNS or perf_counter() - started < LEAST_S:
        begin, cpu_begin = perf_counter_ns(), process_time_ns()
        run()
        cpu_us.append((process_time_ns() - cpu_begin) / 1000)
        wall_us.append((perf_counter_ns() - begin) / 1000)
    return wall_us if is_quiet(interference_between(before, watch.read())) else cpu_us


def summary(rows: Sequence[HeldOutNetwork]) -> dict[str, float]:
    """Return mean absolute error and the share of networks within a tenth.

    Empty where nothing was measured.
    """
    errors = np.abs([row.error for row in rows])
    return (
        {"mape": float(errors.mean()), "within_10_percent": float((errors <= 0.1).mean())}
        if len(rows)
        else {}
    )
