"""The page of what `tail` measured and what `simulate` said of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from speed import PAIR

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table

LOADS = (0.5, 0.7)
"""Shares of the time in which workers are busy."""
LIMIT = 0.15
SERVING = Path("docs/results/serving.md")
LEARNING = "eft"
"""The policy of which that is shown."""
HEADS = (
    *("load", "task", "policy", "p50 ms", "p95 ms", "rounds", "simulated", "rounds", "off by"),
    *("by these arrivals", *(f"{name.partition(':')[2]} p95 ms" for name in PAIR)),
    "Python's server, p95 ms",
)


@dataclass(frozen=True)
class Row:
    """One load under one policy in one round."""

    latencies_ms: tuple[np.ndarray, ...]
    """Of each network's inferences."""
    simulated: dict[str, float]
    """By a table of what tasks took under these arrivals."""
    foretold_p95_ms: float
    """By a table of what they took under other arrivals in turn with these."""
    tries: int
    """Times that it was measured until each block ended before the next."""

    def quantile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies of both networks."""
        return float(np.percentile(np.concatenate(self.latencies_ms), percent))


@dataclass(frozen=True)
class Capacity:
    """Inferences in a second that two workers do at most."""

    measured_per_s: float
    """Where all are there from the start."""
    simulated_per_s: float
    """The same, simulated."""
    arriving_per_s: float
    """By how long one keeps a worker busy that arrives at a drawn time."""


Rows = dict[tuple[float, str, str], list[Row]]
"""By load, granularity and policy."""


def off_by(rows: Sequence[Row]) -> float:
    """Return the relative error of the p95 by a table of these arrivals, the median of rounds."""
    return float(np.median([row.simulated["p95"] / row.quantile_ms(95) for row in rows])) - 1


def foretold_off_by(rows: Sequence[Row]) -> float:
    """Return the relative error of the p95 by a table of other arrivals, the median of rounds."""
    return float(np.median([row.foretold_p95_ms / row.quantile_ms(95) for row in rows])) - 1


def usual_error(rows: Rows) -> float:
    """Return how far the p95 of a round by a table of other arrivals is off, the median of all."""
    errors = [
        abs(row.foretold_p95_ms / row.quantile_ms(95) - 1)
        for listed in rows.values()
        for row in listed
    ]
    return float(np.median(errors))


def usual_change(rows: Rows) -> float:
    """Return how far the p95 of a round is off as a forecast of the next, the median of all."""
    changes: list[float] = []
    for listed in rows.values():
        p95_ms = [row.quantile_ms(95) for row in listed]
        changes += [abs(first / then - 1) for first, then in pairwise(p95_ms)]
    return float(np.median(changes))


def verdict(worst: float) -> str:
    """Return a relative error beside the limit."""
    kept = "kept" if abs(worst) <= LIMIT else "missed"
    return f"off by {worst:+.1%} at worst, the median of rounds; limit {LIMIT:.0%}, {kept}"


def servers_ms() -> dict[tuple[float, str], str]:
    """Return the p95 of Python's server by load and policy, as its page says it."""
    rows = re.findall(r"^\| ([\d.]+) \| (\w+) \| [\d.]+ \| ([\d.]+) \|", SERVING.read_text(), re.M)
    return {(float(load), policy): p95 for load, policy, p95 in rows}


