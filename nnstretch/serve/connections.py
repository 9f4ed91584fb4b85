"""Connections that may not hang: limits of time and number, and errors below HTTP as JSON."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10.0
"""Until all headers of a request must be there."""
SKIP_S = 1.0
"""How long headers without an end are read on."""
HALF_CLOSED_S = 1.0
"""How long a client whose side of the connection has ended may wait for its answer."""
UNREAD_S = 60.0
"""How long a client may read nothing of an answer that waits to be sent."""
MOST_CONNECTIONS = 4096
MOST_HEAD_BYTES = 64 << 10
"""Of headers, and of what stands behind chunks of a body: the parser knows no limit."""


class TimedConnection(HttpToolsProtocol):
    """Connection of uvicorn that ends where a request's headers do not come in time."""

    headers_s = HEADERS_S
    half_closed_s = HALF_CLOSED_S
    unread_s = UNREAD_S
    most = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _cycles: deque[Any]
    """Requests whose answers may be missing, the oldest first: a client need not wait for one."""
    _begun = False
    """Whether some of a request has come, and not all of its headers."""
    _kept_bytes = 0
    """What has come since the parser last told of something."""
    _is_refused = False
    """Whether what comes is only read so that its sender comes to read why it was refused."""
    _refusal: tuple[bytes, str, float] | None = None
    """Status, message and seconds to read on of an error that waits for answers before it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(transport)
        self._cycles = deque()
        send_at_once(transport)
        if len(self.connections) > self.most:
            self._is_refused = True
            message = f"{self.most} connections are open, the limit"
            self._refuse(b"503 Service Unavailable\r\nretry-after: 1", message)
        else:
            self._begin_timer()

    def data_received(self, data: bytes) -> None:
        """Hear of bytes; refuse headers, and end bodies, that the parser would keep for ever."""
        if self._is_refused:
            return
        self._kept_bytes += len(data)
        super().data_received(data)
        if self._timer is None and not self._is_answering():
            self._begin_timer()  # uvicorn has ended its own, whatever it was that came
        if self._kept_bytes <= MOST_HEAD_BYTES or self.transport.is_closing():
            return
        self._end_timer()
        if self._begun:
            self._refuse_headers()
        elif self.cycle is not None and not self.cycle.response_started:
            self._refuse_body()
        else:
            self._is_refused = True
            self._close()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._begun = True
        self._kept_bytes = 0
        if self._timer is None:
            self._begin_timer()

    def on_headers_complete(self) -> None:
        """End the time limit of a request; refuse one whose headers are too long."""
        if self._is_refused:
            return
        self._end_timer()
        self._begun = False
        self._kept_bytes = 0
        size_bytes = len(self.url) + sum(len(b": ".join(row)) + 2 for row in self.headers)
        if size_bytes > MOST_HEAD_BYTES:
            self._refuse_headers()
        else:
            super().on_headers_complete()
            while self._cycles and self._cycles[0].response_complete:  # answers keep the order
                self._cycles.popleft()
            self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Hear of a part of a body."""
        self._kept_bytes = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._kept_bytes = 0
        if not self._is_refused:
            super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Hear that the client sends no more; return whether it may still wait for an answer.

        Over TCP a client that ended only its own side (`nc -N`) and one that has gone look alike,
        so a whole request is answered, but not waited for long.
        """
        if self._refusal is not None:
            return not is_hung_up(self.transport)
        if self._is_refused or not self._is_answering() or self.cycle.more_body:
            return False
        if is_hung_up(self.transport):
            return False
        self.cycle.keep_alive = False
        self._end_timer()
        self._timer = self.loop.call_later(self.half_closed_s, self._on_half_closed)
        return True

    def _on_half_closed(self) -> None:
        """End a connection whose client may be gone; one that surely waits is asked about again."""
        self._timer = None
        if self.transport.is_closing() or self.cycle.response_started:
            return  # What is written tells by itself whether somebody reads.
        if is_unix(self.transport) and not is_hung_up(self.transport):
            self._timer = self.loop.call_later(self.half_closed_s, self._on_half_closed)
        else:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection, and all of its requests."""
        self._end_timer()
        self._end_reader_timer()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Hear that an answer waits for its client to read."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Hear that the client has read enough for more to be sent."""
        self._end_reader_timer()
        super().resume_writing()
        self._watch_last_answer()

    def on_response_complete(self) -> None:
        """Hear that an answer is written."""
        super().on_response_complete()
        if self._refusal is not None and not self._answers_to_come():
            self._refuse(*self._refusal)
        self._watch_last_answer()

    def _watch_last_answer(self) -> None:
        """End a connection that is closing, unless its client reads what is still to be sent."""
        if self.transport.is_closing():
            self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection on which nothing comes any more."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def _watch_reader(self) -> None:
        """End the connection later on, unless its client reads some of what waits by then."""
        self._end_reader_timer()
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes:
            self._reader_timer = self.loop.call_later(self.unread_s, self._on_unread, waiting_bytes)

    def _on_unread(self, waiting_bytes: int) -> None:
        self._reader_timer = None
        if self.transport.get_write_buffer_size() >= waiting_bytes:
            self.transport.abort()
        else:
            self._watch_reader()

    def _end_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(b"400 Bad Request", msg)

    def _is_answering(self) -> bool:
        """Return whether a request is there that has not been answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _answers_to_come(self) -> bool:
        """Return whether requests are there, whole, that have not been answered."""
        return any(not (cycle.response_complete or cycle.disconnected) for cycle in self._cycles)

    def _refuse_headers(self) -> None:
        self._is_refused = True
        message = f"the headers are longer than {MOST_HEAD_BYTES} bytes, the limit"
        self._refuse(b"431 Request Header Fields Too Large", message, SKIP_S)

    def _refuse_body(self) -> None:
        """Refuse a body whose extensions of chunks, or headers behind them, do not end."""
        self._is_refused = True
        message = f"more than {MOST_HEAD_BYTES} bytes between the parts of the body, the limit"
        self._refuse(b"400 Bad Request", message, SKIP_S)

    def _begin_timer(self) -> None:
        self._timer = self.loop.call_later(self.headers_s, self._on_late)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._begun:
            message = f"the headers were not there after {self.headers_s:g} s"
            self._refuse(b"408 Request Timeout", message)
        else:
            self._close()

    def _refuse(self, status: bytes, message: str, skip_s: float = 0.0) -> None:
        """Answer with an error, and close; what comes in the next `skip_s` is read on.

        Whole requests that came before are answered first: a client tells answers apart by order.
        """
        if self._is_answering() and self.cycle.more_body:
            self.cycle.disconnected = True  # Whoever waits for the body answers no more.
            self.cycle.message_event.set()
        if self._answers_to_come():
            self._is_refused = True
            self._refusal = status, message, skip_s
            self._end_timer()
            return
        self._refusal = None
        body = json.dumps({"error": message}).encode()
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        self.transport.write(head % (status, len(body)) + b"connection: close\r\n\r\n" + body)
        if skip_s:
            self.transport.write_eof()
            self.loop.call_later(skip_s, self._close)
        else:
            self._close()

    def _close(self) -> None:
        """Close the connection when what waits is sent, if its client reads it."""
        self.transport.close()
        self._watch_reader()


def send_at_once(transport: asyncio.Transport) -> None:
    """Let what is written to a TCP connection go out at once.

    An answer is written in two parts, and the second would wait 40 ms for the other side to
    acknowledge the first. asyncio sees to this only for sockets that name their protocol, which a
    listener of `socket.create_server` does not.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def is_unix(transport: asyncio.Transport) -> bool:
    """Return whether a connection is that of a Unix socket."""
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == socket.AF_UNIX


def is_hung_up(transport: asyncio.Transport) -> bool:
    """Return whether a client has certainly gone; only Unix sockets tell that from a half close."""
    if not is_unix(transport):
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def connection_class(headers_s: float, most: int) -> type[Any]:
    """Return the class of connections with a time limit, of which so many may be open."""
    return type("TimedConnection", (TimedConnection,), {"headers_s": headers_s, "most": most})
