"""Read files that a stranger may have named: kind and size are checked before a byte is read.

A pipe would block for ever, a device such as /dev/zero has no end, and a sparse file of a terabyte
takes no room on the disk. Every reader of files begins here.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from nnstretch.errors import BadInput, BrokenFile, UnknownName, one_line

MOST_TEXT_BYTES = 16 << 20
"""Of YAML and tables of text, which are parsed line by line."""
MOST_JSON_BYTES = 64 << 20
MOST_MODEL_BYTES = 4 << 30
"""Of networks with their numbers, which are read whole."""
MOST_TENSOR_BYTES = 64 << 30
"""Of files that are mapped and whose header says how long they are."""
LONGEST_PATH = 4095
"""Bytes of a path that Linux takes."""
LONGEST_NAME = 255
"""Bytes of a file's name that Linux takes."""
ENDLESS_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def as_path(path: object, name: str = "path") -> Path:
    """Return a path. Raises BadInput for what no file can be called; `name` is the argument's."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise BadInput(f"{name} is {type(path).__name__}, needed is a path as text or Path")
    text = os.fspath(path)
    encoded = _encode(text)
    if not encoded or b"\0" in encoded:
        raise BadInput(f"{name} is {one_line(text)[:60]!r}, no file can be called so")
    longest = max(len(part) for part in encoded.split(b"/"))
    if len(encoded) > LONGEST_PATH or longest > LONGEST_NAME:
        raise BadInput(f"{name} is {one_line(text)[:60]!r}..., {len(text)} letters are too long")
    return Path(text)


def _encode(text: str) -> bytes:
    """Return a path as the system takes it; empty for text that has no such form."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return b""


def check_file(path: Path, what: str, most_bytes: int) -> int:
    """Return the size of a regular file.

    Raises UnknownName where none can be opened, BrokenFile for a pipe, a device or one too large.
    """
    path = as_path(path, what)
    try:
        status = path.stat()
    except OSError as error:
        raise UnknownName(f"no {what} {path}, {_why(error)}") from None
    if stat.S_ISDIR(status.st_mode):
        raise UnknownName(f"no {what} {path}, it is a folder, needed is a file")
    for is_kind, kind in ENDLESS_KINDS:
        if is_kind(status.st_mode):
            raise BrokenFile(f"{what} {path} is no regular file, it is {kind}")
    if status.st_size > most_bytes:
        raise BrokenFile(
            f"{what} {path} is too large, {status.st_size} bytes, needed are at most {most_bytes}"
        )
    return status.st_size


def read_bytes(path: Path, what: str, most_bytes: int) -> bytes:
    """Read a file whole; `what` names its kind in refusals. Raises UnknownName or BrokenFile."""
    check_file(path, what, most_bytes)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnknownName(f"no {what} {path}, {_why(error)}") from None


def file_sha256(path: Path, what: str, most_bytes: int = MOST_TENSOR_BYTES) -> str:
    """Return the hash of a file in hexadecimal digits. Raises UnknownName or BrokenFile."""
    check_file(path, what, most_bytes)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UnknownName(f"no {what} {path}, {_why(error)}") from None


def read_text(path: Path, what: str, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """Read a text file, without the mark that some editors put before UTF-8.

    Raises UnknownName or BrokenFile.
    """
    data = read_bytes(path, what, most_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BrokenFile(f"{what} {path} is no text, byte {error.start}, {error.reason}") from None


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    return error.strerror or one_line(error)
