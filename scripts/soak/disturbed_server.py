"""A server over HTTP whose emulated processors fail, return and are slowed down, until SIGTERM.

    python disturbed_server.py REQUESTS SEED

It says its address on standard error, and at its end what became of all requests: a JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from request_soak import Tally
from soak_bundle import PROCESSORS, toy, trouble

from nnstretch.cli.serve.applications import application_of
from nnstretch.cli.serve.result_json import result_json
from nnstretch.cli.simulate.timed_tasks import TimedTasks
from nnstretch.files.workload.service_record import RecordedRequest
from nnstretch.files.workload.workload import ApplicationSettings
from nnstretch.schedule.simulation.application import own_times
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.task_graph import task_graph
from nnstretch.serve.application import InferenceApplication
from nnstretch.serve.http_server import DrainingServer, serve_http, tcp_listener
from nnstretch.serve.metrics import Metrics
from nnstretch.serve.network_server import HostOptions, NetworkServer
from nnstretch.serve.request_body import HttpLimits
from nnstretch.serve.served_network import ServedNetwork

NAME = "soak"
QUEUE_LIMIT = 8
REQUEST_US = 2_500.0
"""About what passes from one request to the next, so that trouble lasts as long as the run."""
TROUBLES = 50


def settings() -> tuple[SimulationSettings, ServedNetwork]:
    bundle = toy()
    times_us: dict[Any, float] = {}
    for sub in bundle.manifest.subgraphs:
        for processor, time_us in sub.predicted_us.items():
            times_us[sub.name, processor] = time_us
    timed = TimedTasks(task_graph(bundle.manifest), times_us, {})
    application = application_of(
        ApplicationSettings(NAME, model="soak.nns", queue_limit=QUEUE_LIMIT), timed
    )
    network = ServedNetwork(bundle, [processor.name for processor in PROCESSORS])
    return SimulationSettings((application,), PROCESSORS, own_times(NAME, times_us), "eft"), network


def main(requests: int, seed: int) -> dict[str, Any]:
    simulated, network = settings()
    disturbances = trouble(random.Random(seed), requests * REQUEST_US, TROUBLES)
    tally = Tally(bytearray(4 * requests + 10_000))

    def on_end(request: RecordedRequest) -> None:
        tally.end(request.request, request.end)
        metrics.observe(request)

    options = HostOptions(emulated=True, disturbances=disturbances)
    server = NetworkServer(simulated, {NAME: network}, options, on_end)
    metrics = Metrics(server)
    with tcp_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        http = DrainingServer(InferenceApplication(server, metrics, "soak", HttpLimits()))
        print(f"serving at 127.0.0.1:{port}", file=sys.stderr, flush=True)
        serve_http(http, listener)
    numbered = sum(tally.ends.values())
    return result_json(server, server.now_us) | {
        "twice": tally.twice,
        "unended": sum(times == 0 for times in tally.times_ended[:numbered]),
        "rss_mb": tally.rss_mb,
        "growth": tally.growth,
        "ends": dict(tally.ends),
    }


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
