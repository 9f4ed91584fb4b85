"""Run a bundle's branches at once, or one after another, on a virtual or a real clock.

    nnstretch run net.nns --soc mi9                                the predicted timeline, true
    numbers
    nnstretch run net.nns --soc mi9 --clock real --repeat 50       the same on threads, played in
    real time
    nnstretch run net.nns --input x.npy --output y.npy --trace t.json
    nnstretch run net.nns --backend openvino,gpu=openvino:GPU      who computes, for all processors
    and for some
    nnstretch run net.nns --plan gpu                               one of several plans in the
    bundle
    nnstretch run net.nns --mode pipeline --repeat 500             a stream of items through the
    stages of `nnstretch partition`
    nnstretch run net.nns --requests 200 --clients 4 --busy gpu@0:500 --fail dsp@800    many
    requests under trouble

The real clock slows the chip down by `dilation` where this host computes slower than the chip is
predicted to, and divides all times by it again; dispatch_overhead_us alone is the host's own.
x.npy holds real numbers in PyTorch's order for every bundle, an int8 one too, and so does y.npy.
max_abs_error compares with the sub-graphs run one after another on one thread.
Open the trace in ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.common import check_writable, warn_uncalibrated
from nnstretch.cli.run import pipeline as run_pipeline
from nnstretch.cli.run import requests as run_requests
from nnstretch.errors import BadInput, BrokenFile, UnknownName

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from nnstretch.bundle.bundle import Bundle
    from nnstretch.bundle.manifest import Manifest
    from nnstretch.run import Session
    from nnstretch.soc import Soc
    from nnstretch.trace import Trace

SUMMARY = "run a bundle's branches at once, on a virtual or a real clock"
REPEATS, SEQUENTIAL_REPEATS = 10, 10
NPY_ERRORS = (
    ValueError,
    OSError,
    EOFError,
    SyntaxError,
    MemoryError,
    OverflowError,
    TypeError,
    zipfile.BadZipFile,
)
LEAST_ROUNDS, MOST_ROUNDS = 10, 50
"""Of runs and sub-graphs alone, in turns."""
QUIET_S = 2.0
"""Shorter runs show no progress."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=Path, help="a .nns file of `nnstretch export`"
    )
    parser.add_argument(
        "--soc",
        help=(
            "chip: a name under latency_predictors/ or a folder; the bundle's own processors where"
            " absent"
        ),
    )
    parser.add_argument(
        "--mode",
        choices=("spatial", "sequential", "pipeline"),
        default="spatial",
        help="branches at once, one after another, or stages",
    )
    parser.add_argument(
        "--clock",
        choices=("real", "virtual"),
        help="virtual where the bundle has predicted times, else real",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME[,PROCESSOR=NAME...]",
        help="onnxruntime, litert, openvino[:DEVICE] or torch[:cuda]; by file where absent",
    )
    parser.add_argument(
        "--repeat", type=run_requests.count, metavar="N", help=f"how often to run ({REPEATS})"
    )
    parser.add_argument(
        "--plan",
        metavar="NAME",
        help="one of several; without it the main plan, and of many requests the best now",
    )
    parser.add_argument(
        "--input", type=Path, metavar="FILE.npy", help="random numbers where absent"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.npy", help="where to write the network's output"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="where to write the timeline, Chrome/Perfetto JSON",
    )
    parser.add_argument("--seed", type=_seed, default=0, help="of the random input (0)")
    run_requests.add_arguments(parser)
    run_pipeline.add_arguments(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data.

    Raises BadInput when two outputs are one file.
    """
    from nnstretch.bundle.bundle import read_bundle
    from nnstretch.bundle.manifest import MAIN, plans_by_name
    from nnstretch.run import Session
    from nnstretch.run.metrics import max_abs_error

    run_requests.check(args)
    run_pipeline.check(args)
    for path in (args.output, args.trace):
        check_writable(path, args.bundle, args.input)
    if args.output and args.trace and args.output.resolve() == args.trace.resolve():
        raise BadInput(f"--trace is {args.trace}, command line, it is --output, too")
    bundle = read_bundle(args.bundle)
    predicted = any(sub.predicted_us for sub in bundle.manifest.subgraphs)
    soc = _soc(args.soc, bundle.manifest)
    clock = args.clock or ("virtual" if predicted else "real")
    if args.requests is not None:
        return _run_requests(args, bundle, soc, clock)
    if args.mode == "pipeline":
        return _run_pipeline(args, bundle, soc)
    with Session(bundle, soc, args.mode, clock, backend=args.backend, plan=args.plan) as session:
        inputs = (
            session.network.random_inputs(args.seed) if args.input is None else _load(args.input)
        )
        _check_output(args.output, session.manifest)
        output, traces, late = _repeat(session, inputs, args.repeat or REPEATS)
        result = {
            "bundle": str(args.bundle),
            "plan": args.plan or MAIN,
            "plans": list(plans_by_name(bundle.manifest)),
        }
        result |= _times(session, traces, late)
        result |= _limit_text(session, inputs, result)
        if soc is not None:
            result |= {"calibrated": soc.calibrated, "provenance": soc.provenance}
        result["max_abs_error"] = max_abs_error(output, session.network.run_sequential(inputs))
        result["compared_with"] = "the sub-graphs of this bundle run one after another"
        sequential_us, result["sequential_is"] = _sequential_us(session, inputs)
        result["sequential_throughput_per_s"] = 1e6 / sequential_us if sequential_us else 0.0
        result["overlap"] = _overlap(session, inputs)
        if args.output:
            _save(args.output, output)
        if args.trace:
            _write_trace(args.trace, session, traces)
    return result


def _run_requests(
    args: argparse.Namespace, bundle: Bundle, soc: Soc | None, clock: str
) -> dict[str, Any]:
    inputs = None if args.input is None else _load(args.input)
    _check_output(args.output, bundle.manifest)
    result, output, outcome = run_requests.run_load_test(args, bundle, soc, clock, inputs)
    if args.output:
        _save(args.output, output)
    if args.trace:
        from nnstretch.run import write_perfetto

        trace, manifest = run_requests.requests_trace(bundle, outcome)
        write_perfetto(
            args.trace, {"predicted" if clock == "virtual" else "measured": trace}, manifest
        )
    about = {} if soc is None else {"calibrated": soc.calibrated, "provenance": soc.provenance}
    return {"bundle": str(args.bundle), **result, **about}


def _run_pipeline(args: argparse.Namespace, bundle: Bundle, soc: Soc | None) -> dict[str, Any]:
    if (
        args.output
        and bundle.manifest.pipeline is not None
        and len(bundle.manifest.pipeline.outputs) > 1
    ):
        raise BadInput(
            f"cannot write {args.output}, pipeline of {bundle.manifest.model}, it has several"
            " outputs, a .npy holds one"
        )
    result, output = run_pipeline.run_stream(
        args, bundle, soc, None if args.input is None else _load(args.input)
    )
    if args.output:
        _save(args.output, output)
    about = {} if soc is None else {"calibrated": soc.calibrated, "provenance": soc.provenance}
    return {"bundle": str(args.bundle), **result, **about}


def _times(session: Session, traces: list[Trace], late: int) -> dict[str, Any]:
    from nnstretch.run import measure

    measures = measure(
        session.manifest, session.tasks, traces, session.dilation, session.handovers_us
    )
    timing = (
        "measured"
        if not session.emulated
        else "predicted"
        if session.clock == "virtual"
        else "emulated"
    )
    return {
        **{
            "model": session.manifest.model,
            "mode": session.mode,
            "clock": session.clock,
            "timing": timing,
        },
        "backend": session.backends,
        "repeats": len(traces),
        "latency_ms": {name: time_us / 1e3 for name, time_us in measures.latency_us.items()},
        "virtual_ms": session.predicted().makespan_us / 1e3 if session.emulated else None,
        "dilation": session.dilation,
        "late_tasks": late,
        "critical_path_ms": measures.critical_path_us / 1e3,
        "overlap_efficiency": measures.overlap_efficiency,
        "dispatch_overhead_us": measures.dispatch_overhead_us,
        "throughput_per_s": measures.throughput_per_s,
        **{"replaced": 0, "lost": 0},
        "processors": {
            n: {"busy_ms": measures.busy_us[n] / 1e3, "utilisation": measures.utilisation[n]}
            for n in measures.busy_us
        },
    }


def _limit_text(session: Session, inputs: Any, result: dict[str, Any]) -> dict[str, Any]:
    """Return the latency beside the longest chain of sub-graphs, in microseconds.

    Each alone on its core, where times are measured.
    """
    latency_us, path_us, source = (
        result["latency_ms"]["median"] * 1e3,
        result["critical_path_ms"] * 1e3,
        "sub-graphs as they ran",
    )
    if session.clock == "real" and not session.emulated and session.mode == "spatial":
        from nnstretch.run.isolated_latency import latency_and_critical_path_us

        latency_us, path_us = latency_and_critical_path_us(
            session, inputs, max(LEAST_ROUNDS, min(result["repeats"], MOST_ROUNDS))
        )
        source = "each sub-graph alone on its core"
    return {
        **{
            "dispatch_us": result["dispatch_overhead_us"],
            "latency_us": latency_us,
            "critical_path_us": path_us,
        },
        **{"efficiency": path_us / latency_us if latency_us else 1.0, "critical_path_is": source},
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    if "requests" in result or result["mode"] == "pipeline":
        return (run_requests if "requests" in result else run_pipeline).show(result, console)
    times = result["latency_ms"]
    table = Table(
        title=(
            f"{result['model']}, {result['mode']}, {result['clock']} clock, times"
            f" {result['timing']}"
        ),
        show_header=False,
    )
    others = ", ".join(f"{name} {times[name]:.3f}" for name in ("min", "p90", "p99"))
    if len(result["plans"]) > 1:
        table.add_row("plan", f"{result['plan']}, of {', '.join(result['plans'])}")
    table.add_row("latency", f"median {times['median']:.3f} ms ({others})")
    if result["virtual_ms"] is not None:
        table.add_row("latency on the virtual clock", f"{result['virtual_ms']:.3f} ms")
    alone = f"{result['critical_path_us'] / 1e3:.3f} ms, efficiency {result['efficiency']:.3f}"
    table.add_row(f"critical path, {result['critical_path_is']}", alone)
    table.add_row("throughput", f"{result['throughput_per_s']:.1f} /s")
    table.add_row(
        f"throughput one after another, {result['sequential_is']}",
        f"{result['sequential_throughput_per_s']:.1f} /s",
    )
    table.add_row(
        "dispatch per meeting point", f"{result['dispatch_overhead_us']:.0f} us of this host"
    )
    table.add_row(
        "clock slowed down by",
        f"{result['dilation']:.2f}, {result['late_tasks']} tasks late in {result['repeats']} runs",
    )
    if result["overlap"]:
        overlap = result["overlap"]
        why = f": {overlap['why']}" if overlap["why"] else ""
        table.add_row(
            "two branches at once",
            f"{overlap['speedup']:.2f} of {overlap['possible']:.2f} possible, {overlap['cores']}"
            f" cores{why}",
        )
    table.add_row("largest difference from the sequential run", f"{result['max_abs_error']:.2g}")
    for name, use in result["processors"].items():
        table.add_row(
            f"{name} busy",
            f"{use['busy_ms']:.3f} ms, {use['utilisation']:.0%}, {result['backend'][name]}",
        )
    console.print(table)
    return warn_uncalibrated(result, console)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 0")
    return int(text)


def _soc(name: str | None, manifest: Manifest) -> Soc | None:
    """Return the chip, with the copies of processors that a pipeline names (`cpu1` of `cpu`)."""
    if name is None:
        return None
    from nnstretch.bundle.manifest import plans_by_name
    from nnstretch.predict import load_soc
    from nnstretch.soc_instances import instances_named_by

    return instances_named_by(
        load_soc(name),
        dict.fromkeys(
            sub.processor for view in plans_by_name(manifest).values() for sub in view.subgraphs
        ),
    )


def _repeat(session: Session, inputs: Any, count: int) -> tuple[Any, list[Trace], int]:
    """Run several times; return the last output, every trace and how many tasks were late.

    Progress goes to standard error.
    """
    from rich.console import Console
    from rich.progress import track

    output, traces, late = session.run(inputs), [session.trace], session.late
    expected_s = count * session.latency_us * session.dilation / 1e6
    console = Console(stderr=True)
    for _ in track(
        range(count - 1),
        "running",
        console=console,
        transient=True,
        disable=expected_s < QUIET_S or not console.is_terminal,
    ):
        output = session.run(inputs)
        traces.append(session.trace)
        late += session.late
    return output, traces, late


def _overlap(session: Session, inputs: Any) -> dict[str, Any] | None:
    """Do workers truly run at once? Asked where times are this host's own and there is more than
    one worker.
    """
    from dataclasses import asdict

    if session.clock != "real" or session.emulated or len(session.processors) < 2:
        return None
    overlap = session.overlap(inputs)
    return None if overlap is None else asdict(overlap)


def _sequential_us(session: Session, inputs: Any) -> tuple[float, str]:
    """Run one input with the branches one after another; return its microseconds.

    Predicted where anything is, else measured on this host.
    """
    from nnstretch.run.metrics import mean_latency_us

    with session.one_after_another() as alone:
        if alone.emulated:
            return alone.predicted().makespan_us, "predicted"
        alone.run(inputs)
        return mean_latency_us(_repeat(alone, inputs, SEQUENTIAL_REPEATS)[1]), "measured"


def _load(path: Path) -> np.ndarray:
    import numpy as np

    if not path.is_file():
        raise UnknownName(f"unknown input {path}, no such file, expected a .npy array")
    try:
        array = np.load(path, allow_pickle=False)
    except NPY_ERRORS as error:
        raise BrokenFile(
            f"broken input {path}, not a .npy array of plain numbers,"
            f" {error or type(error).__name__}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise BrokenFile(f"broken input {path}, an archive of arrays, expected one .npy array")
    return array


def _write_trace(path: Path, session: Session, traces: list[Trace]) -> None:
    """Write the prediction, and beside it the run of median latency where there was a real
    clock.
    """
    from nnstretch.run import write_perfetto
    from nnstretch.run.metrics import median_trace

    forecast = {"predicted": session.predicted()} if session.emulated else {}
    played = {"measured": median_trace(traces)} if session.clock == "real" else {}
    write_perfetto(
        path, forecast | played, session.manifest, "emulated" if session.emulated else "measured"
    )


def _check_output(path: Path | None, manifest: Manifest) -> None:
    """Refuse before the work what could not be written after it."""
    if path and len(manifest.outputs) > 1:
        names = [port.name for port in manifest.outputs]
        raise BadInput(
            f"cannot write {path}, {manifest.model} has {len(names)} outputs ({', '.join(names)}),"
            " a .npy holds one"
        )


def _save(path: Path, output: np.ndarray) -> None:
    import numpy as np

    from nnstretch.files.atomic import atomic_write

    if not (
        isinstance(output, np.ndarray | np.generic | int | float)
        and np.asarray(output).dtype.kind in "biufc"
    ):
        raise BadInput(
            f"cannot write {path}, output of the network, a .npy holds numbers and this is"
            f" {type(output).__name__}"
        )
    with atomic_write(path) as aside, aside.open("wb") as file:
        np.save(file, output, allow_pickle=False)
