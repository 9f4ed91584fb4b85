"""`nnstretch run --mode pipeline`: a stream of items through a bundle's pipeline."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import check_predicted_for
from nnstretch.cli.progress import warn_uncalibrated
from nnstretch.cli.run.array_files import files_of, read_inputs, write_outputs
from nnstretch.errors import BadInput, UnknownName, one_line
from nnstretch.pipeline import CALL
from nnstretch.soc import Soc

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nnstretch.run.results.stream_json import StreamRequest

ITEMS = 100


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
        help="a Python stage of the bundle that may be imported from here and run",
    )
    group.add_argument(
        "--on-error",
        choices=("continue", "stop"),
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


def run_stream(args: argparse.Namespace, bundle: Bundle, soc: Soc | None) -> dict[str, Any]:
    """Stream items through the pipeline; write --output and --trace."""
    from nnstretch.run import write_perfetto
    from nnstretch.run.results.stream_json import measure_stream, simulate_stream, stream_traces

    sources, outputs = array_files(args, bundle)
    request, clock = stream_request(args, bundle, soc, sources)
    if clock == "virtual":
        result = simulate_stream(request)
        timing = None
    else:
        result = measure_stream(request, item_progress(request.items))
        timing = "emulated" if request.emulated else "measured"
    if args.trace is not None:
        write_perfetto(args.trace, stream_traces(request, result), bundle.manifest, timing)
    write_outputs(outputs, result.output)
    return {"bundle": str(args.bundle), **result.json}


def array_files(
    args: argparse.Namespace, bundle: Bundle
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the files of a pipeline's inputs and outputs. Raises BadInput."""
    manifest = bundle.manifest
    inputs, outputs = manifest.input_names, manifest.output_names
    if manifest.pipeline is not None:
        inputs = tuple(item.name for item in manifest.pipeline.inputs)
        outputs = manifest.pipeline.outputs
    return files_of(args, inputs, outputs, f"the pipeline of {manifest.model}")


def stream_request(
    args: argparse.Namespace, bundle: Bundle, soc: Soc | None, sources: Mapping[str, Path]
) -> tuple[StreamRequest, str]:
    """Return what is to be streamed, and the clock."""
    from nnstretch.run.pipelines.sequential import SequentialPipeline
    from nnstretch.run.results.npy_files import read_npy
    from nnstretch.run.results.stream_json import StreamRequest

    check_predicted_for(
        str(args.bundle), bundle.manifest.predicted_for, None if soc is None else soc.name
    )
    inputs = read_inputs(sources, read_npy) if sources else None
    functions = load_functions(args.allow)
    sequential = SequentialPipeline(bundle, functions, args.backend)
    predicted = all(sub.processor in sub.predicted_us for sub in bundle.manifest.subgraphs)
    request = StreamRequest(
        bundle,
        sequential,
        sequential.random_inputs(args.seed or 0) if inputs is None else inputs,
        args.repeat or ITEMS,
        {} if soc is None else {processor.name: processor for processor in soc.processors},
        functions,
        args.backend,
        args.on_error or "continue",
        emulated=predicted and soc is not None,
    )
    return request, args.clock or ("virtual" if predicted else "real")


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
    console.print(stage_table(result))
    for line in [*rate_lines(result), *warning_lines(result)]:
        console.print(line)
    error = "results are no arrays: not compared"
    if result["max_abs_error"] is not None:
        error = f"{result['max_abs_error']:.2g}"
    console.print(f"largest difference from the stages in turn: {error}")
    warn_uncalibrated(result, console)


def stage_table(result: dict[str, Any]) -> Table:
    """Return a table of the stages."""
    from rich.table import Table

    clock = f"{result['clock']} clock, times {result['timing']}"
    title = f"{result['model']}, pipeline of {len(result['stages'])}, {clock}"
    times = ("an item, ms", "of it copies", "share, ms", "busy", "starved ms", "blocked ms")
    table = Table("stage", "on", *times, "failed", title=title)
    for stage in result["stages"]:
        busy = stage["share_ms"] / result["period_ms"] if result["period_ms"] else 0.0
        waits = [stage["starved_ms"], stage["blocked_ms"]]
        table.add_row(
            stage["name"],
            " | ".join(stage["processors"]),
            f"{stage['service_ms']:.3f}",
            f"{stage['copies_ms']:.3f}" if stage["copies_ms"] else "",
            f"{stage['share_ms']:.3f}",
            f"{busy:.0%}",
            *("" if wait_ms is None else f"{wait_ms:.1f}" for wait_ms in waits),
            str(stage["failed"]),
        )
    return table


def rate_lines(result: dict[str, Any]) -> list[str]:
    """Return lines about throughput, bottleneck, baseline and latency."""
    predicted = ""
    if (predicted_ms := result["predicted_bottleneck_ms"]) is not None:
        predicted = f", predicted for {result['predicted_for']} {predicted_ms:.3f}"
    throughput_per_s = result["throughput_per_s"]
    sequential_per_s = result["sequential_throughput_per_s"]
    gain = f", {throughput_per_s / sequential_per_s:.2f}x" if sequential_per_s else ""
    times = result["latency_ms"]
    return [
        f"a result every {result['period_ms']:.3f} ms, {throughput_per_s:.1f} /s,"
        f" {result['items']} items",
        f"slowest stage {result['bottleneck_ms']:.3f} ms{predicted}: {result['efficiency']:.1%} of"
        f" what it allows; balance of the network's stages {result['balance']:.3f}",
        f"stages in turn: {sequential_per_s:.1f} /s ({result['sequential_is']}){gain}",
        f"one item takes {times['median']:.3f} ms (p99 {times['p99']:.3f}); waiting at a stage"
        f" costs {result['dispatch_overhead_us']:.0f} us",
    ]


def warning_lines(result: dict[str, Any]) -> list[str]:
    """Return lines about a slowed clock, stages without times, and failures."""
    lines = []
    if result["dilation"] != 1.0:
        late = f"{result['late_items']} of {result['items']} items late"
        lines.append(f"clock slowed down by {result['dilation']:.2f}, {late}")
    if result.get("untimed"):
        stages = ", ".join(result["untimed"])
        lines.append(f"[yellow]Python stages count nothing on this clock:[/yellow] {stages}")
    if result["failed"]:
        lines.append(f"[red]{result['failed']} items failed:[/red] {result['first_error']}")
    return lines
