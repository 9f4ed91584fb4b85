"""`python -m nnstretch` is `nnstretch`: the command line with what only a process of its own needs.

Ctrl-C ends it with one line and status 130 at any moment, also while libraries are imported:
nothing heavy is imported before the handler is there.
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from time import monotonic

from nnstretch._interpreter import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130
AGAIN_S = 0.01
"""After which an interrupt that was swallowed, or that came too early, comes again."""
LONGEST_IMPORT_S = 5.0
"""How long an interrupt waits for the end of an import."""


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End with one line before the verb begins."""
    os.write(2, b"nnstretch: interrupted\n")
    os._exit(INTERRUPTED)


def deliver_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Interrupt again, soon, where a callback of a library has swallowed the interrupt.

    Not at once: what is raised within this hook is swallowed, too.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        interrupt_soon()
    else:
        sys.__unraisablehook__(unraisable)


def interrupt_soon() -> None:
    """Let the interrupt come once more."""
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to a module that is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def occupy_closed_streams() -> None:
    """Open what a parent has closed, or files that are written would become standard streams.

    A closed standard output stays None in `sys`: a result that nobody gets is refused.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- until the end


def escape_what_streams_lack() -> None:
    """Have letters that an output's encoding lacks printed as escape sequences."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Interrupts:
    """Handler of interrupts that remembers them: an import that one breaks may raise anything.

    Imports are let end first, where they do within `LONGEST_IMPORT_S`: libraries that call Python
    from C++ while they are loaded would end the process by SIGABRT.
    """

    def __init__(self) -> None:
        self.came = False
        self._until_s = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, now or soon."""
        if not self.came:
            self.came, self._until_s = True, monotonic() + LONGEST_IMPORT_S
        if is_importing(frame) and monotonic() < self._until_s:
            interrupt_soon()
        else:
            raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """Ignore interrupts, those that are to come again among them."""
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    """Run the command line of this process and return its exit code."""
    occupy_closed_streams()
    escape_what_streams_lack()
    # Who starts a process in the background may have it ignore interrupts.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from nnstretch.cli import main as run

        return run()
    signal.signal(signal.SIGINT, end_at_once)
    from nnstretch.cli import main as run

    sys.unraisablehook = deliver_again
    interrupts = Interrupts()
    try:
        signal.signal(signal.SIGINT, interrupts)
        return run()
    except (Exception, KeyboardInterrupt):
        ignore_interrupts()
        if not interrupts.came:
            raise
        print("nnstretch: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        # Behind the result nothing is left to interrupt, and Python's own end would be killed.
        ignore_interrupts()
        # CPython remembers an interrupt within text that is executed, though it was handled, and
        # would die of it at its end; the next text makes it forget.
        exec("")


if __name__ == "__main__":
    sys.exit(main())
