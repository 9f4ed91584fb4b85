"""Run one hostile case under watch, and say what it broke."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

LIBC = ctypes.CDLL(None)
HANG_S = 60
"""A case that takes longer hangs: sound ones end within seconds."""
LINE = re.compile(r"nnstretch: [^\n]{1,2100}\n")
SLOW_TO_LEAVE_S = 3.0
GROWTH_BYTES = 24 << 20
"""What a case may add to memory before it is run again: libraries and caches come once."""
LEAK_BYTES = 6 << 20
AGAIN = 4
"""A leak is what every one of so many more runs of the same case adds."""
ANNOUNCED = "serving "
"""How the line begins by which `serve` says that it does."""


class Hang(BaseException):
    """A case that did not end in time; no handler of Exception swallows it."""


@dataclass(frozen=True)
class Finding:
    """What a case broke, and where."""

    what: str
    where: str
    case: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what} at {self.where}\n  {self.case[:1500]}\n{self.detail}"


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    threads: int
    files: int
    children: int


def usage() -> Usage:
    """Return what this process holds, without Python's trackers of resources.

    They are made once, each with a pipe, and end with the process.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    trackers = sum(map(is_tracker, children))
    files = len(os.listdir("/proc/self/fd"))
    return Usage(threading.active_count(), files - trackers, len(children) - trackers)


def is_tracker(child: str) -> bool:
    """Return whether a child is a tracker of resources, of multiprocessing or of joblib."""
    with contextlib.suppress(OSError):  # it has just ended
        return b"resource_tracker" in Path(f"/proc/{child}/cmdline").read_bytes()
    return False


def resident_bytes() -> int:
    """Return the memory of this process without pages of files, which the kernel may take back."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def settled_bytes() -> int:
    """Return the memory of this process without what nobody holds any more."""
    gc.collect()
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)
    return resident_bytes()


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread when the block takes too long."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang("".join(traceback.format_stack(frame)[-6:]))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)  # again, if something swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def watch_command(main: Callable[[list[str]], int], argv: list[str], folder: Path) -> list[str]:
    """Run a command line in this process; return the faults of its end, none if it is sound."""
    streams = folder / "stdout", folder / "stderr"
    status: Any = None
    with contextlib.ExitStack() as stack:
        if argv[:1] == ["serve"]:
            stack.enter_context(interrupting(streams[1]))
        out, err = (stack.enter_context(path.open("w+", errors="replace")) for path in streams)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            status = main(argv)
        except SystemExit as end:
            status = end.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
    said = streams[1].read_text(errors="replace")
    return faults_of_end(status, said)


@contextlib.contextmanager
def interrupting(said: Path) -> Iterator[None]:
    """Interrupt this process, as Ctrl-C does, once a file says that it serves.

    What serves hears of it; behind its end an interrupt that comes too late is nobody's. What
    serves goes on ignoring signals, as its process is to end: here the process goes on.
    """
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.01):
            if said.exists() and ANNOUNCED in said.read_text(errors="replace"):
                os.kill(os.getpid(), signal.SIGINT)
                return

    before = signal.signal(signal.SIGINT, lambda *_: None), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def faults_of_end(status: object, said: str) -> list[str]:
    """Return what is wrong with an exit status and what was said on standard error."""
    faults = []
    if status not in (0, 1, 2, 130):
        faults.append(f"exit status {status!r}")
    if "Traceback (most recent call last)" in said:
        faults.append(f"a traceback on standard error: {said[-1500:]}")
    if status == 1 and not LINE.fullmatch(said.splitlines(keepends=True)[-1] if said else ""):
        faults.append(f"status 1 without one short line: {said[-300:]!r}")
    if status == 2 and len(said.splitlines()[-1]) > 2600:
        faults.append(f"a usage error of {len(said)} characters")
    return faults


def watch(case: Callable[[], list[str]], described: str) -> list[Finding]:
    """Run a case; return what it broke: its own faults, exceptions, hangs and what stays."""
    before, resident = usage(), resident_bytes()
    findings = run_once(case, described)
    if left := left_behind(before):
        findings.append(Finding(left, "what stays", described))
    if not findings and resident_bytes() - resident > GROWTH_BYTES and (grown := leak_of(case)):
        findings.append(Finding(f"{grown >> 20} MiB more in every run", "what stays", described))
    return findings


def run_once(case: Callable[[], list[str]], described: str) -> list[Finding]:
    """Run a case; return its own faults, exceptions and hangs."""
    try:
        with alarm(HANG_S):
            return [Finding(fault, "its end", described) for fault in case()]
    except Hang as hang:
        return [Finding("hang", place_of(hang), described, str(hang))]
    except BaseException as error:  # whatever it is, it is a finding
        text = "".join(traceback.format_exception(error)[-4:])
        return [Finding(type(error).__name__, place_of(error), described, text)]


def leak_of(case: Callable[[], list[str]]) -> int:
    """Run a case again and again; return the bytes that every run adds, 0 where one adds few."""
    least = GROWTH_BYTES
    for _ in range(AGAIN):
        before = settled_bytes()
        run_once(case, "")
        least = min(least, settled_bytes() - before)
        if least < LEAK_BYTES:
            return 0
    return least


def place_of(error: BaseException) -> str:
    """Return the innermost line of the project that an exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/nnstretch/" in frame.filename]
    if not own:
        return "nowhere in the project"
    return f"{own[-1].filename.rpartition('/nnstretch/')[2]}:{own[-1].lineno}"


def left_behind(before: Usage) -> str:
    """Return in words what a case left, after some time to leave; empty if nothing."""
    until = time.monotonic() + SLOW_TO_LEAVE_S
    while True:
        now = usage()
        left = [
            f"{getattr(now, kind) - getattr(before, kind)} {kind} more"
            for kind in ("threads", "files", "children")
            if getattr(now, kind) > getattr(before, kind)
        ]
        if not left or time.monotonic() > until:
            return ", ".join(left)
        gc.collect()
        time.sleep(0.05)
