"""`nnstretch serve`: what is refused in one line before anything is served, and how models load."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from support.bundles import branched_bundle
from torch import nn

from nnstretch.bundle.bundle import write_bundle
from nnstretch.capture.torch_export import trace
from nnstretch.cli import main
from nnstretch.cli.serve.host_pool import host_pool
from nnstretch.cli.serve.serve import model_name
from nnstretch.cli.simulate.network_tasks import stages_of_cut
from nnstretch.errors import BadInput
from nnstretch.files.workload.service_record import RecordWriter
from nnstretch.files.workload.workload import ApplicationSettings, WorkloadFile
from nnstretch.partition.pieces import export_pieces
from nnstretch.partition.split_graph import split_graph
from nnstretch.serve import http_server
from nnstretch.serve.http_server import DrainingServer
from nnstretch.serve.served_network import ServedNetwork

GOOD = """
pool: {cpu: 1}
applications:
- {name: net, model: net.nns}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bundle = branched_bundle()
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    (tmp_path / "w.yaml").write_text(GOOD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("nnstretch: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pool: {cpu: 1}", "pool: {cpu: 1}\nfactors: {gpu: 2}", "factor of gpu, workload"),
        ("pool: {cpu: 1}", "factors: {cpu: 0.5}", "0.5 is out of range"),
        ("pool: {cpu: 1}", "soc: mi99", "mi99"),
        ("pool: {cpu: 1}", "policy: etff", "unknown policy 'etff'"),
        ("model: net.nns", "model: absent.nns", "absent.nns"),
        ("model: net.nns", "costs_ms: {cpu: 1}", "costs_ms of application net, serve, needed is"),
        ("model: net.nns", "model: graph.json", "graph.json of application net, serve"),
        ("model: net.nns", "model: net.nns, placement: kept", "is placed on dsp"),
        ("applications", "application", "unknown key 'application'"),
    ],
)
def test_a_workload_that_cannot_be_served(
    capsys: pytest.CaptureFixture[str], folder: Path, old: str, new: str, message: str
) -> None:
    (folder / "w.yaml").write_text(
        GOOD.replace(old, new, 1).replace("{cpu: 1}\n", "{cpu: 2}\n", 1), encoding="utf-8"
    )
    assert message in refusal(capsys, "w.yaml", "--port", "0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.nns", "--port", "65536"), "--port is 65536"),
        (("net.nns", "--host", "256.1.1.1"), "cannot listen on 256.1.1.1 port 8000"),
        (("net.nns", "--socket", "w.yaml"), "w.yaml, it is no socket"),
        (("net.nns", "--socket", "none/s"), "none/s"),
        (("net.nns", "--socket", "s" * 200), "a socket's path"),
        (("net.nns", "--socket", "s", "--port", "0"), "--port 0 beside --socket"),
        (("net.nns", "--socket", "s", "--host", "::1"), "--host ::1 beside --socket"),
        (("net.nns", "--record", "none/r"), "no folder none"),
        (("net.nns", "--record", "net.nns"), "own input"),
        (("w.yaml", "--record", "net.nns"), "own input net.nns"),
        (("net.nns", "--record", "r", "--log", "./r"), "r is written twice"),
        (("net.nns", "--seed", "-5"), "--seed is -5"),
        (("net.nns", "--max-body-mb", "0"), "--max-body-mb is 0"),
        (("net.nns", "--log", "net.nns"), "--log is net.nns, command line, it is a file"),
        (("net.nns", "--log", "net.nns/logs"), "cannot write to net.nns/logs, "),
        (("net.nns", "--max-bodies-mb", "1"), "one request alone may have 64"),
        (("net.nns", "--max-bodies-mb", "1e303"), "--max-bodies-mb is 1e+303"),
        (("net.nns", "./net.nns"), "net.nns and ./net.nns, command line, both are called net"),
        (("net.nns", "--policy", "ef"), "unknown policy 'ef'"),
        (("net.nns", "--port", "0", "--backend", "onnx"), "unknown backend 'onnx'"),
    ],
)
def test_arguments_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refusal(capsys, *arguments)


