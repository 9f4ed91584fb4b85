"""`nnstretch run --mode pipeline`.

A stream of items through a bundle's pipeline, as text and as the contract's JSON.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.bundle import Bundle
from nnstretch.cli.common import warn_uncalibrated
from nnstretch.errors import BadInput, Cancelled, UnknownName, one_line
from nnstretch.pipeline import CALL
from nnstretch.soc import Processor, Soc

if TYPE_CHECKING:
    from rich.console import Console

    from nnstretch.run.pipelines.item_buffer import ItemResult
    from nnstretch.run.pipelines.metrics import PipelineMetrics, SequentialPipeline
    from nnstretch.run.pipelines.pipeline import Pipeline
    from nnstretch.run.pipelines.workers import StageStatistics

ITEMS, IN_TURN = 100, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add these arguments to the verb's parser."""
    group = parser.add_argument_group(
        "pipeline",
        "--mode pipeline streams --repeat N items (100) through the stages of a bundle of"
        " `nnstretch partition`",
    )
    group.add_argument(
        "--allow",
        metavar="MODULE:FUNCTION",
        action="append",
        default=None,
        help="a Python stage of the bundle that may be imported from here and run",
    )
    group.add_argument(
        "--on-error",
        choices=("continue", "stop"),
        default=None,
        help="what an item does on which a stage raises (continue)",
    )


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    if args.mode != "pipeline":
        alone = {"--allow": args.allow, "--on-error": args.on_error}
        if options := [option for option, value in alone.items() if value is not None]:
            raise BadInput(
                f"{options[0]} with --mode {args.mode}, command line, it is about --mode pipeline"
            )
        return
    if args.plan is not None:
        raise BadInput(
            f"--plan {args.plan} with --mode pipeline, command line, a pipeline is of a bundle's"
            " main plan"
        )
    for name in args.allow or ():
        if not CALL.fullmatch(name):
            raise BadInput(f"--allow is {name[:80]!r}, command line, write MODULE:FUNCTION")


def load_functions(names: list[str] | None) -> dict[str, Callable[..., object]]:
    """Import the functions of Python stages, from the working folder, too. Raises UnknownName."""
    functions: dict[str, Callable[..., object]] = {}
    for name in names or ():
        module, _, function = name.partition(":")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            function_object = getattr(importlib.import_module(module), function)
        except Exception as error:
            raise UnknownName(
                f"unknown function {name}, --allow, {type(error).__name__}: {one_line(error)}"
            ) from error
        if not callable(function_object):
            raise UnknownName(
                f"unknown function {name}, --allow, it is no function but"
                f" {type(function_object).__name__}"
            )
        functions[name] = function_object
    return functions


def run_stream(
    args: argparse.Namespace, bundle: Bundle, soc: Soc | None, inputs: Any
) -> tuple[dict[str, Any], Any]:
    """Run the pipeline; return everything that is printed, and the outputs of one item. Writes
    --trace.
    """
    from nnstretch.run.pipelines.metrics import SequentialPipeline

    functions = load_functions(args.allow)
    chain = SequentialPipeline(bundle, functions, args.backend)
    known = {} if soc is None else {processor.name: processor for processor in soc.processors}
    predicted = all(sub.processor in sub.predicted_us for sub in bundle.manifest.subgraphs)
    clock, items = args.clock or ("virtual" if predicted else "real"), args.repeat or ITEMS
    item = chain.random_inputs(args.seed) if inputs is None else inputs
    if clock == "virtual":
        return run_virtual(args, bundle, chain, item, items, known)
    return run_real(
        args, bundle, chain, item, items, known, functions, emulated=predicted and soc is not None
    )


def run_virtual(
    args: argparse.Namespace,
    bundle: Bundle,
    chain: SequentialPipeline,
    item: Any,
    items: int,
    known: dict[str, Processor],
) -> tuple[dict[str, Any], Any]:
    """Play the pipeline on the virtual clock and return result and output."""
    from nnstretch.run.metrics import max_abs_error
    from nnstretch.run.pipelines.metrics import predict_stream, simulate_pipeline, step_us

    trace, output = simulate_pipeline(chain, item, items, known)
    alone_us = sum(min(times) for times in step_us(bundle.manifest, known).values())
    busy_us = {name: trace.trace.busy_us(name) / items for name in trace.trace.processors}
    rows = [
        {
            "items": items,
            "failed": 0,
            "late": 0,
            "busy_ms": None,
            "starved_ms": None,
            "blocked_ms": None,
        }
        for _ in chain.pipeline.stages
    ]
    result = numbers(args, bundle, trace, known, rows, busy_us) | {
        "clock": "virtual",
        "timing": "predicted",
        "dilation": 1.0,
        "sequential_throughput_per_s": 1e6 / alone_us if alone_us else 0.0,
        "sequential_is": "predicted",
        "max_abs_error": max_abs_error(output, chain.run(item)) if is_numbers(output) else None,
        "untimed": [stage.name for stage in chain.pipeline.stages if stage.call],
    }
    write_trace(
        args.trace,
        bundle,
        {"predicted": predict_stream(bundle.manifest, min(items, 64), known)},
        None,
    )
    return result, output


