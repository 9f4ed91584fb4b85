"""A hundred thousand small items through four stages: order, losses, memory, errors, cost.

Stages are ONNX files that add a number to a 3x3 map, and Python functions that do; nothing else is
done, so all that is measured is the way through. An item's cost at a stage is all time over items
and stages, the stage's own call included; its overhead is how long after it could have begun it did
(median of the last items), and the cost without the call.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

# The chain of small stages that tests build, too, lies in tests/support.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
from support.pipeline_bundles import chain

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import StageFailed
from nnstretch.files.atomic import write_text
from nnstretch.run.pipelines.item_trace import spans_by_step, start_delays_us
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.schedule.pipeline_graph import in_flight_limit

STAGES = 4
EVERY = 1000
"""Of this many items the last fails, where any does."""
WANTED_US = 40.0
WARM = 0.1
"""Share of the items after which memory has to stay as it is."""


@dataclass(frozen=True)
class Soaked:
    """What one stream said."""

    name: str
    cost_us: float
    """Of an item at a stage."""
    call_us: float
    """Of that the stage's own work."""
    late_us: float
    out_of_order: int
    wrong: int
    lost: int
    failed: int
    misplaced: int
    """Errors of items that should not fail, or that do not name their stage and their cause."""
    grown_kib: int
    """Resident memory from a tenth of the items to the end."""


def resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def soaked(name: str, python: tuple[int, ...], items: int, fails: bool) -> Soaked:
    expected = float(sum(range(1, STAGES + 1)))
    inputs = [np.full((3, 3), value, np.float32) for value in range(100)]
    functions = {f"stages:m{k}": adding(k + 1, fails and k == python[0]) for k in python}
    seen = wrong = disorder = failed = misplaced = warm_kib = 0
    with Pipeline(chain(STAGES, python), functions) as pipeline:
        began_s = time.perf_counter()
        for result in pipeline.stream(
            inputs[item % 100] if not (fails and item % EVERY == EVERY - 1) else inputs[99]
            for item in range(items)
        ):
            disorder += result.item != seen
            seen += 1
            due = fails and result.item % EVERY == EVERY - 1
            if result.error is not None:
                failed += 1
                good = (
                    isinstance(result.error, StageFailed)
                    and result.error.stage == f"m{python[0]}"
                    and isinstance(result.error.__cause__, ValueError)
                )
                misplaced += not (due and good)
            else:
                wrong += float(result.outputs[0, 0]) != result.item % 100 + expected or due
            if seen == int(items * WARM):
                gc.collect()
                warm_kib = resident_kib()
        elapsed_s = time.perf_counter() - began_s
        gc.collect()
        grown_kib = resident_kib() - warm_kib
        call_us = (
            sum(stage.busy_us / max(1, stage.items) for stage in pipeline.statistics()) / STAGES
        )
        late_us = median(
            start_delays_us(
                pipeline.stage_graph,
                spans_by_step(pipeline.trace(), pipeline.pipeline, pipeline.stage_graph),
            )
        )
    return Soaked(
        name,
        elapsed_s * 1e6 / items / STAGES,
        call_us,
        late_us,
        disorder,
        wrong,
        items - seen,
        failed,
        misplaced,
        grown_kib,
    )


def adding(number: int, fails: bool) -> Callable[[np.ndarray], np.ndarray]:
    calls = 0

    def add(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if fails and calls % EVERY == 0:
            raise ValueError(f"call {calls}")
        return x + np.float32(number)

    return add


def lead(seconds: float) -> tuple[int, int]:
    """Most items that a producer was ahead of a reader of one a millisecond, and the bound."""
    ahead = 0
    with Pipeline(chain(STAGES)) as pipeline:
        pushed, until_s = 0, time.perf_counter() + seconds

        def items():  # type: ignore[no-untyped-def]
            nonlocal pushed
            while time.perf_counter() < until_s:
                pushed += 1
                yield np.zeros((3, 3), np.float32)

        for result in pipeline.stream(items()):
            ahead = max(ahead, pushed - result.item)
            time.sleep(1e-3)
        return ahead, in_flight_limit(pipeline.stage_graph) + 16


HEADS = (
    *("stages", "cost us", "of that the call", "begun late us", "lost", "out of order", "wrong"),
    *("failed", "wrongly so", "memory grown KiB"),
)


def cells(stream: Soaked) -> list[object]:
    times_us = (f"{us:.1f}" for us in (stream.cost_us, stream.call_us, stream.late_us))
    faults = (stream.lost, stream.out_of_order, stream.wrong, stream.failed, stream.misplaced)
    return [stream.name, *times_us, *faults, f"{stream.grown_kib:+d}"]


def overhead(stream: Soaked) -> str:
    overhead_us = stream.cost_us - stream.call_us
    verdict = "met" if max(overhead_us, stream.late_us) <= WANTED_US else "missed"
    return (
        f"- {stream.name}: overhead {overhead_us:.1f} us an item and stage, wanted at most"
        f" {WANTED_US:g}: {verdict}"
    )


def page(items: int, streams: list[Soaked], ahead: tuple[int, int]) -> str:
    notes = f"""
Cost: all time over items and stages, microseconds. Begun late: how long after it could have begun an item did at a stage; median.
Where items fail, every {EVERY}th raises; nothing else may, and the error names its stage and holds the original.
"""
    return "\n".join(
        [
            *("# A pipeline soaked", "", f"    {command_line()}", ""),
            *(f"{items:,} items each through {STAGES} stages; two cores.", ""),
            *markdown_table(HEADS, map(cells, streams)),
            notes,
            *map(overhead, streams),
            f"- A reader of one item a millisecond: the producer was at most {ahead[0]} items ahead,"
            f" bound {ahead[1]}",
            "",
        ]
    )


CASES = (
    ("ONNX", (), False),
    ("Python", (0, 1, 2, 3), False),
    ("ONNX, one in Python that fails", (1,), True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="FILE.md")
    parser.add_argument("--items", type=int, default=100_000)


def run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    check_writable(out)
    streams = [soaked(name, python, args.items, fails) for name, python, fails in CASES]
    text = page(args.items, streams, lead(5.0))
    write_text(out, text)
    print(text)
    return int(any(s.lost or s.out_of_order or s.wrong or s.misplaced for s in streams))
