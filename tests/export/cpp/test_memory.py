"""The arena of an inference: no task reads what an earlier one left there by chance."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime, translate_module  # noqa: E402, F401
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from nnstretch.export.cpp.project import write_project  # noqa: E402
from nnstretch.files.package_data import package_data  # noqa: E402

pytestmark = pytest.mark.slow
ORDERS = 20


class Branches(nn.Module):
    """Branches of several depths, joined twice, the joins written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.deep = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)))
        self.flat = nn.Conv2d(8, 4, 1)
        self.depthwise = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Hardswish())
        self.wide = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(12, 24, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the branches."""
        x = F.relu(self.stem(x))
        x = torch.cat((self.deep(x), self.flat(x)), 1)
        return torch.cat((self.depthwise(x), self.wide(x) * 2, x), 1)


class DenseBlock(nn.Module):
    """Layers that read all earlier maps, and a second output in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 + 3 * i, 3, 3, padding=1) for i in range(5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the block."""
        for layer in self.layers:
            x = torch.cat((x, F.relu(layer(x))), 1)
        return F.adaptive_avg_pool2d(x, 1).flatten(1), x[:, 4:10].softmax(1)


class HourGlass(nn.Module):
    """Down and up again, with borders, sums and maps that live long."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 16, 3)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.end = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the network."""
        y = F.relu(self.down(x))
        small = self.middle(F.pad(F.max_pool2d(y, 2), (2, 0, 0, 2), mode="replicate"))
        y = y + F.interpolate(self.up(F.gelu(small)), y.shape[2:], mode="bilinear")
        return torch.sigmoid(self.end(y)) * x


class Sentence(nn.Module):
    """An encoder layer: products of two maps, transposes, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer on rows as tokens."""
        return self.layer(x.flatten(2))


NETWORKS = {
    "branches": (Branches, (1, 4, 14, 14)),
    "dense": (DenseBlock, (2, 4, 9, 7)),
    "hour_glass": (HourGlass, (1, 4, 12, 10)),
    "sentence": (Sentence, (1, 6, 4, 4)),
}


def exported(name: str, folder: Path) -> Path:
    """Write a network's folder."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    write_project(translate_module(make(), torch.zeros(shape)), folder)
    return folder


def poisoning(runtime: CppRuntime, folder: Path) -> Path:
    """Compile the program that runs a network, the same for all of one name."""
    target = runtime.folder / "poisoned.o"
    if not target.exists():
        source = package_data("cpp") / "tests" / "poisoned.cpp"
        runtime.compile(["-c", source, "-DNETWORK=nns_model_network", "-o", target], folder)
    return target


def poisoned(runtime: CppRuntime, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an exported network in many orders, with its memory poisoned between tasks."""
    sources = [folder / "network.cpp", poisoning(runtime, folder)]
    program = runtime.link(sources, folder / "poisoned", folder)
    command = [program, folder / "weights.bin", str(ORDERS)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_task_reads_what_it_does_not_need(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    done = poisoned(cpp_runtime, exported(name, tmp_path))
    said = re.fullmatch(
        rf"0 of {ORDERS + 1} orders wrong, (\d+) tasks, (\d+) numbers poisoned\n", done.stdout
    )
    assert said, done.stdout + done.stderr
    tasks, numbers = map(int, said.groups())
    assert tasks > 3
    assert numbers > 100 * tasks


@pytest.mark.parametrize("name", NETWORKS)
def test_a_tensor_that_was_never_written_shows(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    source = exported(name, tmp_path) / "network.cpp"
    begin, first, second, *rest = re.split(r"(?=  net\.begin_task)", source.read_text())
    calls = re.sub(r"net\.call\((?:.|\n)*?\);\n", "(void)operation;\n", second)
    assert calls != second
    source.write_text("".join((begin, first, calls, *rest)))
    done = poisoned(cpp_runtime, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{ORDERS + 1} of {ORDERS + 1} orders wrong"), done.stdout
