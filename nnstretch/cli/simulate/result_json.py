"""The result of `nnstretch simulate` as JSON data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnstretch.schedule.simulation.latencies import Latencies
from nnstretch.schedule.simulation.replications import measured
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import (
    NO_TIME_US,
    ApplicationRun,
    SimulationResult,
)


def result_json(
    settings: SimulationSettings, results: Sequence[SimulationResult]
) -> dict[str, Any]:
    """Return means over replications, with their 95% intervals where there are several."""
    count = len(settings.applications)
    apps = [app_json([result.runs[number] for result in results]) for number in range(count)]

    def mean(value: Callable[[SimulationResult], float]) -> float:
        return mean_of(results, value)

    everything = [all_latencies(result) for result in results]
    latency_ms, interval_ms = latency_json(everything)
    tasks = sum(result.tasks for result in results)
    decided_us = sum(result.decisions.total_s for result in results) * 1e6
    return {
        "policy": settings.policy,
        "queueing": settings.queueing,
        "seed": settings.seed,
        "replications": len(results),
        "apps": apps,
        "makespan_ms": mean(lambda result: result.makespan_us) / 1000,
        "app_latency_ms": latency_ms,
        "app_latency_interval_95_ms": interval_ms,
        "throughput_per_s": mean(throughput_per_s),
        "scheduling_us": {
            "total": decided_us / len(results),
            "per_task": decided_us / tasks if tasks else 0.0,
            "rounds": mean(lambda result: result.decisions.rounds),
        },
        "utilisation": {
            processor.name: mean(partial(utilisation, processor=processor.name))
            for processor in settings.processors
        },
        "tasks": tasks / len(results),
        "jain_fairness": known_mean([jain_fairness(result) for result in results]),
        "antt": known_mean([antt(result) for result in results]),
        "stp": mean(stp),
        "open": open_json(results),
        "energy_mj": energy_mj(settings, results),
    }


def mean_of(
    results: Sequence[SimulationResult], value: Callable[[SimulationResult], float]
) -> float:
    """Return the mean of a value over replications."""
    return measured([value(result) for result in results]).mean


def open_json(results: Sequence[SimulationResult]) -> dict[str, Any]:
    """Return how many instances were open at once; over time, of the first replication."""
    return {
        "mean": mean_of(results, lambda result: result.mean_open),
        "most": max(result.open_over_time.most for result in results),
        "by_littles_law": mean_of(results, by_littles_law),
        "over_time": {
            "step_ms": results[0].open_over_time.step_us / 1000,
            "mean": results[0].open_over_time.means(),
        },
    }


def app_json(runs: Sequence[ApplicationRun]) -> dict[str, Any]:
    """Return one application; instances are counted over all replications."""
    latency_ms, interval_ms = latency_json([run.latencies for run in runs])
    ended = sum(run.latencies.count for run in runs)
    return {
        "name": runs[0].application.name,
        "arrived": sum(run.arrived for run in runs),
        "ended": ended,
        "refused": sum(run.refused for run in runs),
        "dropped": sum(run.dropped for run in runs),
        "deadline_misses": sum(run.missed for run in runs),
        "latency_ms": latency_ms,
        "latency_interval_95_ms": interval_ms,
        "execution_ms": sum(run.execution_us for run in runs) / ended / 1000 if ended else 0.0,
        "cumulative_ms": sum(run.cumulative_us for run in runs) / ended / 1000 if ended else 0.0,
        "alone_ms": runs[0].alone_us / 1000,
        "slowdown": known_mean([run.slowdown for run in runs]),
    }


def latency_json(
    latencies: Sequence[Latencies],
) -> tuple[dict[str, float | None], dict[str, list[float]] | None]:
    """Return mean and percentiles, and their intervals; None for one replication.

    Of the replications in which anything ended; None for each where that is none of them.
    """
    summaries = [sample.summary_ms() for sample in latencies]
    means: dict[str, float | None] = dict.fromkeys(summaries[0])
    intervals: dict[str, list[float]] = {}
    for name in means:
        known = [time_ms for summary in summaries if (time_ms := summary[name]) is not None]
        if not known:
            continue
        value = measured(known)
        means[name] = value.mean
        if value.half_width is not None:
            intervals[name] = [value.mean - value.half_width, value.mean + value.half_width]
    return means, intervals or None


def all_latencies(result: SimulationResult) -> Latencies:
    """Return the latencies of all applications."""
    together = Latencies()
    for run in result.runs:
        together.merge(run.latencies)
    return together


def throughput_per_s(result: SimulationResult) -> float:
    """Return instances that ended, per second of the run."""
    ended = sum(run.latencies.count for run in result.runs)
    return ended * 1e6 / result.last_event_us if result.last_event_us > NO_TIME_US else 0.0


def utilisation(result: SimulationResult, processor: str) -> float:
    """Return the share of the makespan in which a processor works."""
    return result.busy_us[processor] / result.makespan_us if result.makespan_us else 0.0


def known_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean over replications; None where one of them has no value."""
    known = [value for value in values if value is not None]
    return measured(known).mean if len(known) == len(values) else None


def slowdowns(result: SimulationResult) -> list[float] | None:
    """Return the slowdowns of applications that arrived; None where one of them never ended."""
    known: list[float] = []
    for run in result.runs:
        if run.slowdown is not None:
            known.append(run.slowdown)
        elif run.arrived:
            return None
    return known or None


def jain_fairness(result: SimulationResult) -> float | None:
    """Return Jain's index of the applications' slowdowns: 1 where all suffer alike.

    None where one of them never ended, or none took any time.
    """
    known = slowdowns(result)
    squares = sum(slowdown**2 for slowdown in known or ())
    if known is None or not squares:
        return None
    return sum(known) ** 2 / (len(known) * squares)


def antt(result: SimulationResult) -> float | None:
    """Return the average normalized turnaround time: the mean slowdown of applications.

    None where one of them never ended.
    """
    known = slowdowns(result)
    return None if known is None else sum(known) / len(known)


def stp(result: SimulationResult) -> float:
    """Return the system throughput: how many applications progress as if they were alone."""
    return sum(1 / run.slowdown for run in result.runs if run.slowdown)


def by_littles_law(result: SimulationResult) -> float:
    """Return rate x mean latency: the mean number of open instances, where none was given up."""
    total_us = sum(run.latencies.total_us for run in result.runs)
    return total_us / result.last_event_us if result.last_event_us else 0.0


def energy_mj(settings: SimulationSettings, results: Sequence[SimulationResult]) -> float | None:
    """Return what processors use above the idle chip, mJ; None where a power is not known."""
    energy = 0.0
    for processor in settings.processors:
        busy_us = sum(result.busy_us[processor.name] for result in results) / len(results)
        if processor.power_w is None:
            if busy_us:
                return None
            continue
        energy += processor.power_w * busy_us / 1000
    return energy