def between(values: Sequence[float]) -> str:
    """Return the least and the largest, or the only one."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{min(values):.1f} to {max(values):.1f}"


def cells(
    key: tuple[float, str, str], rows: Sequence[Row], python_ms: dict[tuple[float, str], str]
) -> tuple[str, ...]:
    """Return a row of the table."""
    load, fine, policy = key
    p95_ms = [row.quantile_ms(95) for row in rows]
    foretold_ms = [row.foretold_p95_ms for row in rows]
    by_network = np.median(
        [[np.percentile(times, 95) for times in row.latencies_ms] for row in rows], axis=0
    )
    return (
        *(f"{load:g}", fine, policy, f"{np.median([row.quantile_ms(50) for row in rows]):.1f}"),
        *(f"{np.median(p95_ms):.1f}", between(p95_ms)),
        *(f"{np.median(foretold_ms):.1f}", between(foretold_ms), f"{foretold_off_by(rows):+.1%}"),
        f"{off_by(rows):+.1%}",
        *(f"{time_ms:.1f}" for time_ms in by_network),
        python_ms.get((load, policy), "-"),
    )


def apart(rows: Sequence[Row]) -> float:
    """Return how far the p95 of the rounds are apart, over their median."""
    p95_ms = [row.quantile_ms(95) for row in rows]
    return (max(p95_ms) - min(p95_ms)) / float(np.median(p95_ms))


SIMULATED = (
    "Inferences arrive in blocks of about {block}, with a pause after each in which all end; blocks of"
    " these arrivals and of others take turns, because the host's own speed changes within seconds."
    " Simulated: these arrivals, and tasks that take what a table says that the runtime recorded under"
    " the others (`simulate measure --record` makes such a table of a server's record): drawn"
    " from the times of each task alone, longer while the other core works, longer after a task that it"
    " does not need, and the more so the more inferences are under way, slow together in windows of"
    " 50 ms in which the host was slow, and from when a core that rests is given a task until that"
    " starts. `by these arrivals`: what a table of the very arrivals says."
    " Neither learns costs from what tasks take (`correct_costs`, `correction`)."
)
SERVER = (
    "Python's server: inside `serve` with ONNX Runtime, without HTTP, at the same shares of what it does"
    " with all requests there at once, on the host of [that page](serving.md)."
)


def page(
    rows: Rows,
    capacities: Sequence[Capacity],
    corrected_ms: Sequence[float],
    requests: int,
    block: int,
    emulated_factor: float | None,
) -> str:
    """Return the page of results; the factor is what emulated elements take over a core."""
    heads, table, server = (
        HEADS,
        [cells(key, rows[key], servers_ms()) for key in rows],
        [SERVER, ""],
    )
    where, emulation = "cores", ""
    if emulated_factor is not None:
        heads, table, server = HEADS[:-1], [row[:-1] for row in table], []
        where = "emulated elements"
        emulation = (
            f" Each element computes on a core and takes {emulated_factor:g} times what a core"
            " takes, whatever the host does meanwhile."
        )
    lines = [
        f"# Two networks in C++ on two {where}: latencies, and what `simulate` says of them",
        "",
        f"Made by `{command_line()}`: {requests} inferences a row, half of each network"
        f" ({' and '.join(PAIR)}), oneDNN, tasks of one fused layer or of a whole network; rounds of"
        f" the same drawing: {len(next(iter(rows.values())))}.{emulation} Loads are shares of the"
        " time in which two workers are busy, by how long an inference kept one busy right before, under the"
        " same policy and of arrivals, too. Latencies"
        " count from when an inference was due; percentiles are medians of the rounds."
        f" {SIMULATED.format(block=block)}",
        "",
        *markdown_table(heads, table),
        "",
        *server,
        *findings(rows, capacities, corrected_ms),
    ]
    return "\n".join([*lines, ""])


def findings(
    rows: Rows, capacities: Sequence[Capacity], corrected_ms: Sequence[float]
) -> list[str]:
    """Return what the table comes to, a line each."""
    worst = max(map(off_by, rows.values()), key=abs)
    foretold = max(map(foretold_off_by, rows.values()), key=abs)
    measured = between([each.measured_per_s for each in capacities])
    arriving = between([each.arriving_per_s for each in capacities])
    simulated = between([each.simulated_per_s for each in capacities])
    again_measured = sum(row.tries - 1 for listed in rows.values() for row in listed)
    spread = max(map(apart, rows.values()))
    again = (
        f"- p95 of the same drawing, from round to round: {spread:.0%} apart at most",
        f"- p95 of a round by a table of other arrivals: off by {usual_error(rows):.0%}, the median"
        f" of all; by what was measured in the round before: {usual_change(rows):.0%}",
    )
    return [
        f"- all at once: {measured} a second, simulated {simulated}; arriving one by one, of which"
        f" loads are shares: {arriving} at most",
        *(again if spread else ()),  # of several rounds
        f"- p95 at {LOADS[-1]:g} under {LEARNING} where costs are learnt from what tasks take:"
        f" {between(corrected_ms)} ms",
        f"- p95 by a table of other arrivals, which foretells: {verdict(foretold)}",
        f"- p95 by a table of the very arrivals, which checks scheduler and model: {verdict(worst)}",
        f"- rows measured again because a block had not ended when the next began: {again_measured}",
    ]
