"""Verbs as processes of their own that begin where their imports have ended.

A server imports what training needs once and forks for every command: a process that trains a small
network otherwise spends most of its time on imports. What is forked can be killed as any other.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from support.forked_ranks import fork_rank

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

    What it says goes to files, so that it never waits for a reader. Of a training by two processes
    the second is forked, too, where `ranks` says so. Where no file may be larger than
    `most_file_bytes`, it goes to pipes, which take 64 KiB.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        ranks: int = 1,
        most_file_bytes: int | None = None,
    ) -> None:
        self.argv = list(argv)
        self.outputs = tempfile.TemporaryDirectory(prefix="verb-")
        self.files = [self._open(name, most_file_bytes is not None) for name in ("out", "err")]
        place = (str(folder), dict(environment or os.environ), self.outputs.name)
        settings = (self.argv, *place, ranks, most_file_bytes)
        self.process = SERVER.Process(target=run_verb, args=settings)
        self.process.start()

    def _open(self, name: str, as_pipe: bool) -> TextIO:
        """Make what the process writes to, and open it for reading."""
        path = Path(self.outputs.name) / name
        if as_pipe:
            os.mkfifo(path)
        else:
            path.touch()
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

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
        """Wait for the end and return what was said, once; raise TimeoutExpired."""
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.argv, timeout or 0)
        out, err = (file.read() for file in self.files)
        self._forget()
        return out, err

    def end(self) -> None:
        """Kill what still runs of its session."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()
        self._forget()

    def _forget(self) -> None:
        """Remove what it was to write to."""
        for file in self.files:
            file.close()
        self.outputs.cleanup()


def run_verb(
    argv: list[str],
    folder: str,
    environment: dict[str, str],
    outputs: str,
    ranks: int,
    most_file_bytes: int | None,
) -> None:
    """Become `python -m nnstretch` in a folder, an environment and a session of its own."""
    os.setsid()
    for number, name in enumerate(("in", "out", "err")):
        flags = os.O_RDWR | os.O_CREAT
        os.dup2(os.open(os.path.join(outputs, name), flags, 0o600), number)
    # Those of the server were opened on other files, which may be of another kind.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if most_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_file_bytes, most_file_bytes))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0:0] = [folder]
    sys.argv = ["nnstretch", *argv]
    if ranks == 2:
        fork_rank()
    runpy.run_module("nnstretch", run_name="__main__", alter_sys=True)
