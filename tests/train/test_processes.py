"""Training as real processes: killed and resumed to the bit, shared out over two, out of disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.forked_verbs import ForkedVerb
from support.trainings import write_images
from torch import distributed as dist

from nnstretch.train.trainer import leave_process_group

FACTORY = """
import os, time
from torch import nn

class Slow(nn.Identity):
    def forward(self, x):
        if os.path.exists("slow"):
            time.sleep(0.02)
        return x

def make():
    stem = [Slow(), nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10))
"""
STILL = FACTORY.replace("nn.Dropout(0.2)", "nn.Identity()")
QUICK = (
    "--data.image_px 16 --data.batch_images 64 --trainer.threads 1 --trainer.precision fp32 --json"
)
RICH = (
    "--average.decay 0.9 --augment.mixup 0.2 --augment.flip 0.5 --trainer.precise_norm_images 128"
    " --trainer.deterministic true"
)
CURVE = "--trainer.max_epochs 3 --trainer.accelerator cpu --trainer.precise_norm_images 256"
ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
} | {"OMP_NUM_THREADS": "1"}


def words_of(words: str) -> list[str]:
    batch = "--data.batch_images"
    quick = QUICK.replace(f"{batch} 64 ", "") if batch in words else QUICK
    return ["train", "digits", "--model", "net.py:make", *quick.split(), *words.split()]


def begin(folder: Path, words: str, ranks: int = 1) -> ForkedVerb:
    """Fork it, and with `ranks` of 2 the second process that Lightning would start."""
    return ForkedVerb(words_of(words), folder, ENVIRONMENT, ranks)


def ended(process: ForkedVerb | subprocess.Popen[str]) -> tuple[int | None, str, str]:
    try:
        out, err = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def started(folder: Path, words: str, *launcher: str) -> tuple[int | None, str, str]:
    """Run it as a command that imports everything itself."""
    return ended(
        subprocess.Popen(
            [sys.executable, *launcher, "-m", "nnstretch", *words_of(words)],
            cwd=folder,
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    )


def report_of(status: int | None, out: str, err: str) -> dict[str, Any]:
    assert status == 0, err
    report: dict[str, Any] = json.loads(out)
    return report


def trained(folder: Path, words: str, ranks: int = 1) -> dict[str, Any]:
    return report_of(*ended(begin(folder, words, ranks)))


def kill_after(process: ForkedVerb, file: Path, saves: int) -> None:
    """SIGKILL once `file` has been written anew so many times.

    To be begun beside a file `slow`, or it may be over first.
    """
    seen: set[tuple[int, int]] = set()
    until = time.monotonic() + 120
    while len(seen) < saves and process.poll() is None and time.monotonic() < until:
        with suppress(FileNotFoundError):
            found = file.stat()
            seen.add((found.st_ino, found.st_mtime_ns))
        time.sleep(0.002)
    assert process.poll() is None, "it was over before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_a_training_killed_within_an_epoch_resumes_to_the_same_weights_bit_for_bit(
    tmp_path: Path,
) -> None:
    """Killed in its second epoch, beyond a save that is within it."""
    (tmp_path / "net.py").write_text(FACTORY)
    words = f"{RICH} --trainer.max_epochs 8 --trainer.save_every_steps 5"
    whole = trained(tmp_path, f"{words} --out whole")
    (tmp_path / "slow").touch()
    process = begin(tmp_path, f"{words} --out killed")
    kill_after(process, tmp_path / "killed" / "resume.safetensors", saves=7)
    (tmp_path / "slow").unlink()
    assert not (tmp_path / "killed" / "weights.safetensors").exists()
    resumed = trained(tmp_path, f"{words} --out killed --resume")
    for name in ("weights.safetensors", "best.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    untimed = [
        [
            {k: v for k, v in e.items() if k not in ("seconds", "images_per_s")}
            for e in run["history"]
        ]
        for run in (whole, resumed)
    ]
    assert untimed[0] == untimed[1]
    assert not [path.name for path in (tmp_path / "killed").iterdir() if path.name.startswith(".")]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with two processes that Lightning starts; return the folder around `two`."""
    folder = tmp_path_factory.mktemp("two_processes")
    (folder / "net.py").write_text(STILL)
    trained(folder, f"{CURVE} --out two --trainer.devices 2")
    return folder


