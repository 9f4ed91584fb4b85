"""`nnstretch partition` as a process and on bad days: Ctrl-C while it streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NET = """
from torch import nn


def make():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU())
    net.input_shape = (3, 16, 16)
    return net
"""
ENDLESS = """
import signal, sys, threading
import nnstretch.bench.pipelines as bench
from nnstretch.cli import main

streamed_us = bench.streamed_us


def endless(pipeline, inputs, items):
    print("streaming", flush=True)
    return streamed_us(pipeline, inputs, 10**9)


bench.streamed_us = endless
signal.signal(signal.SIGINT, signal.default_int_handler)
status = main(sys.argv[1:])
print([thread.name for thread in threading.enumerate() if thread.name.startswith("nnstretch")])
sys.exit(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no Ctrl-C of this kind here")
def test_ctrl_c_while_candidates_stream_leaves_one_line_and_nothing_else(tmp_path: Path) -> None:
    """The stream has no end, so however slow the machine is the signal finds it streaming."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "endless.py").write_text(ENDLESS)
    out = tmp_path / "out"
    out.mkdir()
    words = ["partition", f"{tmp_path}/net.py:make", "--soc", "mi9", "--stages", "2", "--processors", "cpu,cpu", "--measure", "--out", f"{out}/net.nns"]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "endless.py"), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
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
