"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnstretch.errors import BadInput


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it takes the place of `path` only if the block succeeds."""
    path = Path(path)
    if not path.parent.is_dir():
        raise BadInput(f"cannot write {path}, no folder {path.parent}, create it first")
    if path.is_dir():
        raise BadInput(f"cannot write {path}, it is a folder, name a file")
    try:
        handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise BadInput(f"cannot write {path}, folder {path.parent}, {error.strerror or error}") from error
    os.close(handle)
    try:
        yield Path(aside)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")
