"""Weights files: kinds of numbers, numbers that are none, and files that are written."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.trainings import small_net

from nnstretch.errors import BadInput
from nnstretch.stretch.weights.weights_file import load_weights, save_weights, write_tensors


@pytest.mark.parametrize(
    ("key", "change", "reason"),
    [
        ("0.weight", torch.Tensor.cfloat, "0.weight holds complex numbers, the network wants fl"),
        ("0.weight", torch.Tensor.bool, "0.weight holds whole numbers, the network wants floating"),
        ("1.running_mean", torch.Tensor.long, "1.running_mean holds whole numbers"),
        ("1.num_batches_tracked", torch.Tensor.float, "tracked holds floating-point numbers, the"),
        ("8.bias", lambda bias: bias * torch.nan, "8.bias holds values that are no numbers"),
        (
            "8.bias",
            lambda bias: bias.double() + 1e39,
            "8.bias holds values that are infinite as float32",
        ),
        ("1.running_var", lambda buffer: buffer * torch.nan, "1.running_var holds values that are"),
        ("1.running_var", lambda buffer: buffer - 1.5, "1.running_var holds values below 0"),
    ],
)
def test_weights_of_another_kind_or_of_no_use_are_refused(
    tmp_path: Path, key: str, change: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    path, network = tmp_path / "w.safetensors", small_net()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    write_tensors(state | {key: change(state[key])}, path)
    with pytest.raises(BadInput, match=rf"weights .*w\.safetensors .*{re.escape(reason)}"):
        load_weights(network, path)
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_and_infinite_buffers_are_taken(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    network = small_net()
    network.register_buffer("mask", torch.full((2,), -torch.inf))
    state = {name: value.clone() for name, value in network.state_dict().items()}
    write_tensors(state | {"8.bias": state["8.bias"].to(dtype)}, tmp_path / "w.safetensors")
    load_weights(network, tmp_path / "w.safetensors")
    assert torch.equal(network[8].bias, state["8.bias"].to(dtype).float())


def test_a_weights_file_has_the_mode_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_weights(small_net(), tmp_path / "w.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "w.safetensors").stat().st_mode) == 0o640


KILLED_WITHIN = """
import resource, signal, sys
from pathlib import Path
import torch
from nnstretch.stretch.weights.weights_file import write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
write_tensors({"a": torch.zeros(9000)}, Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_of_a_save_that_is_killed_only_the_unfinished_file_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_WITHIN, str(tmp_path / "w.safetensors")]
    assert subprocess.run(command).returncode == -signal.SIGXFSZ
    (half,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.w\.safetensors\.[0-9a-f]+\.unfinished", half.name)
