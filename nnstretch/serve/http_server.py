"""Serve over HTTP until a signal: sockets, signals, and the end."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

from nnstretch.errors import BadInput, describe_error, one_line
from nnstretch.serve.application import InferenceApplication
from nnstretch.serve.connections import HEADERS_S, MOST_CONNECTIONS, connection_class

LOG = logging.getLogger("nnstretch")
KEEP_ALIVE_S = 75
SEND_S = 10
"""How long the end waits for answers that are being sent."""
POLL_S = 0.02
BACKLOG = 512
ACCEPTED_SHARE = 12
"""Connections are accepted so many at a time, as a share of those that may be open: what is too
many is closed before more come."""
LONGEST_SOCKET_PATH = 107


class DrainingServer(uvicorn.Server):
    """HTTP server that answers what it has accepted before it ends.

    The first signal drains: what is new is refused with 503. With the second, what is open is, too;
    tasks that compute are still let end, as no thread can be ended within a backend.
    """

    def __init__(
        self,
        application: InferenceApplication,
        headers_s: float = HEADERS_S,
        most: int | None = None,
        on_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Create a server; `most` connections may be open, one more is answered 503.

        `on_start` is called once it listens and hears of signals.
        """
        most = most_connections() if most is None else most
        config = uvicorn.Config(
            application.routes(),
            http=connection_class(headers_s, most),
            ws="none",
            lifespan="off",
            loop="none",
            proxy_headers=False,
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=max(1, most // ACCEPTED_SHARE),
            timeout_graceful_shutdown=SEND_S,
        )
        super().__init__(config)
        self._application, self._on_start = application, on_start
        self.interrupted = False
        """Whether a second signal ended it before everything was answered."""
        self._drain_task: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; the system keeps more waiting than are accepted at a time."""
        asyncio.get_running_loop().set_exception_handler(log_in_one_line)
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear of signals while the server runs on the main thread; behind it they are ignored."""
        loop, kinds = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for kind in kinds:
            loop.add_signal_handler(kind, self.end)
        try:
            yield
        finally:
            for kind in kinds:
                loop.remove_signal_handler(kind)
                signal.signal(kind, signal.SIG_IGN)  # nothing is left to end but the process

    def end(self) -> None:
        """Drain; the second time, answer what is open with 503. On the thread of the event loop."""
        if self._drain_task is not None:
            self.interrupted = self._open_count() > 0
            self.should_exit = self.force_exit = True
            return
        self._application.draining = True
        self._drain_task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while self._open_count():
            await asyncio.sleep(POLL_S)
        self.should_exit = True

    def _open_count(self) -> int:
        """Return how many requests are to be answered, those that are being decoded included."""
        return max(self._application.accepted_count, self._application.server.open_count)


def log_in_one_line(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what went wrong outside of all requests, such as a connection that was not accepted."""
    error = context.get("exception")
    what = "" if error is None else f", {describe_error(error)}"
    LOG.error("%s%s", one_line(context["message"]), what)


def serve_http(http: DrainingServer, listener: socket.socket) -> None:
    """Serve on a socket until a signal, then end the server behind it."""
    application = http._application
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(http.serve([listener]))
    finally:
        application.server.close(drain=not http.interrupted)
        application.close()


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop: uvloop's where it is installed, else None, asyncio's own.

    With uvloop the event loop takes a fifth less processor time for a request.
    """
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def tcp_listener(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 is any that is free. Raises BadInput where nobody can."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot listen on {host} port {port}, {reason}, name another") from None


@contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that only its user may open, and remove it at the end, unless another
    server has replaced it.

    A socket that nobody listens on any more is replaced. Raises BadInput where nobody can listen.
    """
    if len(str(path).encode()) > LONGEST_SOCKET_PATH:
        raise BadInput(f"cannot listen on {path}, a socket's path has {LONGEST_SOCKET_PATH} bytes")
    remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        bound = identity_of(path)
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise BadInput(f"cannot listen on {path}, {error.strerror}, name another") from None
    try:
        yield listener
    finally:
        listener.close()
        with suppress(FileNotFoundError):
            if identity_of(path) == bound:
                path.unlink()


def identity_of(path: Path) -> tuple[int, int, int]:
    """Return what tells a file from those before and behind it at its path, whose number, free
    again, may be its own.
    """
    file = path.lstat()
    return file.st_dev, file.st_ino, file.st_mtime_ns


def remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises BadInput where somebody does, or for a file
    that is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadInput(f"cannot listen on {path}, it is no socket, name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:  # such as that of a server of another user
            raise BadInput(f"cannot listen on {path}, {error.strerror}, name another") from None
    raise BadInput(f"cannot listen on {path}, another process does, name another")


def most_connections() -> int:
    """Return how many connections may be open: three quarters of the files that the process may
    still open, beyond which the system refuses any.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    free = soft - len(os.listdir("/dev/fd"))
    return max(1, min(MOST_CONNECTIONS, free * 3 // 4))
