"""What the runner of an exported network says of what it measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime, translate_module  # noqa: E402, F401
from torch import nn  # noqa: E402

from nnstretch.export.cpp.project import write_project  # noqa: E402


class Alike(nn.Module):
    """Calls of equal shapes that compute differently."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=2, dilation=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute everything of one map."""
        convolved = torch.relu(self.first(x)), self.first(x), self.second(x)
        functions = torch.tanh(x), nn.functional.mish(x)
        pooled = nn.functional.max_pool2d(x, 2), nn.functional.avg_pool2d(x, 2)
        sums = x * torch.sin(x), x / torch.sin(x)
        reduced = x.amax((2, 3)), x.mean((2, 3))
        sizes = [nn.functional.interpolate(x, scale_factor=2, mode=m) for m in MODES]
        return (*convolved, *functions, *pooled, *sums, *reduced, *sizes)


MODES = ("nearest", "bilinear")


@pytest.fixture(scope="module")
def built(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build the network."""
    folder = tmp_path_factory.mktemp("alike") / "net"
    write_project(translate_module(Alike(), torch.zeros(1, 4, 8, 8)), folder)
    cpp_runtime.build(folder)
    return folder


def run(folder: Path, *words: str) -> str:
    """Run the network; return what it said."""
    command = [str(folder / "build" / "run"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_calls_that_compute_differently_have_costs_of_their_own(
    built: Path, tmp_path: Path
) -> None:
    costs = tmp_path / "costs.json"
    run(built, "--profile", str(costs))
    keys = list(json.loads(costs.read_text())["costs_us"])
    for words in (
        ("conv2d 1x4x8x8 4x4x3x3 4 -> 1x4x8x8", "padding 1x1x1x1 dilation 1x1", "groups 1 relu"),
        ("conv2d 1x4x8x8 4x4x3x3 4 -> 1x4x8x8", "padding 2x2x2x2 dilation 2x2"),
        ("elementwise 1x4x8x8 -> 1x4x8x8", "tanh"),
        ("elementwise 1x4x8x8 -> 1x4x8x8", "mish"),
        ("pool2d 1x4x8x8 -> 1x4x4x4", "max"),
        ("pool2d 1x4x8x8 -> 1x4x4x4", "average"),
        ("binary 1x4x8x8 1x4x8x8 -> 1x4x8x8", "multiply"),
        ("binary 1x4x8x8 1x4x8x8 -> 1x4x8x8", "divide"),
        ("reduce", "max"),
        ("reduce", "mean"),
        ("resize2d 1x4x8x8 -> 1x4x16x16", "nearest"),
        ("resize2d 1x4x8x8 -> 1x4x16x16", "bilinear"),
    ):
        found = [key for key in keys if all(word in key for word in words)]
        assert len(found) == 1, (words, keys)


def test_a_critical_path_is_that_of_an_inference_by_its_number(built: Path, tmp_path: Path) -> None:
    """Spans of 64 inferences are kept, of all where a trace is written."""
    assert "critical path of inference 64 " in run(built, "--repeat", "70")
    traced = run(built, "--repeat", "70", "--trace", str(tmp_path / "t.json"))
    assert "critical path of inference 70 " in traced
    assert "no critical path is known" in run(built, "--deadline-ms", "0")


class Uneven(nn.Module):
    """Two convolutions beside each other, of which the second is the shorter by far."""

    def __init__(self) -> None:
        super().__init__()
        self.long, self.short = nn.Conv2d(3, 96, 3, padding=1), nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute both."""
        return self.long(x), self.short(x[:, :, :4, :4])


@pytest.mark.slow
def test_a_trace_starts_with_the_task_that_started_first(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder, trace = tmp_path / "uneven", tmp_path / "t.json"
    write_project(translate_module(Uneven(), torch.zeros(1, 3, 160, 160)), folder)
    cpp_runtime.build(folder)
    words = ("--kernels", "portable", "--elements", "cpu,cpu", "--trace", str(trace))
    run(folder, *words)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if "dur" in event]
    assert min(event["ts"] for event in events) == 0.0
