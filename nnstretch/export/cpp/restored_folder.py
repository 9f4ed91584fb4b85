"""An exported folder that is as it was where writing, building or comparing a new one fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nnstretch.errors import BadInput
from nnstretch.files.atomic import UNFINISHED


@contextmanager
def restored_on_failure(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Give the files and folders of these names in `folder` back as they were if the block fails.

    Their times are kept, so that a build that is restored is as fresh as it was. A folder that was
    not there is gone again; what has other names stays.
    """
    existed = folder.is_dir()
    older = [name for name in names if (folder / name).exists()]
    with ExitStack() as stack:
        try:
            aside = TemporaryDirectory(UNFINISHED, ".before.", folder if older else None)
            before = Path(stack.enter_context(aside))
            copy_entries(folder, before, older)
        except OSError as error:
            raise BadInput(
                f"cannot write {folder}, its files cannot be copied aside first,"
                f" {error.strerror or error}"
            ) from error
        try:
            yield
        except BaseException:
            for name in names:
                remove(folder / name)
            for name in older:  # moved, since a copy needs room that may be what was missing
                (before / name).rename(folder / name)
            if not existed and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            raise


def copy_entries(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy the files and folders of these names, with their times."""
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True)
        else:
            shutil.copy2(source / name, target / name)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