def run_real(
    args: argparse.Namespace,
    bundle: Bundle,
    chain: SequentialPipeline,
    item: Any,
    items: int,
    known: dict[str, Processor],
    functions: dict[str, Callable[..., object]],
    emulated: bool,
) -> tuple[dict[str, Any], Any]:
    """Stream on the real clock: as fast as this host can, or where a chip is named at its pace.

    Raises the error of the first item that failed when failures stop the stream.
    """
    from nnstretch.run.metrics import max_abs_error
    from nnstretch.run.pipelines.metrics import (
        measure_pipeline,
        pacing_for,
        predict_stream,
        processors_busy_us,
        step_us,
    )
    from nnstretch.run.pipelines.pipeline import Pipeline
    from nnstretch.schedule.cpu_affinity import affinity

    pace = pacing_for(chain, item, known, len(affinity() or (0,))) if emulated else None
    expected, errors, failures = chain.run(item), [0.0], list[Exception]()
    compared = is_numbers(expected)
    if emulated:
        alone_us, source = (
            sum(min(times) for times in step_us(bundle.manifest, known).values()),
            "predicted",
        )
    else:
        alone_us, source = chain.latency_s(item, IN_TURN) * 1e6, "measured"
    with (
        Pipeline(
            bundle, functions, backend=args.backend, on_error=args.on_error or "continue", pace=pace
        ) as pipeline,
        item_progress(items) as tick,
    ):

        def heard(result: ItemResult) -> None:
            tick()
            if result.error is not None:
                failures.append(result.error)
            elif compared:
                errors[0] = max(errors[0], max_abs_error(result.outputs, expected))

        pipeline.run(item)
        try:
            metrics = measure_pipeline(pipeline, item, items, heard)
        except Cancelled as error:
            raise (failures[0] if failures else error) from None
        statistics = pipeline.statistics()
    rows = [
        row_of(statistic, pipeline)
        for statistic, step in zip(statistics, pipeline.stage_graph, strict=True)
        if not step.part
    ]
    busy_us = {
        name: time_us / pipeline.dilation
        for name, time_us in processors_busy_us(statistics).items()
    }
    result = numbers(args, bundle, metrics, known, rows, busy_us) | {
        "clock": "real",
        "timing": "emulated" if emulated else "measured",
        "dilation": pipeline.dilation,
        "sequential_throughput_per_s": 1e6 / alone_us if alone_us else 0.0,
        "sequential_is": source,
        "max_abs_error": errors[0] if compared else None,
        "failed": len(failures),
        "first_error": str(failures[0]) if failures else None,
    }
    forecast = (
        {"predicted": predict_stream(bundle.manifest, min(items, 64), known)} if emulated else {}
    )
    write_trace(
        args.trace,
        bundle,
        forecast | {"measured": metrics.trace},
        "emulated" if emulated else "measured",
    )
    return result, expected


def is_numbers(output: Any) -> bool:
    """Return whether an output is arrays, or arrays by name; other outputs are compared with
    nothing.
    """
    import numpy as np

    values = output.values() if isinstance(output, dict) else [output]
    return all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in values)


def row_of(statistics: StageStatistics, pipeline: Pipeline) -> dict[str, Any]:
    """Return the statistics of a stage as JSON data."""
    scale = 1e3 * pipeline.dilation
    return {
        "items": statistics.items,
        "failed": statistics.failed,
        "late": statistics.late,
        "busy_ms": statistics.busy_us / scale,
        "starved_ms": statistics.starved_us / scale,
        "blocked_ms": statistics.blocked_us / scale,
    }


