"""An exported folder that is as it was where writing, building or comparing a new one fails.

What was there is copied aside first, into a hidden folder in it. Its name says what it is worth if
the process is killed, and the next export acts on it: PARTIAL is a half copy, or no longer needed;
EARLIER holds all that was there; RETURNING holds what is not yet back in its place.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from nnstretch.errors import BadInput
from nnstretch.files.atomic import UNFINISHED
from nnstretch.files.journal import only_writer

PARTIAL, EARLIER, RETURNING = ".partial.", ".earlier.", ".returning."
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process which does not ask to be told."""


@contextmanager
def restored_on_failure(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Give the files and folders of these names in `folder` back as they were if the block fails.

    So it does where a signal ends the process; what was left by one that was killed is given back
    before the block begins. Times are kept, so that a build that is restored is as fresh as it was.
    A folder that was not there is gone again; what has other names stays. Raises BadInput where
    another process writes the folder, or it has no room.
    """
    existed = folder.is_dir()
    with unwound_by_signals():
        try:
            folder.mkdir(exist_ok=True)
            with only_writer(folder), _copied_aside(folder, names):
                yield
        finally:
            if not existed and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def _copied_aside(folder: Path, names: Sequence[str]) -> Iterator[None]:
    try:
        clean_up_after_kill(folder, names)
        aside = copy_aside(folder, [name for name in names if (folder / name).exists()])
    except OSError as error:
        raise BadInput(
            f"cannot write {folder}, its files cannot be copied aside first,"
            f" {error.strerror or error}"
        ) from error
    try:
        yield
    except BaseException:
        give_back(folder, aside, names)
        raise
    if aside is not None:
        shutil.rmtree(renamed(aside, PARTIAL))


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let a signal that would end the process at once unwind the block first, and end it then.

    Only in the main thread, the only one that may; handlers of others stay.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in ENDING if is_main and signal.getsignal(n) is signal.SIG_DFL]
    came: list[int] = []

    def unwind(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:  # another would break the cleaning up off
            raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])


def copy_aside(folder: Path, names: Sequence[str]) -> Path | None:
    """Copy the files and folders of these names, with their times; return where they are."""
    if not names:
        return None
    aside = folder / f"{PARTIAL}{secrets.token_hex(4)}{UNFINISHED}"
    try:
        aside.mkdir(0o700)
        for name in names:
            if (folder / name).is_dir():
                shutil.copytree(folder / name, aside / name, symlinks=True)
            else:
                shutil.copy2(folder / name, aside / name)
        return renamed(aside, EARLIER)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def give_back(folder: Path, aside: Path | None, names: Sequence[str]) -> None:
    """Put what was copied aside back in its place; what is new of these names is removed."""
    for name in names:
        if aside is None or not (aside / name).exists():
            remove(folder / name)
    if aside is not None:
        finish_return(folder, renamed(aside, RETURNING))


def finish_return(folder: Path, aside: Path) -> None:
    """Move everything in a folder back: a copy needs room that may be what was missing."""
    for path in aside.iterdir():
        target = folder / path.name
        if path.is_dir() or target.is_dir():
            remove(target)
        path.replace(target)
    aside.rmdir()


def clean_up_after_kill(folder: Path, names: Sequence[str]) -> None:
    """Give back what exports that were killed had copied aside, and remove what is of no use."""
    for aside in folder.glob(f"{PARTIAL}*{UNFINISHED}"):
        shutil.rmtree(aside)
    for aside in folder.glob(f"{EARLIER}*{UNFINISHED}"):
        give_back(folder, aside, names)
    for aside in folder.glob(f"{RETURNING}*{UNFINISHED}"):
        finish_return(folder, aside)


def renamed(aside: Path, worth: str) -> Path:
    """Rename a hidden folder by what it is worth now; return its path."""
    number = aside.name.removesuffix(UNFINISHED).rpartition(".")[2]
    return aside.rename(aside.with_name(f"{worth}{number}{UNFINISHED}"))


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
