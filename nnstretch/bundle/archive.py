"""The container under a bundle: a zip that notices every changed byte.

A zip checks the contents of its members, not its own headers. The seal, a sha256 of everything
before it, stands in the zip comment, so that no flipped bit anywhere goes unnoticed. Members are
stored, never deflated: weights hardly shrink, and a file that cannot expand cannot be a bomb.

Functions here raise ValueError with `MEMBER, WHY`; `read_bundle` puts the file's name before it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MANIFEST = "manifest.json"
SEAL = b"nnstretch sha256 "
SEAL_BYTES = len(SEAL) + 64
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The one timestamp in every bundle: equal contents make equal files."""
SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
ZIP_ERRORS = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, EOFError),
    *(NotImplementedError, RuntimeError, KeyError, OSError, OverflowError),
)


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def check_name(name: str) -> None:
    """Raise ValueError unless a member's name is a plain path below the folder of unpacking."""
    if not SAFE_NAME.fullmatch(name):
        raise ValueError(
            f"member {name[:80]!r}, a name must be a relative path of letters, digits, '.', '_',"
            " '+' and '-'"
        )


def check_plan_name(name: str) -> None:
    """Raise ValueError unless a plan's name is one word, which can stand in a path."""
    if "/" in name or not SAFE_NAME.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no plan's name, it is made of letters, digits, '.', '_', '+' and '-'"
        )


def write_sealed(path: Path, members: Mapping[str, bytes]) -> None:
    """Write members as a zip and seal it with a digest of the whole."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
        archive.comment = SEAL + b"0" * 64
    with path.open("r+b") as file:
        seal = _seal_of(file)
        file.seek(-SEAL_BYTES, os.SEEK_END)
        file.write(seal)


@contextmanager
def open_sealed(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield an archive with a valid seal. Raises ValueError for no zip, or a changed one."""
    with path.open("rb") as file:
        intact = _check_seal(file)
        try:
            with zipfile.ZipFile(file) as archive:
                _check_members(archive, os.fstat(file.fileno()).st_size)
                if not intact:
                    raise ValueError(_what_changed(archive))
                yield archive
        except ZIP_ERRORS as error:
            raise ValueError(
                f"not a readable zip, truncated or changed ({error or type(error).__name__})"
            ) from error


def read_member(archive: zipfile.ZipFile, name: str, size_bytes: int, sha256: str) -> bytes:
    """Return the bytes of one member. Raises ValueError when size or hash are others."""
    member = archive.NameToInfo.get(name)
    if member is None:
        raise ValueError(f"member {name}, it is missing")
    if member.file_size != size_bytes:
        raise ValueError(f"member {name}, {member.file_size} bytes, the manifest says {size_bytes}")
    try:
        data = archive.read(member)
    except ZIP_ERRORS as error:
        raise ValueError(
            f"member {name}, unreadable, its bytes were changed ({error or type(error).__name__})"
        ) from error
    if digest(data) != sha256:
        raise ValueError(
            f"member {name}, sha256 {digest(data)[:12]}..., the manifest says {sha256[:12]}..."
        )
    return data


def _seal_of(file: BinaryIO) -> bytes:
    bytes_left = os.fstat(file.fileno()).st_size - SEAL_BYTES
    sha256 = hashlib.sha256()
    file.seek(0)
    while bytes_left > 0 and (chunk := file.read(min(bytes_left, 1 << 20))):
        sha256.update(chunk)
        bytes_left -= len(chunk)
    return SEAL + sha256.hexdigest().encode()


def _check_seal(file: BinaryIO) -> bool:
    size = os.fstat(file.fileno()).st_size
    if size < SEAL_BYTES:
        raise ValueError(f"truncated or not a bundle, {size} bytes, a seal alone has {SEAL_BYTES}")
    seal = _seal_of(file)
    file.seek(-SEAL_BYTES, os.SEEK_END)
    written = file.read(SEAL_BYTES)
    file.seek(0)
    if not written.startswith(SEAL) and not zipfile.is_zipfile(file):
        raise ValueError(f"truncated or not a bundle, {size} bytes without a seal at their end")
    file.seek(0)
    return written == seal


def _check_members(archive: zipfile.ZipFile, file_bytes: int) -> None:
    seen: set[str] = set()
    for info in archive.infolist():
        check_name(info.filename)
        if info.filename in seen:
            raise ValueError(f"member {info.filename}, it is there twice")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(
                f"member {info.filename}, it is compressed ({info.file_size} bytes), bundles store"
                " their members"
            )
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise ValueError(
                f"member {info.filename}, it is a link or a device, bundles hold plain files"
            )
        seen.add(info.filename)
    total = sum(info.file_size for info in archive.infolist())
    if total > file_bytes:
        raise ValueError(f"members of {total} bytes in a file of {file_bytes}, they overlap")


def _what_changed(archive: zipfile.ZipFile) -> str:
    """Return which member no longer fits its checksum, or that the zip's headers changed."""
    for name in archive.namelist():
        try:
            archive.read(name)
        except ZIP_ERRORS:
            return f"member {name}, its bytes were changed"
    return "its headers or its seal were changed, the seal does not fit the contents"
