"""`nnstretch partition`: what it is told of single stages, and Ctrl-C while it streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnstretch.bundle.bundle import read_bundle
from nnstretch.cli import run_verb
from nnstretch.pipeline import PipelineStage
from nnstretch.run.pipelines.pipeline import Pipeline

NET = """
from torch import nn


def make():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU())
    net.input_shape = (3, 16, 16)
    return net
"""
ENDLESS = """
import signal, sys, threading, time
import nnstretch.bench.pipelines as bench
from nnstretch.cli import main

stream_period_us = bench.stream_period_us


def endless(pipeline, inputs, items):
    print("streaming", flush=True)
    return stream_period_us(pipeline, inputs, 10**9)


bench.stream_period_us = endless
signal.signal(signal.SIGINT, signal.default_int_handler)
status = main(sys.argv[1:])


def threads():
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("nnstretch")]


# The thread of a source is told at once and ends by itself, on a busy machine a moment later.
until = time.monotonic() + 5
while threads() and time.monotonic() < until:
    time.sleep(0.01)
print(threads())
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no Ctrl-C of this kind here")
def test_ctrl_c_while_candidates_stream_leaves_one_line_and_nothing_else(tmp_path: Path) -> None:
    """The stream has no end, so however slow the machine is the signal finds it streaming."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "endless.py").write_text(ENDLESS)
    out = tmp_path / "out"
    out.mkdir()
    words = [
        "partition",
        f"{tmp_path}/net.py:make",
        "--soc",
        "mi9",
        "--stages",
        "2",
        "--processors",
        "cpu,cpu",
        "--measure",
        "--out",
        f"{out}/net.nns",
    ]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "endless.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "streaming\n"
        assert [path.name[:12] for path in out.iterdir()] == [".candidates-"]
        process.send_signal(signal.SIGINT)
        said, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, error, said) == (130, "nnstretch: interrupted\n", "[]\n")
    assert not list(out.iterdir())


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def partitioned(net: Path, *words: str, model: str = "net.py:make") -> int:
    return run_verb("partition", [f"{net}/{model}", "--soc", "mi9", "--json", *words])


def stages_of(path: Path) -> tuple[PipelineStage, ...]:
    pipeline = read_bundle(path).manifest.pipeline
    assert pipeline is not None
    return pipeline.stages


@pytest.mark.slow
def test_cores_and_replicas_of_single_stages_are_in_the_bundle(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    around = ["--before", "camera:load", "--python-replicas", "before=3"]
    words = [
        "--stages",
        "2",
        "--processors",
        "cpu,cpu",
        "--cores",
        "s0=2,0",
        "--cores",
        "before=1,3",
        "--out",
        str(net / "a.nns"),
    ]
    assert partitioned(net, *words, *around) == 0
    assert json.loads(capsys.readouterr().out)["cores"] == {"s0": [2, 0], "before": [1, 3]}
    assert [(one.name, one.cores, one.replicas) for one in stages_of(net / "a.nns")] == [
        ("before", (1, 3), 3),
        ("s0", (2, 0), ()),
        ("s1", (), ()),
    ]
    assert partitioned(net, *words[:4], "--out", str(net / "b.nns")) == 0
    assert [(one.cores, one.replicas) for one in stages_of(net / "b.nns")] == [((), ()), ((), ())]


@pytest.mark.slow
def test_cores_bind_the_workers_of_their_stage(net: Path) -> None:
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    assert (
        partitioned(
            net,
            "--stages",
            "2",
            "--processors",
            "cpu,cpu",
            "--cores",
            f"s1={core}",
            "--out",
            str(net / "a.nns"),
        )
        == 0
    )
    with Pipeline(net / "a.nns") as pipeline:
        assert [worker.cores for worker in pipeline._executor.workers[1]] == [frozenset({core})]
        assert pipeline.run(np.zeros((1, 3, 16, 16), np.float32)).shape == (1, 4, 8, 8)


@pytest.mark.slow
def test_stages_of_a_plan_have_cores_too(net: Path) -> None:
    (net / "plan.yaml").write_text(
        f"format: 1\nmodel: {net}/net.py:make\ninput: [1, 3, 16, 16]\nsegments:\n  - {{end: '1',"
        " processor: gpu}\n  - end: output\n    branches: [{processor: cpu, width: 2},"
        " {processor: dsp, width: 2}]\n"
    )
    assert (
        partitioned(
            net, "--stages", "2", "--cores", "s1=1", "--out", str(net / "p.nns"), model="plan.yaml"
        )
        == 0
    )
    assert [one.cores for one in stages_of(net / "p.nns")] == [(), (1,)]


WRONG: dict[str, tuple[list[str], str]] = {
    "no number": (
        ["--cores", "s0"],
        "--cores is 's0', command line, write STAGE=NUMBER, as in s0=0",
    ),
    "no cores": (["--cores", "s0="], "--cores is 's0=', command line"),
    "a name": (
        ["--cores", "s0=big"],
        "--cores is s0='big', command line, write cores from 0 to 4095, each once",
    ),
    "below zero": (["--cores", "s0=-1"], "--cores is s0='-1', command line"),
    "too large": (["--cores", "s0=4096"], "--cores is s0='4096', command line"),
    "one core twice": (["--cores", "s0=1,1"], "--cores is s0='1,1', command line"),
    "one stage twice": (["--cores", "s0=1", "--cores", "s0=2"], "--cores s0 is given twice"),
    "no such stage": (
        ["--stages", "2", "--cores", "s2=0"],
        "--cores s2, command line, there is no such stage: they are s0 to s1",
    ),
    "found too late": (
        ["--split", "conv2d:1", "--processors", "cpu,cpu", "--cores", "s7=0"],
        "--cores s7, command line, there is no such stage",
    ),
    "no Python stage": (
        ["--stages", "1", "--after", "a:b", "--cores", "before=0"],
        "there is no such stage: they are s0, after",
    ),
    "how many": (
        ["--measure", "--cores", "s0=0"],
        (
            "--cores with --measure, command line, candidates differ in their number of stages:"
            " give --stages"
        ),
    ),
    "not here": (
        ["--measure", "--stages", "2", "--cores", "s0=4000"],
        "--cores s0=4000 with --measure, command line, this process may use",
    ),
    "replicas of a network": (
        ["--python-replicas", "s0=2"],
        "--python-replicas s0, command line, Python stages here are none",
    ),
    "replicas of nobody": (
        ["--before", "a:b", "--python-replicas", "after=2"],
        "--python-replicas after, command line, Python stages here are before",
    ),
    "no replica": (
        ["--before", "a:b", "--python-replicas", "before=0"],
        "--python-replicas is before='0', command line, write a number from 1 to 64",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_stage_can_be_told_is_refused_in_one_line(
    case: str, net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = WRONG[case]
    assert partitioned(net, *words, "--out", str(net / "a.nns")) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (net / "a.nns").exists()
