"""Verbs as processes of their own that begin where their imports have ended.

A server imports what training needs once and forks for every command: a process that trains a small
network otherwise spends most of its time on imports. What is forked can be killed as any other.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

IMPORTS = [
    "nnstretch.cli.train",
    "nnstretch.train.trainer",
    "torch._dynamo",
    "tensorboard.summary.writer.event_file_writer",
]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(IMPORTS)


class ForkedVerb:
    """A verb that runs in a session of its own, with the part of `subprocess.Popen` that is used.

    What it says goes to files, so that it never waits for a reader.
    """

    def __init__(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.argv = list(argv)
        self.outputs = tempfile.TemporaryDirectory(prefix="verb-")
        settings = (self.argv, str(folder), dict(environment or os.environ), self.outputs.name)
        self.process = SERVER.Process(target=run_verb, args=settings)
        self.process.start()

    @property
    def pid(self) -> int:
        """Process and process group."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, a signal's number below 0, None while it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return what was said; raise TimeoutExpired."""
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.argv, timeout or 0)
        folder = Path(self.outputs.name)
        return (folder / "out").read_text(), (folder / "err").read_text()

    def end(self) -> None:
        """Kill what still runs of its session."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()


def run_verb(argv: list[str], folder: str, environment: dict[str, str], outputs: str) -> None:
    """Become `python -m nnstretch` in a folder, an environment and a session of its own."""
    os.setsid()
    for number, name in enumerate(("in", "out", "err")):
        flags = os.O_RDWR | os.O_CREAT
        os.dup2(os.open(os.path.join(outputs, name), flags, 0o600), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0:0] = [folder]
    sys.argv = ["nnstretch", *argv]
    runpy.run_module("nnstretch", run_name="__main__", alter_sys=True)
