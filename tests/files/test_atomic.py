"""A file is written whole or not at all, keeps its mode, and a link to it stays one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput
from nnstretch.files.atomic import atomic_write, write_text


@pytest.fixture(autouse=True)
def _private() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_of_new_files(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    assert mode_of(tmp_path / "a") == 0o600
    os.umask(0o022)
    write_text(tmp_path / "b", "x")
    assert mode_of(tmp_path / "b") == 0o644


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444, 0o200])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(mode)
    with atomic_write(path) as aside:
        assert mode_of(aside) == 0o600  # nobody reads meanwhile what is private
        aside.write_text("new")
    assert (path.read_text(), mode_of(path)) == ("new", mode)


@pytest.mark.parametrize("name", ["a" * 255, "\u732b" * 85])
def test_a_name_may_be_as_long_as_the_system_takes(tmp_path: Path, name: str) -> None:
    for text in ("first", "second"):
        write_text(tmp_path / name, text)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "second"


def test_a_link_stays_and_leads_to_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "store" / "a")
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "store" / "a").read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["latest", "store"]
    assert os.listdir(tmp_path / "store") == ["a"]


def test_a_link_into_a_folder_that_is_gone_is_refused_before_and_by_its_name(
    tmp_path: Path,
) -> None:
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "gone" / "a")
    for write in (check_writable, lambda path: write_text(path, "x")):
        with pytest.raises(BadInput, match=f"cannot write {link}, no folder {tmp_path / 'gone'}"):
            write(link)


def write_half(path: Path) -> None:
    with atomic_write(path) as aside:
        aside.write_text("ne")
        raise RuntimeError("half")


def test_an_error_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half"):
        write_half(path)
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_text() == "old"