def test_an_address_that_somebody_has(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "cannot listen on 127.0.0.1" in refusal(capsys, "net.nns", "--port", str(port))
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind("net.sock")
        taken.listen()
        assert "another process does" in refusal(capsys, "net.nns", "--socket", "net.sock")
        assert (folder / "net.sock").is_socket()


def test_what_cannot_be_written_takes_nothing_from_the_result(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_writer: RecordWriter, _request: object) -> None:
        raise BadInput("cannot write r.jsonl, No space left on device")

    def answer_one(http: DrainingServer, _listener: socket.socket) -> None:
        server = http._application.server
        reply = server.submit("net", server.served("net").network.network.random_inputs(0))
        assert reply is not None
        reply.result()
        server.close()
        (folder / "logs").write_text("in the way")

    monkeypatch.setattr(RecordWriter, "add", refuse)
    monkeypatch.setattr(http_server, "serve_http", answer_one)
    outputs = ("--record", "r.jsonl", "--log", "logs")
    assert main(["serve", "net.nns", "--port", "0", *outputs, "--json"]) == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["answered"] == 1
    no_record, no_logs = captured.err.splitlines()[-2:]
    assert no_record == "nnstretch: cannot write r.jsonl, No space left on device"
    assert no_logs.startswith("nnstretch: cannot write logs, ")
    assert [f"nnstretch: {why}" for why in result["not_written"]] == [no_record, no_logs]


@pytest.mark.parametrize(
    ("settings", "unheeded"),
    [
        ("", []),
        ("durations: {kind: exact}\nhandover_ms: 0", []),
        (
            "durations: {kind: spread, spread: 0.5}\nhandover_ms: 5\ncosts: absent.json",
            ["durations", "costs", "handover_ms"],
        ),
    ],
)
def test_settings_for_simulate_alone_are_told(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    unheeded: list[str],
) -> None:
    (folder / "w.yaml").write_text(f"{settings}\n{GOOD}", encoding="utf-8")
    monkeypatch.setattr(http_server, "serve_http", lambda http, _: http._application.server.close())
    assert main(["serve", "w.yaml", "--port", "0"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [
        line.partition(" not heeded, workload w.yaml, serve: ")[0] for line in lines
    ] == unheeded


def test_names_of_models(folder: Path) -> None:
    assert model_name("net.nns") == "net"
    assert model_name("torchvision:resnet18") == "resnet18"


@pytest.mark.parametrize("name", ["a/b", "stats", "."])
def test_a_name_that_no_url_leads_to_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str
) -> None:
    workload = f'pool: {{cpu: 1}}\napplications:\n- {{name: "{name}", model: net.nns}}\n'
    (folder / "w.yaml").write_text(workload, encoding="utf-8")
    said = f"no URL leads to a model called {name!r}"
    assert said in refusal(capsys, "w.yaml", "--socket", "net.sock")


def test_a_name_that_is_no_utf_8_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "net.nns").rename(folder / "bad\udcff.nns")
    said = r"no URL leads to a model called 'bad\udcff'"
    assert said in refusal(capsys, "bad\udcff.nns", "--socket", "net.sock")


class Branches(nn.Module):
    """Two inputs and two outputs that cross from piece to piece."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.first(x))
        deep = torch.relu(self.second(features))
        pooled = features.mean((2, 3)) + deep.mean((2, 3)) + y
        return self.last(pooled), pooled


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["whole", "segments", "layers", 2])
def test_pieces_of_a_network_compute_what_it_does(cut: str | int) -> None:
    torch.manual_seed(0)
    module = Branches().eval()
    inputs = (torch.randn(1, 3, 8, 8), torch.randn(1, 4))
    captured = trace(module, inputs, "branches")
    pieces = split_graph(captured.graph, stages_of_cut(captured.graph, cut))  # type: ignore[arg-type]
    bundle = export_pieces(captured.graph, captured.weights, pieces, lambda *_: None)
    assert [sub.name for sub in bundle.manifest.subgraphs] == [
        f"piece{n}" for n in range(len(pieces))
    ]
    network = ServedNetwork(bundle, ("cpu0", "cpu1"))
    names = [port.name for port in bundle.manifest.inputs]
    values = network.inputs(dict(zip(names, (x.numpy() for x in inputs), strict=True)))
    for number, sub in enumerate(bundle.manifest.subgraphs):
        network.compute(f"cpu{number % 2}", sub.name, values)
    outputs = list(network.outputs(values).values())
    with torch.no_grad():
        for wanted, output in zip(module(*inputs), outputs, strict=True):
            np.testing.assert_allclose(output, wanted.numpy(), atol=1e-5)
    assert network.measured_us().keys() == {sub.name for sub in bundle.manifest.subgraphs}


def test_without_a_pool_there_are_the_cores_of_this_host() -> None:
    pool = host_pool(WorkloadFile((ApplicationSettings("a", model="a.nns"),)), None)
    assert pool.processors[0].name == "cpu0"
    assert {processor.queue_depth for processor in pool.processors} == {2}
