"""A Unix socket that nobody listens on is replaced, and no other one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from nnstretch.errors import BadInput
from nnstretch.serve.http_server import unix_listener


def bound(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    return listener


def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "net.sock"
    bound(path).close()
    with unix_listener(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_the_socket_of_a_successor_stays(tmp_path: Path) -> None:
    path = tmp_path / "net.sock"
    with ExitStack() as successor:
        with unix_listener(path) as listener:
            listener.close()  # a server that ends listens no more, and computes on
            successor.enter_context(unix_listener(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_socket_that_somebody_listens_on_stays(tmp_path: Path) -> None:
    path = tmp_path / "net.sock"
    with bound(path) as listener:
        listener.listen()
        with pytest.raises(BadInput, match="another process does, name another"):
            unix_listener(path).__enter__()
        assert path.exists()


def test_a_socket_that_cannot_be_asked_stays(tmp_path: Path) -> None:
    path = tmp_path / "net.sock"
    with bound(path, socket.SOCK_DGRAM):  # as that of a server of another user
        with pytest.raises(BadInput, match="Protocol wrong type for socket, name another"):
            unix_listener(path).__enter__()
        assert path.exists()
