"""Serve networks over HTTP: requests are scheduled as they arrive, by the policies of `simulate`.

    nnstretch serve net.nns                             # one bundle, at http://127.0.0.1:8000
    nnstretch serve a.nns torchvision:resnet18          # several: bundles, networks, plans
    nnstretch serve workload.yaml --policy heft_rt      # a workload: limits, deadlines, priorities
    nnstretch serve net.nns --socket net.sock           # on a Unix socket instead
    nnstretch serve workload.yaml --record r.jsonl      # arrivals and tasks, line by line
    nnstretch serve workload.yaml --log logs            # CEDR's log files, in memory until the end
    nnstretch serve workload.yaml --soc mi9             # on an emulated chip

A workload as `simulate` reads it; `arrivals` may be absent, for clients bring their requests:

    pool: {cpu: 2}                     cores of this host; all of them where absent
    factors: {cpu1: 2.0}               cpu1 is made so many times slower
    policy: eft                        see nnstretch schedule --policies
    applications:
    - {name: detect, model: net.nns, deadline_ms: 60, priority: 1, queue_limit: 8}
    - {name: classify, model: 'torchvision:mobilenet_v2', cut: 4}

Clients speak the Open Inference Protocol (KServe V2), as tritonclient does, with JSON or binary
tensors; the parameters `timeout` (us, becomes the deadline) and `priority` (1 goes first, 50 is the
application's own) are heeded. What one may ask, on a Unix socket:

    curl --unix-socket net.sock http://localhost/v2/health/ready
    curl --unix-socket net.sock http://localhost/v2/models/net
    curl --unix-socket net.sock http://localhost/metrics

A full queue answers 503 at once, with Retry-After. A client that goes away cancels its request.
SIGTERM or Ctrl-C lets what was accepted be answered, refuses what is new, and prints what became of
all; with a second one open requests get 503, and it ends once what computes has ended.
docs/serving.md has more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import finite_number, seed_of, whole_number
from nnstretch.cli.output_path import check_apart, check_folder, check_writable
from nnstretch.cli.serve.show import show as show
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    import socket

    from nnstretch.cli.serve.applications import LoadedApplications
    from nnstretch.files.workload.service_record import RecordedRequest
    from nnstretch.files.workload.workload import WorkloadFile
    from nnstretch.serve.network_server import NetworkServer

DEFAULT_PORT, LARGEST_PORT = 8000, 65535
UNHEEDED = {
    "durations": "tasks take what they take",
    "costs": "they are measured here, or the chip's",
    "handover_ms": "this host takes its own time",
}
"""Settings of a workload for `simulate` alone, and why."""
MOST_BODY_MB, MOST_BODIES_MB, MIB = 4096, 1 << 30, 1 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add = parser.add_argument
    add(
        "models",
        metavar="WORKLOAD.yaml|BUNDLE",
        nargs="+",
        help="a workload, or bundles, networks and plans, each under its file's name",
    )
    add("--soc", help="emulate this chip, instead of the workload's own: a name or a folder")
    add("--policy", metavar="NAME", help="instead of the workload's own; see schedule --policies")
    add("--seed", type=seed_of, metavar="N", help="instead of the workload's own")
    add("--backend", metavar="NAME", help="who computes, as in run --backend")
    add("--host", help="address to listen on (127.0.0.1: this machine only)")
    add("--port", type=whole_number, metavar="N", help="0 for a free one (8000)")
    socket_help = "listen on a Unix socket that only its user may open, instead of a port"
    add("--socket", type=Path, metavar="FILE", help=socket_help)
    add("--record", type=Path, metavar="FILE.jsonl", help="write every request as it ends")
    add("--log", type=Path, metavar="FOLDER", help="CEDR's logs at the end, in memory until then")
    add(
        "--max-body-mb",
        type=finite_number,
        default=64.0,
        metavar="MB",
        help="longest request, in MiB (64); a longer one is refused and not read to its end",
    )
    add(
        "--max-bodies-mb",
        type=finite_number,
        default=256.0,
        metavar="MB",
        help="all open requests together, in MiB (256); what would be more gets 503",
    )
    add(
        "--body-timeout-s",
        type=finite_number,
        default=30.0,
        metavar="S",
        help="until all of a request must be there (30)",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput."""
    from nnstretch.cli.progress import progress_stages
    from nnstretch.cli.simulate.workload_files import check_no_input
    from nnstretch.schedule.policies.table import find_policy

    check(args)
    workload, folder = workload_of(args)
    find_policy(workload.policy)
    check_no_input(workload, folder, args.record)
    with listening(args) as (listener, address):
        with progress_stages() as tell:
            loaded, factors = load(args, workload, folder, tell)
        return serve(args, loaded, factors, listener, address)


