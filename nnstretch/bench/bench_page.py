"""Warnings, the Markdown page and the JSON of a `bench`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from nnstretch.bench.contenders import CONCURRENT, BenchResult
from nnstretch.bench.interleaved import LEAST
from nnstretch.bench.markdown import markdown_table
from nnstretch.bench.statistics import NOISY
from nnstretch.run.overlap_check import GOOD

COLUMNS = ("backend", "what", "median ms", "quartiles ms", "speed-up", "95% interval")


def doubts_about(outcomes: Iterable[BenchResult]) -> list[str]:
    """Return what makes numbers doubtful: workers that do not overlap, times that vary, too few
    rounds.
    """
    doubts = []
    for outcome in outcomes:
        name, overlap = f"{outcome.backend} {outcome.precision}", outcome.overlap
        if overlap is not None and overlap.speedup < GOOD * overlap.possible:
            doubts.append(
                f"{name}: two workers at once are worth {overlap.speedup:.2f} of"
                f" {overlap.possible:.2f} possible, {overlap.why or 'unexplained'}"
            )
        if outcome.rounds < LEAST:
            doubts.append(
                f"{name}: {outcome.rounds} rounds, too few for an interval of 95%, it is the range"
                f" that was seen, give {LEAST} or more"
            )
        if noisy := [row for row in outcome.rows if row.latency_us.relative > NOISY]:
            worst = max(noisy, key=lambda row: row.latency_us.relative)
            doubts.append(
                f"{name}: a noisy machine, quartiles of '{worst.name}' are"
                f" {worst.latency_us.relative:.0%} apart"
            )
    return doubts


def table_rows(result: BenchResult) -> list[tuple[str, ...]]:
    """Return a line for each contender."""
    lines: list[tuple[str, ...]] = []
    for row in result.rows:
        latency_us, speedup = row.latency_us, row.speedup
        lines.append(
            (
                f"{result.backend} {result.precision}",
                row.name,
                f"{latency_us.median / 1e3:.3f}",
                f"{latency_us.low / 1e3:.3f} to {latency_us.high / 1e3:.3f}",
                f"{speedup.median:.2f}x",
                f"{speedup.low:.2f} to {speedup.high:.2f}",
            )
        )
    return lines


def describe_limit(result: BenchResult) -> str:
    """Return how near the branches come to what is possible."""
    return (
        f"{result.backend} {result.precision}: critical path {result.critical_path_us / 1e3:.3f}"
        f" ms, {result.efficiency:.3f} of the latency of {CONCURRENT}; {result.dispatch_us:.0f} us"
        " per meeting point"
    )


def markdown_page(
    title: str,
    command: str,
    facts: Sequence[str],
    outcomes: Sequence[BenchResult],
    skipped: Mapping[str, str],
) -> str:
    """Return the comparison as Markdown."""
    lines = [f"# {title}", "", f"    {command}", "", *(f"- {fact}" for fact in facts), ""]
    lines += markdown_table(COLUMNS, chain.from_iterable(map(table_rows, outcomes)))
    lines += ["", *(f"- {describe_limit(outcome)}" for outcome in outcomes)]
    lines += [f"- not measured: {name}, {why}" for name, why in skipped.items()]
    lines += [f"- warning: {warning}" for warning in doubts_about(outcomes)]
    return "\n".join(lines) + "\n"


def outcome_json(result: BenchResult) -> dict[str, Any]:
    """Return a contender as `bench --json` has it, times in milliseconds."""
    contenders: dict[str, dict[str, Any]] = {}
    for row in result.rows:
        contenders[row.name] = {
            "median_ms": row.latency_us.median / 1e3,
            "q1_ms": row.latency_us.low / 1e3,
            "q3_ms": row.latency_us.high / 1e3,
            "spread": row.latency_us.relative,
            "speedup": row.speedup.median,
            "speedup_interval": [row.speedup.low, row.speedup.high],
        }
    overlap = result.overlap
    return {
        **{"backend": result.backend, "precision": result.precision, "contenders": contenders},
        **{
            "critical_path_ms": result.critical_path_us / 1e3,
            "efficiency": result.efficiency,
            "dispatch_us": result.dispatch_us,
        },
        "overlap": (
            None
            if overlap is None
            else {"speedup": overlap.speedup, "possible": overlap.possible, "why": overlap.why}
        ),
    }
