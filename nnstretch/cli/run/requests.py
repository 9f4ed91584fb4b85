"""`nnstretch run --requests N`.

Many requests, and what goes wrong meanwhile, as text and as the contract's JSON.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, plans_by_name, processors_named
from nnstretch.bundle.variants import select_plan
from nnstretch.cli.common import progress_stages, warn_uncalibrated
from nnstretch.errors import BadInput, UnknownName
from nnstretch.schedule import Disturbances, Interference, Outage
from nnstretch.soc import Processor, Soc
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
        "--deadline-ms", type=float, metavar="D", help="after which a request ends with an error"
    )
    group.add_argument(
        "--busy",
        metavar="PROCESSOR@MS:MS[,...]",
        help="others take half of it from one time to another (emulated)",
    )
    group.add_argument(
        "--fail",
        metavar="PROCESSOR@MS[:MS][,...]",
        help="a processor is lost at a time, and there again at another",
    )


def count(text: str) -> int:
    """Parse a positive number of pieces. Raises ArgumentTypeError when it is none."""
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 1 to 1000000")
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
    busy = [
        Interference(name, at_us, until_us)
        for name, at_us, until_us in parse_spells("--busy", args.busy, ends=True)
    ]
    return Disturbances(
        tuple(busy),
        tuple(Outage(*spell) for spell in parse_spells("--fail", args.fail, ends=False)),
    )


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
            raise BadInput(f"{option} {word.strip()!r} says nothing, command line, write {form}")
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


def processors_of(
    manifests: dict[str, Manifest], soc: Soc | None, disturbances: Disturbances
) -> tuple[Processor, ...]:
    """Return the processors that plans use, and those that could take over.

    Raises UnknownName for a mishap of another.
    """
    subs = [sub for fail in manifests.values() for sub in fail.subgraphs]
    names = dict.fromkeys(
        [*(sub.processor for sub in subs), *(name for sub in subs for name in sub.predicted_us)]
    )
    for name in (
        *(fail.processor for fail in disturbances.busy),
        *(fail.processor for fail in disturbances.fails),
    ):
        if name not in names:
            raise UnknownName(
                f"unknown processor {name!r}, command line, the bundle knows {', '.join(names)}"
            )
    if soc is not None:
        return tuple(soc.processor(name) for name in names)
    return processors_named(next(iter(manifests.values())), names)


def run_load_test(
    args: argparse.Namespace, bundle: Bundle, soc: Soc | None, clock: str, inputs: Any
) -> tuple[dict[str, Any], Any, LoadTestResult]:
    """Run the load test; return the result, the output of the first plan and what happened.

    Raises BadInput when a processor without predicted times is to be slowed down.
    """
    from nnstretch.run.load_test import Workload, simulate_load
    from nnstretch.run.session import Session
    from nnstretch.schedule.multi_plan import is_adaptive

    disturbances = parse_disturbances(args)
    manifests = (
        plans_by_name(bundle.manifest)
        if args.plan is None
        else {args.plan: select_plan(bundle, args.plan).manifest}
    )
    adaptive = is_adaptive(manifests, None, bundle.name)
    manifests = manifests if adaptive else dict([next(iter(manifests.items()))])
    processors = processors_of(manifests, soc, disturbances)
    sessions = {
        name: Session(bundle, soc, clock=clock, backend=args.backend, plan=name)
        for name in manifests
    }
    first = next(iter(sessions.values()))
    if disturbances.busy and not first.emulated:
        raise BadInput(
            f"--busy {args.busy}, {bundle.name}, only a processor whose times are predicted can be"
            " slowed down: export --soc"
        )
    request_inputs = first.network.random_inputs(args.seed) if inputs is None else inputs
    deadline_us = inf if args.deadline_ms is None else args.deadline_ms * 1000
    load = Workload(
        args.requests, args.clients or 1, deadline_us, disturbances, traced=args.trace is not None
    )
    dilation = max(session.dilation for session in sessions.values())
    networks = {name: session.network for name, session in sessions.items()}
    backends, output = first.backends, first.network.run_sequential(request_inputs)
    for session in sessions.values():
        session.close()  # before a server starts, which has threads and cores of its own
    with progress_reporter(load.requests) as tell:
        if clock == "virtual":
            outcome = simulate_load(networks, processors, load, request_inputs, adaptive, tell)
        else:
            how: dict[str, Any] = {
                "emulated": first.emulated,
                "dilation": dilation,
                "backend": args.backend,
            }
            outcome = drive_requests(
                bundle,
                None if adaptive else next(iter(manifests)),
                processors,
                load,
                request_inputs,
                tell,
                **how,
            )
    result = {
        **result_of(first, outcome, load, dilation),
        "backend": backends,
        "adaptive": adaptive,
        "plan": args.plan,
    }
    result["processors"] = {
        p.name: use for p in processors if (use := processor_use(p.name, outcome))
    }
    return result, output, outcome


@contextmanager
def progress_reporter(requests: int) -> Iterator[Callable[[int], None]]:
    """Show a bar that is drawn a hundred times at most."""
    step = max(1, requests // 100)
    with progress_stages() as bar:
        yield lambda done: None if done % step else bar("requests", done, requests)


def drive_requests(
    bundle: Bundle,
    plan: str | None,
    processors: tuple[Processor, ...],
    load: Workload,
    inputs: Any,
    tell: Any,
    **how: Any,
) -> LoadTestResult:
    """Send requests to a server on the real clock; `how` are its own settings."""
    from nnstretch.run.load_test import LoadTestResult, drive_server
    from nnstretch.run.server import Server

    outcome = LoadTestResult(load.traced)
    with Server(
        bundle,
        processors,
        load.clients,
        disturbances=load.disturbances,
        plan=plan,
        ended=outcome.record,
        **how,
    ) as server:
        drive_server(server, outcome, load, inputs, how["dilation"], tell)
    return outcome


def result_of(
    session: Any, outcome: LoadTestResult, load: Workload, dilation: float
) -> dict[str, Any]:
    """Return the load test as JSON data."""
    from numpy import percentile

    from nnstretch.run.metrics import percentiles
    from nnstretch.schedule import critical_path_us, duration_as_placed

    answered = [
        end.latency_us for end in outcome.ends if not end.error and end.latency_us is not None
    ]
    errors = dict(sorted(outcome.errors.items()))
    times_us = percentiles(answered) | {"p95": float(percentile(answered, 95))} if answered else {}
    latency = {name: us / 1000 for name, us in times_us.items()} or None
    longest_us = (
        critical_path_us(session.tasks, duration_as_placed(session.durations_us))
        if session.emulated
        else None
    )
    work_us = (
        sum(duration_as_placed(session.durations_us)(task) for task in session.tasks)
        if session.emulated
        else None
    )
    return {
        **{"model": session.manifest.model, "mode": session.mode, "clock": session.clock},
        "timing": (
            "measured"
            if not session.emulated
            else "predicted"
            if session.clock == "virtual"
            else "emulated"
        ),
        **{
            "requests": load.requests,
            "clients": load.clients,
            "deadline_ms": None if load.deadline_us == inf else load.deadline_us / 1000,
        },
        **{"answered": len(answered), "cancelled": errors.pop("cancelled", 0), "errors": errors},
        "lost": load.requests - len(outcome.ends),
        "replaced": sum(end.replaced for end in outcome.ends),
        "plans": outcome.plans,
        "latency_ms": latency,
        "throughput_per_s": len(answered) * 1e6 / outcome.elapsed_us if outcome.elapsed_us else 0.0,
        "elapsed_ms": outcome.elapsed_us / 1000,
        "dilation": dilation,
        "critical_path_ms": None if longest_us is None else longest_us / 1000,
        "overlap_efficiency": (
            longest_us / 1000 / latency["median"]
            if longest_us and latency and latency["median"]
            else None
        ),
        "dispatch_overhead_us": None,
        "sequential_throughput_per_s": 1e6 / work_us if work_us else None,
        "max_abs_error": outcome.max_abs_error,
        "compared_with": "the sub-graphs of the same plan run one after another",
    }


def processor_use(processor: str, outcome: LoadTestResult) -> dict[str, float] | None:
    """Return busy time and utilization of a processor, None where it had no task."""
    busy_us = outcome.busy_us[processor]
    return (
        {
            "busy_ms": busy_us / 1000,
            "utilisation": busy_us / outcome.elapsed_us if outcome.elapsed_us else 0.0,
        }
        if busy_us
        else None
    )


def requests_trace(bundle: Bundle, outcome: LoadTestResult) -> tuple[Trace, Manifest]:
    """Return the trace of clients' requests, and a manifest with the sub-graphs of all plans."""
    from nnstretch.schedule.multi_plan import FIRST_PROBE

    subs = []
    for plan, manifest in plans_by_name(bundle.manifest).items():
        for sub in manifest.subgraphs:
            reads, writes = (
                tuple(replace(port, name=f"{plan}/{port.name}") for port in ports)
                for ports in (sub.inputs, sub.outputs)
            )
            subs.append(replace(sub, name=f"{plan}/{sub.name}", inputs=reads, outputs=writes))
    spans = []
    for span in outcome.spans:
        if span.task.request < FIRST_PROBE:
            shown = f"{span.task.plan}/{span.task.subgraph}"
            spans.append(replace(span, task=replace(span.task, subgraph=shown)))
    return Trace(tuple(spans)), replace(bundle.manifest, subgraphs=tuple(subs), alternatives=())


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
    ran = ", ".join(
        f"{name} {number}"
        for name, number in sorted(result["plans"].items(), key=lambda row: -row[1])
    )
    table.add_row("plans, adaptive" if result["adaptive"] else "plan", ran or "none")
    table.add_row("tasks that ran elsewhere than planned", str(result["replaced"]))
    table.add_row("largest difference from the sequential run", f"{result['max_abs_error']:.2g}")
    for name, use in result["processors"].items():
        table.add_row(f"{name} busy", f"{use['busy_ms']:.3f} ms, {use['utilisation']:.0%}")
    console.print(table)
    warn_uncalibrated(result, console)