def check(args: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is loaded. Raises BadInput."""
    for option, value in (("--host", args.host), ("--port", args.port)):
        if args.socket is not None and value is not None:
            raise BadInput(f"{option} {value} beside --socket, command line, name one of the two")
    if args.port is not None and not 0 <= args.port <= LARGEST_PORT:
        raise BadInput(f"--port is {args.port}, command line, a port is 0 to {LARGEST_PORT}")
    if not 0 < args.max_body_mb <= MOST_BODY_MB:
        raise BadInput(
            f"--max-body-mb is {args.max_body_mb:g}, command line, needed is more than 0, up to"
            f" {MOST_BODY_MB}"
        )
    if args.max_bodies_mb > MOST_BODIES_MB:
        raise BadInput(
            f"--max-bodies-mb is {args.max_bodies_mb:g}, command line, needed are at most"
            f" {MOST_BODIES_MB}"
        )
    if args.max_bodies_mb < args.max_body_mb:
        raise BadInput(
            f"--max-bodies-mb is {args.max_bodies_mb:g}, command line, one request alone may have"
            f" {args.max_body_mb:g}, --max-body-mb"
        )
    if args.body_timeout_s <= 0:
        raise BadInput(f"--body-timeout-s is {args.body_timeout_s:g}, command line, above 0 it is")
    check_writable(args.record, *args.models)
    check_folder(args.log, "--log")
    check_apart(args.record, args.log)


def workload_of(args: argparse.Namespace) -> tuple[WorkloadFile, Path]:
    """Return the workload, and the folder of its files. Raises BadInput, or as reading it does."""
    from nnstretch.files.workload.workload import ApplicationSettings, WorkloadFile
    from nnstretch.files.workload.workload_yaml import read_workload

    first = args.models[0]
    if len(args.models) == 1 and is_workload(first):
        workload, folder = read_workload(first), Path(first).parent
        tell_unheeded(workload, first)
    else:
        names: dict[str, str] = {}
        for model in args.models:
            name = model_name(model)
            if name in names:
                raise BadInput(f"{names[name]} and {model}, command line, both are called {name}")
            names[name] = model
        settings = [ApplicationSettings(name, model=model) for name, model in names.items()]
        workload, folder = WorkloadFile(tuple(settings)), Path()
    options = {"policy": args.policy, "seed": args.seed, "soc": args.soc}
    changes = {key: value for key, value in options.items() if value is not None}
    return replace(workload, **changes), folder


def tell_unheeded(workload: WorkloadFile, path: str) -> None:
    """Say on standard error which settings of a workload a server does not heed."""
    for setting in fields(workload):
        if setting.name in UNHEEDED and getattr(workload, setting.name) != setting.default:
            why = UNHEEDED[setting.name]
            print(f"{setting.name} not heeded, workload {path}, serve: {why}", file=sys.stderr)


def is_workload(path: str) -> bool:
    """Return whether a YAML file is a workload and no plan."""
    from nnstretch.files.read import MOST_TEXT_BYTES, read_text
    from nnstretch.files.strict_yaml import parse_yaml

    if not path.endswith((".yaml", ".yml")):
        return False
    content = parse_yaml(read_text(Path(path), "workload", MOST_TEXT_BYTES), f"workload {path}")
    return not (isinstance(content, dict) and "segments" in content)


def model_name(model: str) -> str:
    """Return what a model is called: its file without folder and ending, or the name itself."""
    name = model.rpartition(":")[2] if not Path(model).exists() else Path(model).stem
    return name.replace("/", "_")


@contextmanager
def listening(args: argparse.Namespace) -> Iterator[tuple[socket.socket, str]]:
    """Listen before anything long begins; yield the socket and its address for people."""
    from nnstretch.serve.http_server import tcp_listener, unix_listener

    if args.socket is not None:
        with unix_listener(args.socket) as listener:
            yield listener, f"Unix socket {args.socket}"
        return
    wanted = DEFAULT_PORT if args.port is None else args.port
    with tcp_listener(args.host or "127.0.0.1", wanted) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        yield listener, f"http://{shown}:{port}"


def load(
    args: argparse.Namespace, workload: WorkloadFile, folder: Path, tell: Any
) -> tuple[LoadedApplications, dict[str, float]]:
    """Load all networks, and measure or predict what they cost."""
    from nnstretch.cli.loaded_model import load_soc_of
    from nnstretch.cli.serve.applications import load_applications
    from nnstretch.cli.serve.host_pool import factors_of, host_pool

    soc = load_soc_of(workload.soc) if workload.soc else None
    pool = host_pool(workload, soc)
    factors = factors_of(workload, pool)
    loaded = load_applications(workload, pool, factors, soc, folder, args.backend, tell)
    return loaded, dict(factors)


def serve(
    args: argparse.Namespace,
    loaded: LoadedApplications,
    factors: dict[str, float],
    listener: socket.socket,
    address: str,
) -> dict[str, Any]:
    """Serve until a signal; return what became of all requests."""
    from nnstretch import __version__
    from nnstretch.cli.serve.outputs import recording, written_json
    from nnstretch.cli.serve.result_json import result_json
    from nnstretch.schedule.simulation.cedr_logs import CedrLogs
    from nnstretch.serve.application import InferenceApplication
    from nnstretch.serve.http_server import DrainingServer, serve_http
    from nnstretch.serve.metrics import Metrics
    from nnstretch.serve.network_server import HostOptions, NetworkServer
    from nnstretch.serve.request_body import HttpLimits

    options = HostOptions(loaded.emulated, loaded.dilation, factors)
    logs = None if args.log is None else CedrLogs()
    with recording(args, loaded.settings) as recorder:
        observers: list[Any] = [] if recorder is None else [recorder.add]
        server = NetworkServer(
            *(loaded.settings, loaded.networks, options),
            on_end=lambda end: tell_all(observers, end),
            on_round=None if logs is None else logs.on_round,
        )
        metrics = Metrics(server)
        observers.append(metrics.observe)
        if logs is not None:
            observers.append(logs.on_request)
        limits = HttpLimits(
            int(args.max_body_mb * MIB), int(args.max_bodies_mb * MIB), args.body_timeout_s
        )
        http = DrainingServer(
            InferenceApplication(server, metrics, __version__, limits),
            on_start=lambda: announce(server, address, loaded.dilation),
        )
        serve_http(http, listener)
        result = result_json(server, server.now_us) | loaded.source
    result |= written_json(args, recorder, logs)
    if http.interrupted:
        result["interrupted"] = True
    return result


def tell_all(observers: list[Any], request: RecordedRequest) -> None:
    """Tell all observers of a request that has ended."""
    for observe in observers:
        observe(request)


def announce(server: NetworkServer, address: str, dilation: float) -> None:
    """Say on standard error what is served where."""
    settings = server.settings
    names = ", ".join(server.applications)
    processors = ", ".join(processor.name for processor in settings.processors)
    slower = f", the clock {dilation:.3g} times slower" if dilation > 1 else ""
    print(
        f"serving {names} at {address}, policy {settings.policy} on {processors}{slower}",
        file=sys.stderr,
        flush=True,
    )
