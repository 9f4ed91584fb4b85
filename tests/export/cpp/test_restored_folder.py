"""A folder of C++ outlives signals: what a kill leaves behind is put right by the next export."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nnstretch.errors import BadInput
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.restored_folder import restored_on_failure

NAMES = ("export.json", "network.cpp", "layers", "build")
EXPORT = """
import sys
from pathlib import Path
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.restored_folder import restored_on_failure

folder = Path(sys.argv[1])
with restored_on_failure(folder, ("export.json", "network.cpp", "layers", "build")):
    (folder / "network.cpp").write_text("newer")
    (folder / "build" / "more").mkdir(parents=True)
    run_tool(["sh", "-c", f"cd {folder}; (touch started; sleep 2; mkdir -p build; touch build/late) & wait"], folder)
"""


def write_earlier(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or NAMES[:3]:
        if name == "layers":
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "forward.json").write_text("earlier layers")
        else:
            (folder / name).write_text(f"earlier {name}")


def state(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.fixture
def earlier(tmp_path: Path) -> dict[str, str]:
    """What a folder holds as the earlier export left it."""
    write_earlier(tmp_path / "before")
    return state(tmp_path / "before")


def fail_to_export(folder: Path) -> None:
    with suppress(BadInput), restored_on_failure(folder, NAMES):
        (folder / "network.cpp").write_text("newest")
        (folder / "build").mkdir(exist_ok=True)
        raise BadInput("cannot build")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_folder_back_and_ends_what_builds(
    tmp_path: Path, earlier: dict[str, str], number: int
) -> None:
    folder = tmp_path / "net"
    write_earlier(folder)
    with subprocess.Popen(
        [sys.executable, "-c", EXPORT, str(folder)], stderr=subprocess.DEVNULL
    ) as process:
        while not (folder / "started").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=30) == -number
    (folder / "started").unlink()
    assert state(folder) == earlier
    time.sleep(2.5)
    assert state(folder) == earlier


def test_what_a_kill_left_of_the_earlier_network_comes_back(
    tmp_path: Path, earlier: dict[str, str]
) -> None:
    folder = tmp_path / "net"
    write_earlier(folder / ".earlier.0a1b2c3d.unfinished")
    for name in NAMES[:2]:
        (folder / name).write_text("half")
    (folder / "build").mkdir()
    fail_to_export(folder)
    assert state(folder) == earlier
    assert not (folder / "build").exists()


def test_a_return_that_a_kill_broke_off_goes_on(tmp_path: Path, earlier: dict[str, str]) -> None:
    folder = tmp_path / "net"
    write_earlier(folder, "export.json")
    write_earlier(folder / ".returning.0a1b2c3d.unfinished", "network.cpp", "layers")
    (folder / "network.cpp").write_text("half")
    fail_to_export(folder)
    assert state(folder) == earlier


def test_a_half_copy_is_of_no_use(tmp_path: Path, earlier: dict[str, str]) -> None:
    folder = tmp_path / "net"
    write_earlier(folder)
    (folder / ".partial.0a1b2c3d.unfinished").mkdir()
    (folder / ".partial.0a1b2c3d.unfinished" / "network.cpp").write_text("earl")
    fail_to_export(folder)
    assert state(folder) == earlier


def test_an_export_that_succeeds_leaves_nothing_of_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    write_earlier(folder)
    write_earlier(folder / ".earlier.0a1b2c3d.unfinished")
    with restored_on_failure(folder, NAMES):
        (folder / "network.cpp").write_text("newest")
    assert {path.name for path in folder.iterdir()} == set(NAMES[:3])
    assert (folder / "network.cpp").read_text() == "newest"


def test_two_exports_do_not_write_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.files.journal.PATIENCE_S", 0.0)
    with restored_on_failure(tmp_path, NAMES):
        (tmp_path / "network.cpp").write_text("first")
        with (
            pytest.raises(BadInput, match="is written by another process"),
            restored_on_failure(tmp_path, NAMES),
        ):
            raise AssertionError
    assert state(tmp_path) == {"network.cpp": "first"}


def test_a_tool_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    late = tmp_path / "late"
    with pytest.raises(BadInput, match="timed out"):
        run_tool(["sh", "-c", f"(sleep 0.6; touch {late}) & wait"], tmp_path, timeout_s=0.2)
    time.sleep(0.6)
    assert not late.exists()
