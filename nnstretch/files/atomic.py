"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnstretch.errors import BadInput
from nnstretch.files.read import LONGEST_NAME, as_path

UNFINISHED = ".unfinished"
"""Ending of files that are still being written, or were when somebody was killed."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` if the block succeeds. Raises BadInput."""
    path = as_path(path, "output")
    target = link_target(path)
    if not target.parent.is_dir():
        raise BadInput(f"cannot write {path}, no folder {target.parent}, create it first")
    if path.is_dir():
        raise BadInput(f"cannot write {path}, it is a folder, name a file")
    if path.exists() and not path.is_file():
        raise BadInput(
            f"cannot write {path}, it is a device or a pipe that a file would take the place of,"
            " name a file"
        )
    try:
        aside = _create_aside(target)
    except OSError as error:
        raise BadInput(
            f"cannot write {path}, folder {target.parent}, {error.strerror or error}"
        ) from error
    try:
        yield aside
        _sync(aside)  # else a crash may leave the new name with nothing behind it
        if target.exists():
            aside.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(aside, target)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise BadInput(
                f"cannot write {path}, {os.strerror(error.errno)}, nothing is changed"
            ) from error
        raise
    finally:
        aside.unlink(missing_ok=True)


def link_target(path: Path) -> Path:
    """Return where a file is written: a link stays, and leads to what is written."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _create_aside(target: Path) -> Path:
    """Create an empty file beside another, which only its owner may read if that one exists."""
    end = f".{secrets.token_hex(4)}{UNFINISHED}"
    start = os.fsencode(f".{target.name}")[: LONGEST_NAME - len(end)]
    aside = target.parent / (start.decode("utf-8", "ignore") + end)
    mode = 0o600 if target.exists() else 0o666
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    return aside


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write text to a file, whole or not at all."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")
