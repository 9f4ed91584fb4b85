"""`nnstretch run --requests N`.

Many requests, and what goes wrong meanwhile, as text and as the contract's JSON.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.bundle import Bundle
from nnstretch.cli.arguments import finite_number, whole_number
from nnstretch.cli.progress import progress_stages, warn_uncalibrated
from nnstretch.errors import BadInput
from nnstretch.schedule import Disturbances, Interference, Outage
from nnstretch.soc import Soc
from nnstretch.task import WorkKey
from nnstretch.trace import Trace

if TYPE_CHECKING:
    from rich.console import Console

    from nnstretch.run.load_test import LoadTestResult, Workload

SPELL = re.compile(r"([^@,\s]+)@(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?")
LONGEST_MS = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add these arguments to the verb's parser."""
    group = parser.add_argument_group(
        "many requests", "times in milliseconds of the chip, from the first request on"
    )
    group.add_argument(
        "--requests",
        type=count,
        metavar="N",
        help="send N requests of one input instead of repeating it alone",
    )
    group.add_argument(
        "--clients",
        type=count,
        metavar="K",
        help="how many ask at once, each again when it is answered (1)",
    )
    group.add_argument(
        "--deadline-ms",
        type=finite_number,
        metavar="D",
        help="after which a request ends with an error",
    )
    group.add_argument(
        "--busy",
        metavar="PROCESSOR@MS:MS[,...]",
        help="halve a processor's speed from one time to another (emulated)",
    )
    group.add_argument(
        "--fail",
        metavar="PROCESSOR@MS[:MS][,...]",
        help="a processor is lost at a time, and there again at another",
    )


