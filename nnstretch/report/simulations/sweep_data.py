"""A sweep's journal as data: rows in groups of equal pool, policy and rate, means over trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile
from nnstretch.files.journal import decode_row, read_journal
from nnstretch.report.simulations.views import DecisionRow, SimulationView, SweepHead, SweepRow
from nnstretch.schedule.simulation.replications import Measured, measured

JOURNAL = "journal.jsonl"
DECISIONS = "decision_times.jsonl"
Key = tuple[str, str, float]
"""Pool, policy, rate."""
Metric = Callable[[SimulationView], float]


@dataclass(frozen=True, slots=True)
class SweepData:
    """What a sweep's journal says."""

    head: SweepHead
    rows: tuple[SweepRow, ...]
    groups: Mapping[Key, tuple[SimulationView, ...]]
    """Results of all trials."""
    decisions: tuple[DecisionRow, ...] = ()

    @property
    def pools(self) -> tuple[str, ...]:
        """Return the pools that have results, in order."""
        return tuple(dict.fromkeys(pool for pool, _, _ in self.groups))

    @property
    def policies(self) -> tuple[str, ...]:
        """Return the policies that have results, in order."""
        return tuple(dict.fromkeys(policy for _, policy, _ in self.groups))

    @property
    def rates(self) -> tuple[float, ...]:
        """Return the rates that have results, from the slowest."""
        return tuple(sorted({rate for _, _, rate in self.groups}))

    def mean(self, key: Key, metric: Metric) -> Measured | None:
        """Return the mean of a number over the trials of a group that have it: where it is no NaN.

        None where none has.
        """
        values = [metric(result) for result in self.groups[key]]
        known = [value for value in values if not math.isnan(value)]
        return measured(known) if known else None


def mean_latency_ms(result: SimulationView) -> float:
    """Return the mean latency of a trial, ms; NaN where nothing ended."""
    mean_ms = result.app_latency_ms.mean if has_ended(result) else None
    return math.nan if mean_ms is None else mean_ms


def p95_latency_ms(result: SimulationView) -> float:
    """Return the latency that 95 % of a trial do not exceed, ms; NaN where nothing ended."""
    p95_ms = result.app_latency_ms.p95 if has_ended(result) else None
    return math.nan if p95_ms is None else p95_ms


def has_ended(result: SimulationView) -> bool:
    """Return whether any instance of a trial has ended."""
    return any(app.ended for app in result.apps)


def sweep_data(
    rows: Sequence[Mapping[str, Any]], path: Path, decisions: Sequence[Mapping[str, Any]] = ()
) -> SweepData:
    """Return the data of a journal's lines, the first of which names the sweep.

    Raises BrokenFile for lines of something else.
    """
    if not rows:
        raise BrokenFile(f"no rows, {path}, needed is what simulate sweep writes")
    if "sweep" not in rows[0]:
        raise BrokenFile(f"no sweep, {path} line 1, needed is what simulate sweep writes")
    head: SweepHead = decode_row(SweepHead, rows[0], path, 1)
    decoded: list[SweepRow] = []
    groups: dict[Key, list[SimulationView]] = {}
    for number, line in enumerate(rows[1:], 2):
        row: SweepRow = decode_row(SweepRow, line, path, number)
        decoded.append(row)
        if row.result is not None:
            key = (pool_name(row.pool), row.policy, row.rate)
            groups.setdefault(key, []).append(row.result)
    beside = path.parent / DECISIONS
    times: list[DecisionRow] = []
    for number, line in enumerate(decisions, 1):
        times.append(decode_row(DecisionRow, line, beside, number))
    by_key = {key: tuple(results) for key, results in groups.items()}
    return SweepData(head, tuple(decoded), by_key, tuple(times))


def read_sweep_data(path: Path) -> SweepData:
    """Read a sweep's journal, and the decision times beside it. Raises BrokenFile."""
    decisions = read_journal(path.parent / DECISIONS)
    return sweep_data(read_journal(path), path, decisions)


def pool_name(pool: Mapping[str, int] | None) -> str:
    """Return a pool in words."""
    if pool is None:
        return "as described"
    return " + ".join(f"{count} {kind}" for kind, count in pool.items())
