"""The virtual clocks of Python and C++: one schedule, to the bit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime  # noqa: E402, F401
from support.scripts import load_command  # noqa: E402

load_command("cpp_parity")

from random_workloads import POLICIES, draw_workload, workload_json  # noqa: E402
from virtual_clocks import spans_in_cpp, spans_in_python  # noqa: E402

WORKLOADS = 40


@pytest.fixture(scope="module")
def clock(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build the C++ clock."""
    return cpp_runtime.tool("simulate", tmp_path_factory.mktemp("clock"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_spans_are_equal_to_the_bit(clock: Path, tmp_path: Path, policy: str) -> None:
    for seed in range(WORKLOADS):
        settings = draw_workload(seed, policy)
        computed = spans_in_cpp(clock, settings, tmp_path)
        assert computed == spans_in_python(settings), f"workload {seed}"


def refusal(clock: Path, tmp_path: Path, workload: dict[str, Any]) -> str:
    """Return the line with which a workload is refused."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps(workload))
    done = subprocess.run([clock, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_bad_workloads_are_one_line(clock: Path, tmp_path: Path) -> None:
    good = workload_json(draw_workload(1, "eft"))
    assert "the closest is eft" in refusal(clock, tmp_path, good | {"policy": "eff"})
    assert 'unknown key "polcy", the closest is policy' in refusal(
        clock, tmp_path, good | {"polcy": "eft"}
    )
    assert "1 to 64 are possible" in refusal(
        clock, tmp_path, good | {"elements": [], "applications": []}
    )
    application = good["applications"][0]
    first = application["tasks"][0]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tasks": [first | {"kind": 99}]}, "it is a whole number from 0 to"),
        ({"tasks": [first | {"needs": [0.5]}]}, "it is a whole number from 0 to 0"),
        ({"tasks": [first | {"needs": [0]}]}, "instances are open, workload"),
        ({"tasks": []}, "there are no tasks"),
        ({"arrivals_us": "soon"}, "this is no list"),
        ({"kinds": [{"name": "a", "costs_us": [], "times_us": []}]}, "0 numbers for"),
    ]
    for change, words in cases:
        workload = good | {"applications": [application | change]}
        assert words in refusal(clock, tmp_path, workload), change


def test_a_planned_task_is_given_to_the_element_of_its_type_that_ends_it_first(
    clock: Path, tmp_path: Path
) -> None:
    kind = {"name": "k", "costs_us": [10, 10], "times_us": [10, 10]}
    application = {
        **{"name": "a", "priority": 0, "deadline_us": None, "queue_limit": None},
        **{"arrivals_us": [0] * 4, "kinds": [kind], "tasks": [{"kind": 0, "needs": []}]},
    }
    workload = {
        **{"format": 1, "policy": "planned", "queueing": True, "correction": False},
        **{"elements": ["cpu", "cpu"], "applications": [application]},
    }
    (tmp_path / "w.json").write_text(json.dumps(workload))
    command = [str(clock), str(tmp_path / "w.json"), str(tmp_path / "s.txt")]
    subprocess.run(command, check=True, capture_output=True)
    lines = [line.split() for line in (tmp_path / "s.txt").read_text().splitlines()]
    assert sorted(int(place) for _, _, _, place, _, _ in lines) == [0, 0, 1, 1]
    assert max(float.fromhex(end) for *_, end in lines) == 20.0