@pytest.mark.slow
def test_two_processes_give_the_curve_of_one_with_the_whole_batch(two_processes: Path) -> None:
    """`data.batch_images` is over all processes.

    The one has 64 in a batch, the two have 32 each.
    """
    trained(two_processes, f"{CURVE} --out one")
    one, two = (
        json.loads((two_processes / name / "training.json").read_text()) for name in ("one", "two")
    )
    assert [len(run["history"]) for run in (one, two)] == [3, 3]
    for mine, theirs in zip(one["history"], two["history"], strict=True):
        for name in ("train_loss", "val_loss", "val_accuracy", "val_top5"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-4), name


def test_a_process_leaves_its_group(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    leave_process_group()
    assert not dist.is_initialized()
    leave_process_group()  # harmless where there is none


@pytest.mark.slow
def test_two_processes_of_torchrun_are_as_two_that_lightning_starts(two_processes: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    launcher += ("--log-dir", "logs")
    launched = report_of(*started(two_processes, f"{CURVE} --out launched", *launcher))
    alone = json.loads((two_processes / "two" / "training.json").read_text())
    assert alone["history"][0]["train_loss"] == launched["history"][0]["train_loss"]
    weights = [two_processes / name / "weights.safetensors" for name in ("two", "launched")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_two_processes_killed_within_an_epoch_resume_to_the_same_curve(tmp_path: Path) -> None:
    """The loss of the interrupted epoch is that of both processes, before and after.

    Both are forked with their imports done; above, Lightning and torchrun start them.
    """
    (tmp_path / "net.py").write_text(FACTORY)
    words = (
        "--trainer.max_epochs 4 --trainer.save_every_steps 5 --trainer.accelerator cpu"
        " --trainer.devices 2 --trainer.deterministic true"
    )
    whole = trained(tmp_path, f"{words} --out whole", ranks=2)
    (tmp_path / "slow").touch()
    process = begin(tmp_path, f"{words} --out killed", ranks=2)
    kill_after(process, tmp_path / "killed" / "resume.safetensors", saves=7)
    (tmp_path / "slow").unlink()
    resumed = trained(tmp_path, f"{words} --out killed --resume", ranks=2)
    for mine, theirs in zip(whole["history"], resumed["history"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-6)
    assert (tmp_path / "whole" / "weights.safetensors").read_bytes() == (
        tmp_path / "killed" / "weights.safetensors"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("broken", [2, 4])
def test_of_two_processes_one_that_refuses_says_why_and_the_other_ends(
    broken: int, tmp_path: Path
) -> None:
    """Whichever of them meets the image that cannot be read.

    Lightning looks every five seconds whether a process that it started has failed, and then kills
    the first one, with a line of its own: that may be before it has ended by itself. The reason has
    been said by then.
    """
    for part, count in (("train", 12), ("val", 2)):
        write_images(tmp_path / "images" / part, {"a": count, "b": count})
    (tmp_path / "images" / "train" / "a" / f"{broken}.png").write_bytes(b"nothing")
    (tmp_path / "net.py").write_text(FACTORY.replace("64, 10", "64, 2"))
    words = (
        "--data.name folder --data.root images --data.batch_images 8 --trainer.max_epochs 1"
        " --trainer.accelerator cpu --trainer.devices 2"
    )
    status, out, err = ended(begin(tmp_path, f"{words} --out two", ranks=2))
    assert (status, out) in ((1, ""), (-signal.SIGKILL, ""))
    said = [line for line in err.splitlines() if "Child process with PID" not in line]
    assert all(line.startswith("nnstretch: ") for line in said), err
    assert any(f"images/train/a/{broken}.png" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize(("limit_bytes", "reason"), [(4096, "cannot write"), (8, "File too large")])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    limit_bytes: int, reason: str, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the disk: every write beyond it fails alike.

    The smaller one meets TensorBoard's first.
    """
    (tmp_path / "net.py").write_text(FACTORY)
    words = words_of("--trainer.max_epochs 1 --out full")
    process = ForkedVerb(words, tmp_path, ENVIRONMENT, most_file_bytes=limit_bytes)
    status, out, err = ended(process)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1, err
    assert reason in err
    assert not [path.name for path in (tmp_path / "full").iterdir() if path.name != "logs"]
