"""Clients of a load test, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nnstretch.errors import BadInput


def run_clients(client: Callable[[], None], count: int, stopped: threading.Event) -> None:
    """Run clients until all return; what one of them raises stops all, and is raised.

    `stopped` is set at the end. Raises BadInput for more clients than the system has threads for.
    """
    errors: list[BaseException] = []

    def watched() -> None:
        try:
            client()
        except BaseException as error:
            errors.append(error)
            stopped.set()

    name = "nnstretch-client-"
    threads = [
        threading.Thread(target=watched, name=f"{name}{n}", daemon=True) for n in range(count)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except RuntimeError as error:  # no more threads
        raise BadInput(f"{count} clients, load test, {error}") from None
    finally:
        stopped.set()
    if errors:
        raise errors[0]