def numbers(
    args: argparse.Namespace,
    bundle: Bundle,
    metrics: PipelineMetrics,
    known: dict[str, Processor],
    rows: list[dict[str, Any]],
    busy_us: dict[str, float],
) -> dict[str, Any]:
    """Return the numbers that both clocks have."""
    from nnstretch.bundle.pipeline_view import subgraphs_of_stage
    from nnstretch.run.backends.registry import choose_backends, describe_choice
    from nnstretch.run.metrics import percentiles
    from nnstretch.run.pipelines.metrics import predicted_bottleneck_us

    pipeline = bundle.manifest.pipeline
    assert pipeline is not None
    forecast_us, shares_us = predicted_bottleneck_us(bundle.manifest, known), metrics.shares_us
    stages = [
        {
            "name": stage.name,
            "processors": list(
                stage.replica_names
                or dict.fromkeys(
                    sub.processor for sub in subgraphs_of_stage(stage, bundle.manifest)
                )
                or (stage.name,)
            ),
        }
        | {
            "service_ms": metrics.latency_us[stage.name] / 1e3,
            "copies_ms": metrics.copies_us[stage.name] / 1e3,
        }
        | {"share_ms": shares_us[stage.name] / 1e3, **row}
        for stage, row in zip(pipeline.stages, rows, strict=True)
    ]
    return {
        "model": bundle.manifest.model,
        "mode": "pipeline",
        "items": len(metrics.ended_us),
        "backend": describe_choice(choose_backends(args.backend, bundle), bundle.manifest),
        "latency_ms": {
            name: time_us / 1e3 for name, time_us in percentiles(metrics.latencies_us).items()
        },
        "period_ms": metrics.period_us / 1e3,
        "bottleneck_ms": metrics.bottleneck_us / 1e3,
        "predicted_bottleneck_ms": None if forecast_us is None else forecast_us / 1e3,
        "predicted_for": None if forecast_us is None else bundle.manifest.soc,
        "balance": metrics.balance,
        "efficiency": metrics.efficiency,
        "critical_path_ms": sum(metrics.service_us.values()) / 1e3,
        "overlap_efficiency": metrics.efficiency,
        "dispatch_overhead_us": metrics.overhead_us,
        "throughput_per_s": 1e6 / metrics.period_us if metrics.period_us else 0.0,
        "stages": stages,
        **{"replaced": 0, "lost": 0, "failed": 0},
        "processors": {
            name: {
                "busy_ms": time_us / 1e3,
                "utilisation": time_us / metrics.period_us if metrics.period_us else 0.0,
            }
            for name, time_us in busy_us.items()
        },
        "compared_with": "the stages of this bundle run one after another",
    }


def write_trace(
    path: Path | None, bundle: Bundle, traces: dict[str, Any], timing: str | None
) -> None:
    """Write the trace where a path is given."""
    if path is not None:
        from nnstretch.run import write_perfetto

        write_perfetto(path, traces, bundle.manifest, timing)


@contextmanager
def item_progress(items: int) -> Iterator[Callable[[], None]]:
    """Show a bar over the items."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("streaming", total=items)
        yield lambda: progress.advance(bar)


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    title = (
        f"{result['model']}, pipeline of {len(result['stages'])}, {result['clock']} clock, times"
        f" {result['timing']}"
    )
    table = Table(
        "stage",
        "on",
        "an item, ms",
        "of it copies",
        "share, ms",
        "busy",
        "starved ms",
        "blocked ms",
        "failed",
        title=title,
    )
    for stage in result["stages"]:
        busy = stage["share_ms"] / result["period_ms"] if result["period_ms"] else 0.0
        waits = (
            "" if stage[name] is None else f"{stage[name]:.1f}"
            for name in ("starved_ms", "blocked_ms")
        )
        row = (stage["name"], " | ".join(stage["processors"]), f"{stage['service_ms']:.3f}")
        copies = f"{stage['copies_ms']:.3f}" if stage["copies_ms"] else ""
        table.add_row(
            *row, copies, f"{stage['share_ms']:.3f}", f"{busy:.0%}", *waits, str(stage["failed"])
        )
    console.print(table)
    predicted = (
        ""
        if result["predicted_bottleneck_ms"] is None
        else f", predicted for {result['predicted_for']} {result['predicted_bottleneck_ms']:.3f}"
    )
    console.print(
        f"a result every {result['period_ms']:.3f} ms, {result['throughput_per_s']:.1f} /s,"
        f" {result['items']} items"
    )
    console.print(
        f"slowest stage {result['bottleneck_ms']:.3f} ms{predicted}: {result['efficiency']:.1%} of"
        f" what it allows; balance {result['balance']:.3f}"
    )
    times, alone = result["latency_ms"], result["sequential_throughput_per_s"]
    gain = f", {result['throughput_per_s'] / alone:.2f}x" if alone else ""
    console.print(f"stages in turn: {alone:.1f} /s ({result['sequential_is']}){gain}")
    console.print(
        f"one item takes {times['median']:.3f} ms (p99 {times['p99']:.3f}); waiting at a stage"
        f" costs {result['dispatch_overhead_us']:.0f} us"
    )
    if result["dilation"] != 1.0:
        console.print(
            f"clock slowed down by {result['dilation']:.2f},"
            f" {sum(stage['late'] for stage in result['stages'])} items late"
        )
    if result.get("untimed"):
        console.print(
            "[yellow]Python stages count nothing on this clock:[/yellow]"
            f" {', '.join(result['untimed'])}"
        )
    if result["failed"]:
        console.print(f"[red]{result['failed']} items failed:[/red] {result['first_error']}")
    error = (
        "results are no arrays: not compared"
        if result["max_abs_error"] is None
        else f"{result['max_abs_error']:.2g}"
    )
    console.print(f"largest difference from the stages in turn: {error}")
    warn_uncalibrated(result, console)
