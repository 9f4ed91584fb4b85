"""The second process of a training, forked with its imports done instead of started by Lightning."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace


class ForkedRank:
    """The part of `subprocess.Popen` that Lightning uses, over a process that waits for its turn.

    It is of the session, folder and streams of the process that made it, and ends with it where it
    has not been begun.
    """

    def __init__(self, pid: int, writer: int) -> None:
        self.pid, self._writer = pid, writer
        self.returncode: int | None = None

    def begin(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ForkedRank:
        """Do what `Popen` does; the command is the one that this process was begun with."""
        assert cwd is None
        with os.fdopen(self._writer, "w") as pipe:
            json.dump(dict(env), pipe)
        return self

    def poll(self) -> int | None:
        """Return the exit status, a signal's number below 0, None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def fork_rank() -> None:
    """Fork; the child comes back once Lightning starts its second process, with what it sets."""
    from pytorch_lightning.strategies.launchers import subprocess_script as launcher

    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reader)
        launcher.subprocess = SimpleNamespace(Popen=ForkedRank(pid, writer).begin)
        return
    os.close(writer)
    with os.fdopen(reader) as pipe:
        environment = pipe.read()
    if not environment:
        os._exit(0)
    os.environ.clear()
    os.environ.update(json.loads(environment))