def count(text: str) -> int:
    """Parse a positive number of pieces. Raises ArgumentTypeError when it is none."""
    if not 1 <= whole_number(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a count from 1 to 1000000")
    return int(text)


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    alone = {
        "--clients": args.clients,
        "--deadline-ms": args.deadline_ms,
        "--busy": args.busy,
        "--fail": args.fail,
    }
    if args.requests is None:
        if options := [f"{option} {value}" for option, value in alone.items() if value is not None]:
            raise BadInput(
                f"{options[0]} without --requests, command line, it is about many requests"
            )
        return
    if args.repeat is not None or args.mode != "spatial":
        wrong = f"--repeat {args.repeat}" if args.repeat is not None else f"--mode {args.mode}"
        raise BadInput(
            f"{wrong} with --requests, command line, requests come one after another and their"
            " branches run at once"
        )
    if args.deadline_ms is not None and not 0 < args.deadline_ms <= LONGEST_MS:
        raise BadInput(
            f"--deadline-ms is {args.deadline_ms:g}, command line, needed are more than 0 ms, up to"
            f" {LONGEST_MS:g}"
        )
    parse_disturbances(args)


def parse_disturbances(args: argparse.Namespace) -> Disturbances:
    """Parse --busy and --fail. Raises BadInput for a specification that is none."""
    busy = starmap(Interference, parse_spells("--busy", args.busy, ends=True))
    outages = starmap(Outage, parse_spells("--fail", args.fail, ends=False))
    return Disturbances(tuple(busy), tuple(outages))


def parse_spells(option: str, text: str | None, ends: bool) -> list[tuple[str, float, float]]:
    """Return processor, from and to in microseconds; to is infinity where it is left out.

    Raises BadInput when an entry cannot be read.
    """
    spells = []
    for word in text.split(",") if text is not None else ():
        match = SPELL.fullmatch(word.strip())
        form = (
            "PROCESSOR@MS:MS, as in gpu@0:50"
            if ends
            else "PROCESSOR@MS or PROCESSOR@MS:MS, as in dsp@30"
        )
        if match is None or (ends and match[3] is None):
            raise BadInput(f"{option} {word.strip()!r} cannot be read, command line, write {form}")
        at_us, until_us = (
            float(match[2]) * 1000,
            inf if match[3] is None else float(match[3]) * 1000,
        )
        if max(at_us, until_us if until_us < inf else 0.0) > LONGEST_MS * 1000:
            raise BadInput(
                f"{option} {word.strip()!r} is too late, command line, times go up to"
                f" {LONGEST_MS:g} ms"
            )
        if not at_us < until_us:
            raise BadInput(
                f"{option} {word.strip()!r} is no stretch of time, command line, it has to end"
                " after it starts"
            )
        spells.append((match[1], at_us, until_us))
    return spells


def run_load_test(
    args: argparse.Namespace, bundle: Bundle, soc: Soc | None, clock: str, inputs: Any
) -> tuple[dict[str, Any], Any, LoadTestResult]:
    """Run the load test; return its JSON, the output of the first plan and what happened.

    Raises BadInput where a processor without predicted times is to be slowed down.
    """
    from nnstretch.run.load_test import Workload, load_test

    workload = Workload(
        args.requests,
        args.clients or 1,
        inf if args.deadline_ms is None else args.deadline_ms * 1000,
        parse_disturbances(args),
        traced=args.trace is not None,
    )
    with progress_reporter(workload.requests) as progress:
        result = load_test(
            bundle,
            workload,
            soc,
            clock,
            inputs=inputs,
            seed=args.seed or 0,
            backend=args.backend,
            plan=args.plan,
            progress=progress,
            where="command line",
        )
    about = {"adaptive": result.served.adaptive, "plan": args.plan}
    used = {"processors": processors_json(result)}
    output = next(iter(result.expected.values()))
    return result_json(workload, result) | about | used, output, result


@contextmanager
def progress_reporter(requests: int) -> Iterator[Callable[[int], None]]:
    """Show a bar that is drawn a hundred times at most."""
    step = max(1, requests // 100)
    with progress_stages() as bar:
        yield lambda done: None if done % step else bar("requests", done, requests)


def result_json(workload: Workload, result: LoadTestResult) -> dict[str, Any]:
    """Return the load test as JSON data."""
    served = result.served
    errors = dict(sorted(result.errors.items()))
    latency_us = result.latency_us
    median_us = latency_us.get("median")
    path_us = served.critical_path_us
    deadline_us = workload.deadline_us
    return {
        "model": served.main.manifest.model,
        "mode": "spatial",
        "clock": served.clock,
        "timing": served.timing,
        "requests": workload.requests,
        "clients": workload.clients,
        "deadline_ms": None if deadline_us == inf else deadline_us / 1000,
        "answered": len(result.answered_us),
        "cancelled": errors.pop("cancelled", 0),
        "errors": errors,
        "lost": workload.requests - len(result.ends),
        "replaced": result.replaced,
        "plans": result.plans,
        "latency_ms": {name: us / 1000 for name, us in latency_us.items()} or None,
        "throughput_per_s": result.throughput_per_s,
        "elapsed_ms": result.elapsed_us / 1000,
        "not_reached": not_reached(workload.disturbances, result.elapsed_us),
        "dilation": served.dilation,
        "critical_path_ms": None if path_us is None else path_us / 1000,
        "overlap_efficiency": path_us / median_us if path_us and median_us else None,
        "dispatch_overhead_us": None,
        "sequential_throughput_per_s": 1e6 / served.work_us if served.work_us else None,
        "max_abs_error": result.max_abs_error,
        "compared_with": "the sub-graphs of the same plan run one after another",
        "backend": served.backends,
    }


def not_reached(disturbances: Disturbances, elapsed_us: float) -> list[str]:
    """Return what was to begin after the last request ended, as `--busy` and `--fail` take it.

    What begins at that very time may be what ended it.
    """
    busy = [
        f"{each.processor}@{each.start_us / 1000:g}:{each.end_us / 1000:g}"
        for each in disturbances.busy
        if each.start_us > elapsed_us
    ]
    fails = [
        f"{each.processor}@{each.at_us / 1000:g}"
        for each in disturbances.fails
        if each.at_us > elapsed_us
    ]
    return busy + fails


def processors_json(result: LoadTestResult) -> dict[str, dict[str, float]]:
    """Return busy time and utilization of the processors that had a task."""
    rows: dict[str, dict[str, float]] = {}
    for processor in result.served.processors:
        name = processor.name
        if busy_us := result.busy_us[name]:
            rows[name] = {"busy_ms": busy_us / 1000, "utilisation": result.utilization(name)}
    return rows


def write_trace(path: Path, result: LoadTestResult) -> None:
    """Write what the requests of clients did, probes left out."""
    from nnstretch.run.perfetto import TraceLabels, manifest_labels, write_traces
    from nnstretch.schedule.multi_plan import is_probe

    spans = tuple(span for span in result.spans if not is_probe(span.task))
    roles: dict[WorkKey, tuple[str, int]] = {}
    for name, network in result.served.networks.items():
        roles |= manifest_labels(network.manifest, name).roles
    labels = TraceLabels(result.served.main.manifest.model, roles)
    name = "predicted" if result.served.clock == "virtual" else "measured"
    timing = "emulated" if result.served.emulated else "measured"
    write_traces(path, {name: Trace(spans)}, labels, timing)


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    table = Table(
        title=f"{result['model']}, {result['clock']} clock, times {result['timing']}",
        show_header=False,
    )
    table.add_row("requests", f"{result['requests']} from {result['clients']} clients")
    table.add_row("answered", str(result["answered"]))
    for what, number in result["errors"].items():
        table.add_row(what, str(number))
    table.add_row("cancelled, lost", f"{result['cancelled']}, {result['lost']}")
    if times := result["latency_ms"]:
        others = ", ".join(f"{name} {times[name]:.3f}" for name in ("min", "p90", "p95", "p99"))
        table.add_row("latency", f"median {times['median']:.3f} ms ({others})")
    table.add_row("throughput", f"{result['throughput_per_s']:.1f} /s")
    most_first = sorted(result["plans"].items(), key=lambda row: -row[1])
    ran = ", ".join(f"{name} {number}" for name, number in most_first)
    table.add_row("plans, adaptive" if result["adaptive"] else "plan", ran or "none")
    table.add_row("tasks that ran elsewhere than planned", str(result["replaced"]))
    error = result["max_abs_error"]
    compared = "nothing to compare" if error is None else f"{error:.2g}"
    table.add_row("largest difference from the sequential run", compared)
    for name, use in result["processors"].items():
        table.add_row(f"{name} busy", f"{use['busy_ms']:.3f} ms, {use['utilisation']:.0%}")
    console.print(table)
    if result["not_reached"]:
        console.print(
            f"[yellow]not reached:[/yellow] {', '.join(result['not_reached'])}, all had ended"
            f" after {result['elapsed_ms']:g} ms"
        )
    warn_uncalibrated(result, console)
