"""How fine tasks are changes no bit where operators stay whole, and counts calls as CEDR does."""

from __future__ import annotations

import json
import resource
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cedr_example import EXAMPLE, INPUT, Model  # noqa: E402
from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_torch,
    translate_module,
)
from torch import nn  # noqa: E402

from nnstretch.errors import BadInput  # noqa: E402
from nnstretch.export.cpp.build import run_network  # noqa: E402
from nnstretch.export.cpp.project import write_project  # noqa: E402

pytestmark = pytest.mark.slow


def build(runtime: CppRuntime, module: nn.Module, x: torch.Tensor, folder: Path, name: str) -> Path:
    """Build a module with tasks of one granularity."""
    write_project(translate_module(module, x, granularity=name), folder / name)
    return runtime.build(folder / name)


@pytest.fixture(scope="module")
def example(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build the example of the slides with tasks by channel."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("example")
    return build(cpp_runtime, Model(), torch.zeros(INPUT), folder, "channel")


def test_channel_makes_the_calls_of_the_slides_and_computes_the_example(
    cpp_runtime: CppRuntime,  # noqa: F811
    example: Path,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module, x = Model(), torch.randn(INPUT)
    trace = tmp_path / "trace.json"
    for kernels in cpp_runtime.kernel_sets:
        options = ("--kernels", kernels, "--elements", "cpu,cpu", "--trace", str(trace))
        computed = run_network(example, [x.numpy()], 1, options)
        assert_close(computed, outputs_in_torch(module, [x]))
        events = json.loads(trace.read_text())["traceEvents"]
        tasks = [event["name"].partition("/")[2] for event in events if "dur" in event]
        calls = Counter(task.partition(" ")[0] for task in tasks if task)
        assert calls == EXAMPLE["derived"]["api_calls_per_image_in_the_slides_scheme"]


def test_no_room_for_the_arena_is_one_line(example: Path) -> None:
    limit = 1 << 30
    done = subprocess.run(
        [example, "--places", "4096"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("run: no memory for 4096 inferences of network at once, each")
    assert done.stderr.count("\n") == 1


class Grouped(nn.Module):
    """Groups, a residual sum and an activation behind it, two images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
        self.second = nn.Conv2d(4, 4, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the network."""
        x = torch.relu(self.first(x))
        return torch.cat((x, torch.sigmoid(self.second(x) + x)), 1)


def test_channel_keeps_groups_images_residuals_and_activations(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module, x = Grouped(), torch.randn(2, 2, 9, 9)
    runner = build(cpp_runtime, module, x, tmp_path, "channel")
    for kernels in cpp_runtime.kernel_sets:
        computed = run_network(runner, [x.numpy()], 1, ("--kernels", kernels))
        assert_close(computed, outputs_in_torch(module, [x]))


@pytest.mark.slow
def test_tasks_of_whole_operators_give_the_same_bits(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module, x = Grouped(), torch.randn(2, 2, 9, 9)
    results: list[np.ndarray] = []
    for name in ("layer", "branch", "network"):
        runner = build(cpp_runtime, module, x, tmp_path, name)
        for elements in ("cpu", "cpu,cpu"):
            options = ("--kernels", "portable", "--elements", elements)
            results += run_network(runner, [x.numpy()], 1, options)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_too_many_tasks_are_refused_with_their_counts() -> None:
    with pytest.raises(BadInput, match=r"1,024 CONV_2D, 1,056 ZIP\), network network, at most"):
        translate_module(nn.Conv2d(32, 32, 1), torch.zeros(1, 32, 4, 4), granularity="channel")
