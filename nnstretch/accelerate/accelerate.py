"""Schedule a network on an accelerator, simulate it, and say how far it is from the bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from nnstretch.accelerate.best_schedule import best_schedule
from nnstretch.accelerate.bounds import least_times_us
from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.engines.engine_use import engine_use
from nnstretch.accelerate.engines.placed_program import Spill, residencies_of
from nnstretch.accelerate.machine.rates import SECOND_US, ChipRates
from nnstretch.accelerate.operator_work import matrix_shape
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.accelerate.schedule_file import ChipScheduleFile, schedule_by_hand
from nnstretch.accelerate.steps.split import work
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Group, Instruction
from nnstretch.errors import BadInput, BadPlan
from nnstretch.graph import Graph

GraphOfBatch = Callable[[int], Graph]


@dataclass(frozen=True)
class AccelerateRequest:
    """What is to be scheduled on a machine."""

    rates: ChipRates
    batch: int
    options: ScheduleOptions = field(default_factory=ScheduleOptions)
    per_cluster: int | None = None
    """Images that a cluster computes at once; None tries several."""
    budget_s: float = 20.0
    """Time for the simulations of `best`."""
    by_hand: ChipScheduleFile | None = None
    """Groups, order, scopes and bindings instead of the policy's."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(f"batch is {self.batch}, command line, needed is at least 1")
        if self.per_cluster is not None and not 1 <= self.per_cluster <= self.batch:
            raise BadInput(
                f"per-cluster is {self.per_cluster}, command line, needed are 1 to the batch of"
                f" {self.batch}"
            )

    @property
    def share(self) -> int:
        """Return a cluster's part of the batch, rounded up."""
        return -(-self.batch // self.rates.accelerator.clusters)


@dataclass(frozen=True)
class AccelerateResult:
    """A schedule of one cluster, and what it means for the batch."""

    request: AccelerateRequest
    chip: ChipGraph
    per_cluster: int
    iterations: int
    """Passes of the cluster that has most of them."""
    schedule: ClusterSchedule
    scheduling_s: float

    @property
    def latency_us(self) -> float:
        """Return the time of the whole batch."""
        return self.schedule.latency_us * self.iterations

    @property
    def passes(self) -> int:
        """Return how often the schedule runs for the batch, of all clusters together."""
        return -(-self.request.batch // self.per_cluster)

    @property
    def throughput_per_s(self) -> float:
        """Return inputs a second."""
        return self.request.batch / self.latency_us * SECOND_US


def accelerate(graph_of: GraphOfBatch, request: AccelerateRequest) -> AccelerateResult:
    """Schedule a network and return the fastest of the images per cluster that are tried.

    Raises BadPlan where none of them fits.
    """
    best: AccelerateResult | None = None
    refusal: BadPlan | None = None
    started_s = time.perf_counter()
    capture_s = 0.0
    tried = images_tried(request)
    budget_s = request.budget_s / len(tried)
    for images in tried:
        before_s = time.perf_counter()
        graph = graph_of(images)
        capture_s += time.perf_counter() - before_s
        chip = chip_graph(graph, request.rates.element_type)
        try:
            require_room_for_weights(chip, request.rates)
            schedule = schedule_images(chip, request, budget_s)
        except BadPlan as error:
            refusal = refusal or error
            continue
        iterations = -(-request.share // images)
        elapsed_s = time.perf_counter() - started_s - capture_s
        result = AccelerateResult(request, chip, images, iterations, schedule, elapsed_s)
        if best is None or result.latency_us < best.latency_us:
            best = result
    if best is None:
        assert refusal is not None
        raise refusal
    elapsed_s = time.perf_counter() - started_s - capture_s
    return AccelerateResult(
        request, best.chip, best.per_cluster, best.iterations, best.schedule, elapsed_s
    )


def require_room_for_weights(chip: ChipGraph, rates: ChipRates) -> None:
    """Check that weights fit the memory outside the chip. Raises BadPlan."""
    room = rates.accelerator.ddr.size_bytes
    needed = sum(chip.bytes_of(name) for name in chip.weights)
    if room is not None and needed > room:
        raise BadPlan(
            f"weights of {needed} B do not fit, {rates.accelerator.name}, its {DDR} holds {room} B"
        )


def schedule_images(
    chip: ChipGraph, request: AccelerateRequest, budget_s: float
) -> ClusterSchedule:
    """Return one cluster's schedule by the request's policy or its hand-made schedule."""
    if request.by_hand is not None:
        return schedule_by_hand(chip, request.rates, request.options, request.by_hand)
    if request.options.policy == "best":
        return best_schedule(chip, request.rates, request.options, budget_s)
    return schedule_cluster(chip, request.rates, request.options)


def images_tried(request: AccelerateRequest) -> tuple[int, ...]:
    """Return images per cluster: what was asked for, else the share and its halves."""
    if request.per_cluster is not None:
        return (request.per_cluster,)
    tried: list[int] = []
    images = request.share
    while images >= 1:
        tried.append(images)
        images = images // 2
    return tuple(tried)


def result_json(result: AccelerateResult, model: str) -> dict[str, Any]:
    """Return a result as the JSON object of the contract."""
    schedule, request = result.schedule, result.request
    machine = request.rates.accelerator
    bound_per_s, bound_by = bound_of(result)
    moved = traffic(schedule.instructions)
    return {
        "model": model,
        "accelerator": machine.name,
        "batch": request.batch,
        "policy": request.options.policy,
        "overlap": schedule.overlap,
        "element_type": request.rates.element_type,
        "throughput_per_s": result.throughput_per_s,
        "latency_ms": result.latency_us / 1000,
        "bound_per_s": bound_per_s,
        "bound_by": bound_by,
        "ddr_bytes": moved["ddr"] * result.passes,
        "weights_ddr_bytes": moved["weights"] * result.passes,
        "utilisation": engine_use(
            schedule.placed, schedule.instructions, schedule.latency_us, schedule.rates
        ),
        "peak_bytes": peak_bytes(schedule),
        "groups": len(schedule.groups),
        "instances": len(schedule.order),
        "per_cluster": result.per_cluster,
        "iterations": result.iterations,
        "kernels": schedule.kernels,
        "instructions": len(schedule.instructions),
        "group_list": [group_json(group) for group in schedule.groups],
        "order": [instance.name for instance in schedule.order],
        "spills": [spill_json(spill) for spill in schedule.placed.spills],
        "recomputed_macs": recomputed_macs(result),
        "assumed": list(machine.assumed),
        "scheduling_s": result.scheduling_s,
        "max_abs_error": None,
        "modelled": True,
    }


def group_json(group: Group) -> dict[str, Any]:
    """Return a group as JSON data."""
    return {
        "name": group.name,
        "operators": list(group.operators),
        "factor": group.split.factor,
        "axis": group.split.axis,
        "fits": group.split.fits,
        "peak_bytes": group.peak_bytes,
    }


def spill_json(spill: Spill) -> dict[str, Any]:
    """Return what leaves a buffer as JSON data."""
    return {
        "tensor": spill.tensor,
        "from": spill.source,
        "to": spill.target,
        "bytes": spill.size_bytes,
        "rule": spill.rule,
    }


def bound_of(result: AccelerateResult) -> tuple[float, str]:
    """Return the inputs a second that no schedule beats, and the resource that binds."""
    request = result.request
    passes = request.share / result.per_cluster
    times = least_times_us(result.chip, request.rates, passes)
    binding = max(times, key=lambda name: times[name])
    return request.batch / (times[binding] * passes) * SECOND_US, binding


def traffic(instructions: Iterable[Instruction]) -> Counter[str]:
    """Return the bytes that cross DDR and ports, and those of weights, of one cluster and pass."""
    moved: Counter[str] = Counter()
    for instruction in instructions:
        over_ddr = instruction.engine.startswith("dma")
        moved["ddr" if over_ddr else "port"] += instruction.size_bytes
        if over_ddr and " weights " in instruction.name:
            moved["weights"] += instruction.size_bytes
    return moved


def peak_bytes(schedule: ClusterSchedule) -> dict[str, int]:
    """Return the most bytes of each buffer that storages and slots take at once."""
    used: Counter[tuple[str, int]] = Counter()
    for item in residencies_of(schedule.placed):
        for step in range(item.first_step, item.last_step + 1):
            used[item.buffer, step] += item.size_bytes
    peaks = {LOCAL: 0, SHARED: 0, DDR: 0}
    for (buffer, _), size_bytes in used.items():
        peaks[buffer] = max(peaks.get(buffer, 0), size_bytes)
    peaks[LOCAL] *= schedule.rates.accelerator.cores
    return peaks


def recomputed_macs(result: AccelerateResult) -> int:
    """Return the multiply-accumulates that instances compute again for their halo."""
    chip = result.chip
    matrix = [node.name for node in chip.operators if matrix_shape(chip, node.name) is not None]
    total = sum(work(chip, name) for name in matrix)
    computed = 0
    for instance in result.schedule.order:
        for name, box in instance.boxes.items():
            if matrix_shape(chip, name) is not None:
                computed += work(chip, name, box)
    return max(0, computed - total)
