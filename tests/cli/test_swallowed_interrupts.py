"""An interrupt ends a command whatever is imported or swallowed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SWALLOWED = """
import signal, sys, time
import nnstretch.__main__ as command

class Finalized:
    def __del__(self):  # as a callback of a library: what it raises goes no further
        signal.raise_signal(signal.SIGINT)

def run():
    finalized = Finalized()
    del finalized
    time.sleep(20)

sys.modules["nnstretch.cli"].main = run
sys.exit(command.main())
"""


IMPORTING = """
import signal, sys, time
import nnstretch.__main__ as command
import nnstretch.cli

command.LONGEST_IMPORT_S = 1.0

def run():
    import slow_to_import
    time.sleep(20)

sys.modules["nnstretch.cli"].main = run
sys.exit(command.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest", "printed"), [("print('whole')", "whole\n"), ("time.sleep(20); print('whole')", "")]
)
def test_an_interrupt_waits_for_the_end_of_an_import_but_not_for_ever(
    tmp_path: Path, rest: str, printed: str
) -> None:
    begun = "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0.1)\n"
    (tmp_path / "slow_to_import.py").write_text(f"{begun}{rest}\n")
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert (ended.returncode, ended.stdout) == (130, printed)
    assert ended.stderr == "nnstretch: interrupted\n"


def test_an_interrupt_that_a_callback_swallows_comes_again() -> None:
    program = f"import nnstretch.cli\n{SWALLOWED}"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "nnstretch: interrupted\n")
