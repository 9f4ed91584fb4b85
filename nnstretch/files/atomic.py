"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnstretch.errors import BadInput
from nnstretch.files.read import as_path

UNFINISHED = ".unfinished"
"""Ending of files that are still being written, or were when somebody was killed."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` if the block succeeds. Raises BadInput."""
    path = as_path(path, "output")
    if not path.parent.is_dir():
        raise BadInput(f"cannot write {path}, no folder {path.parent}, create it first")
    if path.is_dir():
        raise BadInput(f"cannot write {path}, it is a folder, name a file")
    if path.exists() and not path.is_file():
        raise BadInput(
            f"cannot write {path}, it is a device or a pipe that a file would take the place of,"
            " name a file"
        )
    try:
        handle, aside = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent
        )
    except OSError as error:
        raise BadInput(
            f"cannot write {path}, folder {path.parent}, {error.strerror or error}"
        ) from error
    os.close(handle)
    try:
        yield Path(aside)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise BadInput(
                f"cannot write {path}, {os.strerror(error.errno)}, nothing is changed"
            ) from error
        raise
    finally:
        Path(aside).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text to a file, whole or not at all."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")
