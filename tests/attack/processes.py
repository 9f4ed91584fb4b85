"""Verbs as processes of their own: interrupted at any moment, and with streams that are closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attack.commands import SOUND
from attack.watch import faults_of_end
from hypothesis import strategies as st

LONGEST_S = 50
STREAMS = ("stdout full", "stdout closed", "stdout unread", "stderr closed", "stdin closed", "all")
INTERPRETER_S = 0.5
"""Before it, Python itself starts and no handler can be there."""


def interrupted(data: st.DataObject, folder: Path) -> tuple[Callable[[], list[str]], str]:
    """Draw a verb that is interrupted after a time; return the case and what it is."""
    argv = sound_command(data, [*SOUND])
    after_s = data.draw(st.floats(INTERPRETER_S, 4))

    def run() -> list[str]:
        process = start(argv, folder, stderr=subprocess.PIPE)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        status, said = end_of(process)
        faults = faults_of_end(status, said)
        if status == 130 and said.count("nnstretch: interrupted") != 1:
            faults.append(f"status 130 with {said[-1000:]!r}")
        if "KeyboardInterrupt" in said:
            faults.append(f"an interrupt that is told as something else: {said[-600:]}")
        return faults

    return run, f"{' '.join(argv)}, interrupted after {after_s:.2f} s"


def with_closed_streams(data: st.DataObject, folder: Path) -> tuple[Callable[[], list[str]], str]:
    """Draw a verb one of whose streams is closed; return the case and what it is."""
    argv = sound_command(data, [verb for verb in SOUND if verb != "serve"])  # it would not end
    stream = data.draw(st.sampled_from(STREAMS))

    def run() -> list[str]:
        status, said = end_of(start_with(argv, folder, stream))
        return (
            faults_of_end(status, said)
            if "stderr" not in stream and stream != "all"
            else ([] if status in (0, 1, 2) else [f"exit status {status}"])
        )

    return run, f"{' '.join(argv)}, {stream}"


def sound_command(data: st.DataObject, verbs: list[str]) -> list[str]:
    """Draw a sound command line of one of these verbs."""
    verb = data.draw(st.sampled_from(sorted(verbs)))
    return [*verb.split(), *data.draw(st.sampled_from(SOUND[verb]))]


def start(argv: list[str], folder: Path, **streams: object) -> subprocess.Popen[bytes]:
    """Start a verb in a session of its own."""
    settings = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL} | streams
    return subprocess.Popen(
        [sys.executable, "-m", "nnstretch", *argv],
        cwd=folder,
        start_new_session=True,
        **settings,  # type: ignore[call-overload]
    )


def start_with(argv: list[str], folder: Path, stream: str) -> subprocess.Popen[bytes]:
    """Start a verb with a stream that is closed, full or read by nobody."""
    if stream == "stdout full":
        with Path("/dev/full").open("wb") as full:
            return start(argv, folder, stdout=full, stderr=subprocess.PIPE)
    if stream == "stdout unread":
        read, write = os.pipe()
        os.close(read)
        try:
            return start(argv, folder, stdout=write, stderr=subprocess.PIPE)
        finally:
            os.close(write)
    closed = {"stdout closed": (1,), "stderr closed": (2,), "stdin closed": (0,)}.get(
        stream, (0, 1, 2)
    )
    redirections = " ".join(f"{number}>&-" if number else "0<&-" for number in closed)
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "nnstretch"]
    return subprocess.Popen(
        [*command, *argv],
        cwd=folder,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def end_of(process: subprocess.Popen[bytes]) -> tuple[int | str, str]:
    """Return exit status and standard error of a process, which is killed when it hangs."""
    try:
        said = process.communicate(timeout=LONGEST_S)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "a hang", (process.communicate()[1] or b"").decode(errors="replace")
    return process.returncode, (said or b"").decode(errors="replace")
