"""A network on oneDNN's kernels under AddressSanitizer, with several inferences at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from nnstretch.capture.torch_export import trace
from nnstretch.errors import Mismatch
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.export import example_files
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate

LIBRARY = "libdnnl"
BUILD_S = 3600
"""Of a build with a sanitizer, which a busy machine takes long for."""
POLICIES = ("rr", "met", "eft", "etf", "heft_rt", "least_slack", "planned")


class Blocks(nn.Module):
    """What the library computes: convolutions of every kind, pools, a sum and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pointwise = nn.Conv2d(32, 32, 1)
        self.wide = nn.Conv2d(32, 16, 5, padding=2)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.head = nn.Conv2d(32, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the network."""
        x = torch.relu(self.stem(x))
        x = torch.relu(self.pointwise(self.depthwise(x)) + x)
        small = nn.functional.avg_pool2d(x, 2)
        return self.head(torch.cat((self.wide(x), self.up(small)), 1))  # type: ignore[no-any-return]


def library_rows(folder: Path) -> list[list[object]]:
    """Run the network under every policy; return a row each.

    Raises BadInput where oneDNN is missing, Mismatch for whatever the sanitizer says but leaks of
    the library itself, which are suppressed by its name.
    """
    torch.manual_seed(0)
    module, x = Blocks().eval(), torch.randn(1, 3, 48, 48)
    captured = trace(module, x, "blocks")
    with torch.no_grad():
        files = example_files([x.numpy()], [module(x).numpy()])
    write_project(translate(captured.graph, captured.weights), folder, files)
    target = folder / "build"
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DNNSTRETCH_SANITIZE=address"]
    run_tool(
        ["cmake", "-S", str(folder), "-B", str(target), *options, "-DNNSTRETCH_ONEDNN=ON"], folder
    )
    print("building oneDNN's kernels with address, undefined", file=sys.stderr)
    run_tool(["cmake", "--build", str(target), "--parallel", "2"], folder, BUILD_S)
    suppressed = folder / "leaks.txt"
    suppressed.write_text(f"leak:{LIBRARY}\n")
    environment = {**os.environ, "LSAN_OPTIONS": f"suppressions={suppressed}:print_suppressions=0"}
    return [row(policy, folder, environment) for policy in POLICIES]


def row(policy: str, folder: Path, environment: dict[str, str]) -> list[object]:
    """Run under one policy. Raises Mismatch where the program fails."""
    words = ["--kernels", "onednn", "--policy", policy, "--elements", "cpu,cpu,cpu"]
    words += ["--repeat", "60", "--places", "5", "--input", "example/input0.npy"]
    done = subprocess.run(
        [folder / "build" / "run", *words, "--expect", "example/output0.npy"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Mismatch(f"run failed, {policy} on oneDNN, {(done.stdout + done.stderr)[-1500:]}")
    kernels = done.stdout.partition("(kernels ")[2].partition(",")[0]
    return ["address, undefined", policy, f"60 on {kernels}: {done.stdout.splitlines()[-1]}"]
