"""Whatever can be served gives its own answers, on cores and on an emulated chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.test_cli import NET, called
from support.serving import serving

from nnstretch.bundle.bundle import write_bundle
from nnstretch.files.workload.service_record import RecordedRequest

EMULATED = "soc: mi9\npolicy: heft_rt\n"


def check_served(folder: Path, head: str, model: str, more: str = "") -> None:
    """Ask four times; the answers are those of the sub-graphs one after another."""
    ended: list[RecordedRequest] = []
    workload = f"{head}applications: [{{name: net, model: '{model}'{more}}}]"
    with serving(folder, workload, on_end=ended.append) as server:
        network = server.applications["net"].network.network
        for seed in range(4):
            inputs = network.random_inputs(seed)
            reply = server.submit("net", inputs)
            assert reply is not None
            (output,) = reply.result(60).values()
            wanted = network.run_sequential(inputs)
            assert isinstance(wanted, np.ndarray)
            np.testing.assert_allclose(output, wanted, atol=1e-5)
        subgraphs = sorted(sub.name for sub in network.manifest.subgraphs)
    for request in ended:
        assert sorted(task.task for task in request.tasks) == subgraphs
    assert [request.end for request in ended] == ["answered"] * 4


def test_a_network_of_the_user_on_an_emulated_chip(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    check_served(tmp_path, EMULATED, "net.py:make", ", cut: 2")


@pytest.mark.slow
def test_a_plan_on_its_chip_and_on_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    plan = tmp_path / "plan.yaml"
    argv = ["--soc", "mi9", "--width-steps", "3", "--out", str(plan)]
    status, _, err = called(capsys, "search", f"{tmp_path}/net.py:make", *argv)
    assert status == 0, err
    check_served(tmp_path, EMULATED, "plan.yaml")
    check_served(tmp_path, "pool: {cpu: 2}\n", "plan.yaml")


@pytest.mark.slow
def test_a_bundle_of_litert(tmp_path: Path) -> None:
    pytest.importorskip("litert_torch")
    from support.exports import written

    bundle = written("litert").bundle
    write_bundle(tmp_path / "lite.nns", bundle.manifest, bundle.files)
    check_served(tmp_path, "pool: {cpu: 2}\npolicy: rr\n", "lite.nns")


@pytest.mark.slow
def test_a_network_of_torchvision(tmp_path: Path) -> None:
    check_served(tmp_path, "pool: {cpu: 2}\n", "torchvision:squeezenet1_1", ", cut: 3")
