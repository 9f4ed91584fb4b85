"""Calls that have to come back: one that hangs fails its test instead of stopping all of them."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

PATIENCE_S = 20.0


def within(call: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Return what a call returns, or raise what it raises; fail where it does not come back."""
    ends: list[tuple[Any, BaseException | None]] = []

    def called() -> None:
        try:
            ends.append((call(), None))
        except BaseException as error:
            ends.append((None, error))

    thread = threading.Thread(target=called, name="within", daemon=True)
    thread.start()
    thread.join(patience_s)
    assert ends, f"the call has not come back in {patience_s:g} s"
    value, error = ends[0]
    if error is not None:
        raise error
    return value


def said_by_fork(call: Callable[[], object], patience_s: float = PATIENCE_S) -> str:
    """Return the class and message of what a call raises in a forked child, else its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = f"returned {call()!r}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    ready = select.select([reader], [], [], patience_s)[0]
    said = os.read(reader, 4000).decode() if ready else "hangs"
    os.close(reader)
    if not ready:
        os.kill(child, 9)
    os.waitpid(child, 0)
    return said
