"""Storages of a study: a journal file, a database, or a gRPC proxy in front of one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput, UnknownName
from nnstretch.files.checked import checked
from nnstretch.files.read import MOST_MODEL_BYTES, as_path, check_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileBackend

GRPC_PREFIX = "grpc://"
GRPC_READY_TIMEOUT_S = 10
SQLITE_BUSY_TIMEOUT_S = 60
"""Longest wait for a database file that another worker is writing."""
OPENINGS = 10
"""How often a database is opened whose tables another worker is making."""
OPENING_PAUSE_S = 0.1


class KernelLock:
    """Lock of a journal that the kernel releases when its process dies.

    The next writer cuts off a line that a dead one has half-written.
    """

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        import fcntl

        handle = os.open(f"{self.journal}.lock", os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._handle = handle
        truncate_partial_line(self.journal)
        return True

    def release(self) -> None:
        """Free the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def truncate_partial_line(journal: Path) -> None:
    """Shorten a journal to its last whole line."""
    with open(journal, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        at = size
        while at > 0:
            file.seek(at - 1)
            if file.read(1) == b"\n":
                break
            at -= 1
        if at < size:
            file.truncate(at)


@checked
def open_storage(where: str) -> BaseStorage:
    """Open a journal FILE, `grpc://HOST:PORT`, or any URL that SQLAlchemy knows.

    Raises BadInput or UnknownName.
    """
    if where.startswith(GRPC_PREFIX):
        return grpc_storage(where)
    if "://" in where:
        return database_storage(where)
    return journal_storage(Path(where))


def has_study(where: str, name: str) -> bool:
    """Return whether a storage has a study; a journal that is not there is not created.

    Raises as `open_storage` does.
    """
    from optuna.study import get_all_study_names

    if "://" not in where and not as_path(where, "storage").exists():
        return False
    return name in get_all_study_names(open_storage(where))


def journal_storage(path: Path) -> BaseStorage:
    """Open a journal.

    Raises BadInput when it cannot be written or read, BrokenFile for a pipe, a device or one too
    large, UnknownName for a folder.
    """
    from optuna.storages import JournalStorage

    path = as_path(path, "storage")
    try:
        if path.exists():
            check_file(path, "study journal", MOST_MODEL_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(journal_backend(path))
    except OSError as error:
        raise BadInput(f"cannot keep a study in {path}, {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"cannot read the study journal {path}, it is no journal or is damaged,"
            f" {' '.join(str(error).split())[:120]}"
        ) from None


def journal_backend(path: Path) -> JournalFileBackend:
    """Return a journal's file with a lock that does not outlive its process."""
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    try:
        import fcntl  # noqa: F401
    except ImportError:  # Windows
        return JournalFileBackend(str(path), JournalFileOpenLock(str(path)))
    # KernelLock has the two methods that are called, not the base class.
    return JournalFileBackend(str(path), KernelLock(path))  # type: ignore[arg-type]


def database_storage(url: str, attempts: int = OPENINGS) -> BaseStorage:
    """Open a database, again where another worker makes its tables at the same time.

    Raises BadInput when it cannot be reached.
    """
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy.exc import SQLAlchemyError

    engine: dict[str, Any] = {}
    if url.startswith("sqlite"):
        engine = {"connect_args": {"timeout": SQLITE_BUSY_TIMEOUT_S}}
    try:
        return get_storage(RDBStorage(url, engine_kwargs=engine))
    except (SQLAlchemyError, StorageInternalError, ImportError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    # A database's own words; the whole error has the statement, too.
    reason = " ".join(str(getattr(cause, "orig", None) or cause).split())[:160]
    if attempts > 1 and is_made_twice(cause, reason):
        time.sleep(OPENING_PAUSE_S)
        return database_storage(url, attempts - 1)
    raise BadInput(f"cannot open the study database {redact_password(url)}, {reason}")


def is_made_twice(cause: BaseException | None, reason: str) -> bool:
    """Return whether another worker was first to make a table, or its only row."""
    from sqlalchemy.exc import IntegrityError

    return isinstance(cause, IntegrityError) or "already exists" in reason


def redact_password(url: str) -> str:
    """Return a URL without its password."""
    scheme, _, address = url.partition("://")
    user, at, host = address.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"


def grpc_storage(where: str) -> BaseStorage:
    """Open a storage behind a proxy. Raises BadInput when it cannot be reached."""
    host, _, port = where.removeprefix(GRPC_PREFIX).rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"storage is {where!r}, study, write grpc://HOST:PORT")
    try:
        import grpc  # noqa: F401
        from optuna.storages import GrpcStorageProxy
    except ImportError:
        raise BadInput(
            f"cannot reach {where}, package grpcio is missing, install grpcio and protobuf"
        ) from None
    proxy = GrpcStorageProxy(host=host, port=int(port))
    try:
        proxy.wait_server_ready(timeout=GRPC_READY_TIMEOUT_S)
    except ConnectionError:
        raise UnknownName(
            f"no storage server at {where}, it did not answer within {GRPC_READY_TIMEOUT_S} s"
        ) from None
    return proxy
