"""Kernels of oneDNN beside the portable ones, in the layouts that it likes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_cpp,
    outputs_in_torch,
    translate_module,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from nnstretch.export.cpp.build import run_network  # noqa: E402
from nnstretch.export.cpp.project import write_project  # noqa: E402
from nnstretch.files.package_data import package_data  # noqa: E402

pytestmark = pytest.mark.slow


class Maps(nn.Module):
    """Whatever may meet a map in blocks: joins, parts, sums, gates, pools, means, odd channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.left = nn.Conv2d(32, 16, 1)
        self.right = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.both = nn.Conv2d(48, 48, 3, padding=1, stride=2)
        self.gate = nn.Conv2d(48, 48, 1)
        self.odd = nn.Conv2d(48, 20, 3, padding=1)
        self.even = nn.Conv2d(20, 48, 1)
        self.part = nn.Conv2d(16, 16, 3, padding=1)
        self.tall = nn.Conv2d(48, 64, 1)
        self.small = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute."""
        x = F.relu(self.stem(x))
        joined = torch.cat((self.left(x), self.right(x)), 1)
        pooled = F.max_pool2d(joined, 3, 2, 1)
        x = F.hardswish(self.both(joined) + pooled)
        gate = F.hardsigmoid(self.gate(F.adaptive_avg_pool2d(x, 1)))
        x = x * gate + self.even(F.silu(self.odd(x)))
        part = F.gelu(self.part(x[:, 16:32])) * 2 - F.elu(x[:, :16])
        # A mean that becomes a map again: one number a channel turns into pixels.
        square = self.small(self.tall(x.mean((2, 3), keepdim=True)).view(-1, 16, 2, 2))
        averaged = F.avg_pool2d(x, 2, ceil_mode=True)
        wide = F.max_pool2d(x, 2).flatten(1)
        head = self.head(x.mean((2, 3)))
        return part, square, averaged, wide, head, F.interpolate(x, scale_factor=2), x.amax((2, 3))


class Products(nn.Module):
    """Matrix products as networks have them: of any rank, scaled, repeated, of 16 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(16, 16, 1)
        self.wide = nn.Linear(20, 96)
        self.back = nn.Linear(96, 20)
        self.row = nn.Linear(20, 7)
        self.register_buffer("bias", torch.randn(1, 16, 9, 9))
        self.shared = nn.Parameter(torch.randn(20, 12))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute on maps of 16 channels, 9 x 20."""
        maps = self.stem(x)
        attended = F.scaled_dot_product_attention(maps, x, x, attn_mask=self.bias)
        wide = self.back(F.gelu(self.wide(attended.transpose(1, 2)))) + attended.transpose(1, 2)
        columns = torch.matmul(maps.transpose(2, 3), x)
        # One matrix for all maps, one map for all of them, and a product of few rows.
        shared = F.silu(torch.matmul(x, self.shared))
        one_map = torch.matmul(x[:, :1], self.shared) + torch.matmul(maps[:1, 3:4], self.shared)
        return wide, columns, shared, one_map, self.row(x.mean((1, 2))), maps + attended


def needs_onednn(runtime: CppRuntime) -> None:
    """Skip where CMake found no oneDNN."""
    if "onednn" not in runtime.kernel_sets:
        pytest.skip("oneDNN is not installed (Debian: libdnnl-dev and ocl-icd-opencl-dev)")


@pytest.mark.parametrize("batch", [1, 3])
def test_matrix_products_give_the_same_numbers(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    batch: int,
) -> None:
    torch.manual_seed(0)
    module, x = Products(), torch.randn(batch, 16, 9, 20)
    assert_close(outputs_in_cpp(cpp_runtime, module, [x], tmp_path), outputs_in_torch(module, [x]))
    needs_onednn(cpp_runtime)
    said = json.loads(run(tmp_path, "--json").stdout)
    # All but the product of few rows.
    products = sum(call.operation == "Matmul" for call in translate_module(module, x).calls)
    assert said["library_calls"] >= products - 1


@pytest.mark.parametrize("batch", [1, 2])
def test_maps_in_blocks_give_the_same_numbers(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    batch: int,
) -> None:
    torch.manual_seed(0)
    module, x = Maps(), torch.randn(batch, 3, 18, 22)
    program = translate_module(module, x)
    write_project(program, tmp_path)
    runner = cpp_runtime.build(tmp_path)
    for kernels in cpp_runtime.kernel_sets:
        for elements in ("cpu", "cpu,cpu,cpu"):
            options = ("--kernels", kernels, "--elements", elements, "--repeat", "5")
            computed = run_network(runner, [x.numpy()], len(program.outputs), options)
            assert_close(computed, outputs_in_torch(module, [x]))


@pytest.fixture(scope="module")
def chain(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build two convolutions with a pool between them."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(32, 16, 3), nn.Flatten()
    )
    folder = tmp_path_factory.mktemp("chain") / "net"
    x = torch.randn(1, 3, 12, 12)
    write_project(translate_module(module, x), folder)
    cpp_runtime.build(folder)
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "y.npy", outputs_in_torch(module, [x])[0])
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the built network."""
    command = [str(folder / "build" / "run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def element_library(name: str, folder: Path) -> Path:
    """Compile one of the elements of vendors that tests load by path."""
    home = package_data("cpp")
    library = folder / f"{name}.so"
    source = str(home / "tests" / f"{name}_element.c")
    command = ["cc", "-std=c99", "-shared", "-fPIC", f"-I{home / 'include'}", source]
    subprocess.run([*command, "-lpthread", "-o", str(library)], check=True)
    return library


class TwoPools(nn.Module):
    """Two pools of one map, neither needs the other."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute both."""
        return F.max_pool2d(x, 2), F.max_pool2d(x, 3)


@pytest.mark.parametrize("policy", ["rr", "eft", "etf", "heft_rt", "least_slack"])
def test_two_tasks_compute_at_the_same_time(
    cpp_runtime: CppRuntime,  # noqa: F811
    pools: Path,
    policy: str,
) -> None:
    # Either unit waits inside its task until the second one is inside its own, five times over.
    library = pools / "pair.so"
    elements = ("--elements", f"library:{library},library:{library}")
    costs = ("--costs", str(pools / "costs.json"))
    # Corrected costs could make it worth while to queue behind the first task: none may queue.
    options = ("--repeat", "5", "--no-queueing", "--policy", policy)
    done = run(pools, *elements, *costs, *options)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def pools(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build two pools, the element that computes only two at once, and its costs."""
    folder = tmp_path_factory.mktemp("pools") / "net"
    write_project(translate_module(TwoPools(), torch.randn(1, 3, 12, 12)), folder)
    cpp_runtime.build(folder)
    element_library("pair", folder)
    costs = folder / "costs.json"
    assert run(folder, "--profile", str(costs)).returncode == 0
    table = json.loads(costs.read_text())
    for row in table["costs_us"].values():
        row["pair"] = row["cpu"]
    costs.write_text(json.dumps(table))
    return folder


def test_elements_of_vendors_see_plain_maps(
    cpp_runtime: CppRuntime,  # noqa: F811
    chain: Path,
    tmp_path: Path,
) -> None:
    library = element_library("pool", tmp_path)
    elements = ("--elements", f"cpu,library:{library}")
    costs = tmp_path / "costs.json"
    assert run(chain, *elements, "--profile", str(costs)).returncode == 0
    table = json.loads(costs.read_text())
    (pool,) = [row for call, row in table["costs_us"].items() if call.startswith("pool2d")]
    pool["npu"] = pool["cpu"] / 1000
    costs.write_text(json.dumps(table))
    trace, y = tmp_path / "t.json", tmp_path / "y.npy"
    files = ("--input", str(chain / "x.npy"), "--output", str(y), "--trace", str(trace))
    for kernels in cpp_runtime.kernel_sets:
        done = run(chain, *elements, *files, "--costs", str(costs), "--kernels", kernels)
        assert done.returncode == 0, done.stderr
        assert_close([np.load(y)], [np.load(chain / "y.npy")])
        spans = [span for span in json.loads(trace.read_text())["traceEvents"] if "dur" in span]
        assert sorted(span["tid"] for span in spans) == [1, 1, 2]


def test_runner_says_which_kernels_it_has(cpp_runtime: CppRuntime, chain: Path) -> None:  # noqa: F811
    portable = run(chain, "--kernels", "portable", "--json")
    assert json.loads(portable.stdout)["kernels"] == "portable"
    refused = run(chain, "--kernels", "mkl")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "unknown kernels mkl, this build has" in refused.stderr
    needs_onednn(cpp_runtime)
    assert json.loads(run(chain, "--json").stdout)["kernels"].startswith("oneDNN ")
