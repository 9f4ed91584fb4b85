"""Property tests are not timed: a busy machine is no finding. Scripts can be imported by name."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import support.scripts  # noqa: F401
from attack.seed import SECONDS, SEED
from hypothesis import settings

# torchmetrics loads transformers, where it is of use to it, into every process that trains: a second
# or three that no test asks for. Here it is told that the version is too old.
TOO_OLD = str(Path(__file__).parent / "support" / "too_old")
sys.path.insert(0, TOO_OLD)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (TOO_OLD, os.environ.get("PYTHONPATH"))))

# Lightning has PyTorch look for a driver of NVIDIA's whenever it is asked for CUDA devices, which it
# is for every tensor that it traces: where there is none, the search is repeated each time.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "0")

# A shell has what it starts in the background ignore interrupts, and so would all that tests start:
# those that send signals would see nothing.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

MODULES = pytest.StashKey[int]()
"""How many were imported when garbage collections last left out what there was."""
# What libraries make while they are imported stays, and is looked through in vain.
gc.disable()

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--instances`, how many questions the search and brute force are both asked, `--pairs`,
    with how many graphs and machines buffers are doubled, `--layer-graphs`, how many graphs of
    random layers C++ computes, and `--chip-pairs`, on how many graphs and machines schedules of
    accelerators are tested, fifty at a time.
    """
    parser.addoption("--instances", type=int, default=60, metavar="N")
    parser.addoption("--pairs", type=int, default=4, metavar="N")
    parser.addoption("--layer-graphs", type=int, default=3, metavar="N")
    parser.addoption("--chip-pairs", type=int, default=100, metavar="N")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let tests that ask for `first_seed` run on fifty seeds from each of them on."""
    if "first_seed" in metafunc.fixturenames:
        metafunc.parametrize("first_seed", range(0, metafunc.config.getoption("--chip-pairs"), 50))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests, so that no long one comes last."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let garbage collections look at what tests make, not at every library's objects."""
    gc.freeze()
    gc.enable()
    session.config.stash[MODULES] = len(sys.modules)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Add the libraries that the tests of a file were the first to import."""
    if nextitem is None or nextitem.path == item.path:
        return
    if len(sys.modules) > item.config.stash[MODULES] + 200:
        gc.collect()
        gc.freeze()
        item.config.stash[MODULES] = len(sys.modules)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed of the attack where it took part, however it ended."""
    ran = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    if any("tests/attack/" in report.nodeid for report in ran):
        terminalreporter.write_line(f"attack: NNSTRETCH_ATTACK_SEED={SEED}, {SECONDS:.0f} s")


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """Let `gc.collect` look at what this module's tests make, not at what was there before."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_thread_stays_behind(quick_collections: None) -> Iterator[None]:
    """Fail where a thread of the project outlives the test."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    newer = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("nnstretch")
    ]
    for thread in newer:  # one that was told to end may take a moment
        thread.join(5)
    assert [thread.name for thread in newer if thread.is_alive()] == []


@pytest.fixture
def affinity_is_restored() -> Iterator[None]:
    """Fail where the test's thread may run on other cores than before."""
    from nnstretch.schedule.cpu_affinity import affinity

    before = affinity()
    yield
    assert affinity() == before
