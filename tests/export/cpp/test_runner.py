"""What the runner of an exported network refuses, in one line, before it computes or writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cpp import CppRuntime, cpp_runtime, translate_module  # noqa: E402, F401
from torch import nn  # noqa: E402

from nnstretch.export.cpp.project import write_project  # noqa: E402
from nnstretch.files.read import MOST_JSON_BYTES  # noqa: E402

SHAPES = {"image": (1, 3, 8, 8), "depth": (1, 1, 8, 8)}
NOWHERE = "/nowhere/file"


class Pair(nn.Module):
    """Two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(1, 4, 3, padding=1)

    def forward(
        self, image: torch.Tensor, depth: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the network."""
        both = self.first(image) - self.second(depth)
        return torch.relu(both), both.mean((2, 3))


@pytest.fixture(scope="module")
def built(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Build the network."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("pair") / "net"
    inputs = [torch.zeros(shape) for shape in SHAPES.values()]
    write_project(translate_module(Pair(), *inputs), folder)
    cpp_runtime.build(folder)
    for name, shape in SHAPES.items():
        np.save(folder / f"{name}.npy", np.ones(shape, np.float32))
    os.mkfifo(folder / "pipe")
    return folder


def run(folder: Path, *words: str, stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    """Run the network in its folder; return its status and what it said."""
    command = [str(folder / "build" / "run"), *words]
    pipes = {"stdout": stdout, "stderr": subprocess.PIPE}
    done = subprocess.run(command, cwd=folder, text=True, check=False, timeout=60, **pipes)  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


REPEAT = "it is a whole number from 1 to 10000000"
DEADLINE = "it is a decimal number from 0 to 1000000000"
TWO = "the network has 2: image, depth"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("--polcy eft", "unknown option --polcy, command line, the closest is --policy"),
        ("--frob 1", "unknown option --frob, command line, there are --weights, --input"),
        ("--policy heft", "unknown policy heft, the closest is eft"),
        ("--policy zyx", "unknown policy zyx, there are rr, met"),
        ("--policy eft --policy rr", "--policy is there twice, command line"),
        ("--kernels", "--kernels has no value, command line"),
        ("--input --json", "--input has no value, command line"),
        ("--elements gpu", "unknown element gpu, elements are cpu"),
        ("--elements cpu,", "element 2 has no name, elements are cpu"),
        ("--elements cpu:+0", "element cpu:+0, its core is a number from 0 on"),
        ("--elements cpu:4095", "element cpu:4095, there is no such core for this process"),
        ("--elements library:./pipe", "library ./pipe, it is no regular file"),
        ("--repeat nan", f"--repeat is nan, command line, {REPEAT}"),
        ("--repeat 1.5", f"--repeat is 1.5, command line, {REPEAT}"),
        ("--repeat 0x10", f"--repeat is 0x10, command line, {REPEAT}"),
        ("--repeat 1e3", f"--repeat is 1e3, command line, {REPEAT}"),
        ("--repeat +5", f"--repeat is +5, command line, {REPEAT}"),
        ("--repeat 10000001", f"--repeat is 10000001, command line, {REPEAT}"),
        ("--places 0", "--places is 0, command line, it is a whole number from 1 to 4096"),
        ("--deadline-ms nan", f"--deadline-ms is nan, command line, {DEADLINE}"),
        ("--deadline-ms -1", f"--deadline-ms is -1, command line, {DEADLINE}"),
        ("--profile c.json --graph g.json", "--profile and --graph, command line, they are two"),
        ("--measure m.json --profile c.json", "--measure and --profile, command line, they are"),
        ("--profile c.json --json", "--json, command line, it is of no use with --profile"),
        ("--input image.npy --graph g.json", "--input, command line, it is of no use with --graph"),
        (
            "--profile c.json --elements emulated:dsp",
            "emulated elements have no times of their own",
        ),
        (
            "--elements cpu,emulated:dsp",
            "element dsp1 has no costs, emulated elements take theirs from --costs: calls of",
        ),
        ("--input image.npy", "there is no file for input depth, all inputs have one or none"),
        (
            "--input photo=image.npy",
            f"--input photo=image.npy, command line, there is no photo, {TWO}",
        ),
        ("--output y=y.npy", "--output y=y.npy, command line, there is no y, the network has 2: "),
        (
            "--output y.npy --output ./y.npy",
            "y.npy and --output ./y.npy, command line, they are one",
        ),
        (
            "--output y.npy --trace y.npy",
            "--output y.npy and --trace y.npy, command line, they are",
        ),
        ("--trace weights.bin", "--trace weights.bin, command line, they are one file"),
        (f"--output {NOWHERE}", f"{NOWHERE}, cannot be written: No such file or directory"),
        (f"--measure {NOWHERE}", f"{NOWHERE}, cannot be written: No such file or directory"),
        ("--weights .", "weights ., it is a folder, no regular file"),
        ("--weights pipe", "weights pipe, it is no regular file"),
        ("--costs pipe", "pipe, it is no regular file"),
        ("--costs /dev/zero", "/dev/zero, it is no regular file"),
        ("--input pipe --input depth.npy", "pipe, it is no regular file"),
        ("--input . --input depth.npy", "., it is a folder, no regular file"),
        ("--input none.npy --input depth.npy", "none.npy, cannot be opened: No such file"),
        ("--input weights.bin --input depth.npy", "weights.bin, this is no .npy file"),
        ("--expect none.npy", "none.npy, cannot be opened: No such file"),
    ],
)
def test_bad_arguments_are_one_line(built: Path, words: str, refusal: str) -> None:
    before = sorted(path.name for path in built.iterdir())
    status, said, why = run(built, *words.split())
    assert (status, said) == (1, "")
    assert refusal in why
    assert why.count("\n") == 1
    assert sorted(path.name for path in built.iterdir()) == before


def test_a_path_may_hold_an_equals_sign(built: Path, tmp_path: Path) -> None:
    y = tmp_path / "y=1.npy"
    assert run(built, "--output", str(y))[0] == 0
    assert np.load(y).shape == (1, 4, 8, 8)


def forged(weights: bytes, offset: int) -> bytes:
    """Return weights whose first tensor is said to lie elsewhere, with the digest that fits."""
    name_bytes = int.from_bytes(weights[96:100], "little")
    at = 100 + name_bytes
    at += 4 + 8 * int.from_bytes(weights[at : at + 4], "little")
    behind = weights[96:at] + offset.to_bytes(8, "little") + weights[at + 8 :]
    return weights[:64] + sha256(behind).digest() + behind


def test_bad_files_are_one_line(built: Path, tmp_path: Path) -> None:
    weights = (built / "weights.bin").read_bytes()
    name = str(tmp_path / "file")
    array = np.zeros((1, 3, 8, 8), np.float32)
    wrong = array.copy()
    wrong[0, 0, 0, :2] = np.nan, np.inf
    np.save(tmp_path / "sound.npy", array)
    sound = (tmp_path / "sound.npy").read_bytes()
    escape = sound.replace(b"'<f4'", b"\x1b]0;'")
    last_digit = weights[:63] + bytes([weights[63] ^ 1]) + weights[64:]
    keys = ", ".join(f'"{key}": {{}}' for key in range(300_000))
    costs = '{"format": 1, "costs_us": '
    cases: list[tuple[str, bytes | np.ndarray, str]] = [
        ("--input", wrong, "2 of 192 numbers are NaN or infinite"),
        ("--input", array.astype(np.float64), "its numbers are '<f8'"),
        ("--input", array[..., :7], "its shape is (1, 3, 8, 7), wanted is (1, 3, 8, 8)"),
        ("--input", np.asfortranarray(array), "Fortran order"),
        (
            "--input",
            sound.replace(b"False", b"0    "),
            "in Fortran order is 0    , False is wanted",
        ),
        ("--input", sound[:6] + b"\x09" + sound[7:], "its version of .npy is 9, 1 to 3 are known"),
        ("--input", b"", "it is empty, no .npy file"),
        ("--input", sound[:-1], "it is cut short"),
        ("--input", sound + b"1", "it is longer than it says"),
        ("--input", escape, "its numbers are \\x1b]0;'"),
        ("--weights", weights[:-7], "bytes where"),
        ("--weights", weights[:-1] + bytes([weights[-1] ^ 1]), "were changed"),
        ("--weights", weights[:8] + b"\x09" + weights[9:], "of version 9"),
        ("--weights", weights[:32] + bytes(32) + weights[64:], "fingerprint 000000000000, this"),
        ("--weights", last_digit, f"fingerprint {last_digit[32:64].hex()}, this one is "),
        ("--weights", b"", "shorter than its header"),
        ("--weights", forged(weights, len(weights) // 64 * 64 + 64), "lies outside the file"),
        ("--weights", forged(weights, (1 << 64) - 64), "lies outside the file"),
        ("--weights", forged(weights, len(weights) // 64 * 64 - 4), "lies outside the file"),
        ("--weights", forged(weights, 0), "lies outside the file"),
        ("--costs", b'{"format": 1, "cost_us": {}}', 'unknown key "cost_us"'),
        ("--costs", f'{costs}{{"a": {{"cpu": -1}}}}}}'.encode(), "is no number"),
        ("--costs", f'{costs}{{"a": {{"cpu": 1e300}}}}}}'.encode(), "microseconds from 0 to 1e18"),
        ("--costs", f'{costs}{{"a": {{"cpu": 1e999}}}}}}'.encode(), "the number is too large"),
        ("--costs", f'{costs}{{"a": {{"cpu": 01}}}}}}'.encode(), "this is no number"),
        ("--costs", f'{costs}{{"a": {{"cpu": NaN}}}}}}'.encode(), "this is no number"),
        ("--costs", f'{costs}{{"a": [1]}}}}'.encode(), 'costs of "a" are no object'),
        ("--costs", f'{costs}{{"a": {{}}, "a": {{}}}}}}'.encode(), 'key "a" is there twice'),
        ("--costs", f"{costs}{{{keys}}}}}".encode(), "no cost of"),
        ("--costs", b"[" * 5000, "nested too deep"),
        ("--costs", b"", "file, it is empty"),
        ("--costs", b"{}\0", "byte 2, something follows the end"),
        ("--costs", b"\xef\xbb\xbf{}", "it begins with a byte order mark"),
        ("--costs", b'{"\\ud800": 1}', "half of a pair of \\u escapes"),
    ]
    for option, content, refusal in cases:
        if isinstance(content, bytes):
            Path(name).write_bytes(content)
        else:
            with Path(name).open("wb") as file:
                np.save(file, content)
        beside = ("--input", "depth.npy") if option == "--input" else ()
        status, _, why = run(built, option, name, *beside)
        assert status == 1, (option, refusal)
        assert refusal in why, (option, why)
        assert why.count("\n") == 1
        assert "\x1b" not in why


def test_what_cannot_be_printed_is_a_failure(built: Path, tmp_path: Path) -> None:
    costs = str(tmp_path / "c.json")
    for words in ((), ("--json",), ("--help",), ("--profile", costs)):
        with Path("/dev/full").open("w") as full:
            status, _, why = run(built, *words, stdout=full.fileno())
        assert (status, why) == (1, "run: standard output, the result cannot be written there\n")


def test_a_result_without_room_is_a_refusal_and_leaves_nothing(built: Path, tmp_path: Path) -> None:
    y = tmp_path / "y.npy"
    limited = f"ulimit -f 1; exec {built / 'build' / 'run'} --repeat 400 --trace {y}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"run: {y}, cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_an_inference_that_was_too_late_has_no_outputs(built: Path, tmp_path: Path) -> None:
    late = f"--repeat 2 --deadline-ms 0 --output {tmp_path / 'y.npy'} --trace {tmp_path / 't.json'}"
    status, _, said = run(built, *late.split())
    assert (status, said) == (
        1,
        "run: --deadline-ms, command line, the last inference was too late: it has no outputs\n",
    )
    assert not (tmp_path / "y.npy").exists()
    assert (tmp_path / "t.json").exists()
    assert run(built, "--repeat", "2", "--deadline-ms", "0")[0] == 0  # counted only


def test_a_profile_says_what_emulated_elements_still_need(built: Path, tmp_path: Path) -> None:
    costs = tmp_path / "c.json"
    status, said, _ = run(built, "--profile", str(costs), "--elements", "cpu,emulated:dsp")
    assert status == 0
    assert 'none of dsp1, it is emulated: add to calls what they shall take there as "dsp"' in said
    table = json.loads(costs.read_text())
    for times in table["costs_us"].values():
        times["dsp"] = 2 * times["cpu"]
    costs.write_text(json.dumps(table))
    words = ("--costs", str(costs), "--elements", "cpu,emulated:dsp", "--policy", "rr")
    assert run(built, *words)[0] == 0


@pytest.mark.slow
def test_a_trace_is_as_long_as_report_reads(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    words = ("--repeat", "130000", "--places", "32", "--policy", "rr", "--trace", str(path))
    status, _, said = run(built, *words)
    assert status == 0, said
    assert path.stat().st_size <= MOST_JSON_BYTES
    events = json.loads(path.read_text())["traceEvents"]
    tasks = sum(event["ph"] == "X" for event in events)
    assert f"holds the first {tasks} tasks of " in said


@pytest.mark.slow
def test_a_result_replaces_files_only_and_whole(built: Path, tmp_path: Path) -> None:
    """What a link names is written; queues, folders and files of others nearby stay."""
    queue, real, link, other = (
        tmp_path / name for name in ("queue", "real", "link", "y.unfinished")
    )
    os.mkfifo(queue)
    link.symlink_to(real)
    for path in (real, other):
        path.write_text("before")
    for kind in ("--output", "--trace", "--profile", "--graph", "--measure"):
        for path in (queue, tmp_path):
            status, _, why = run(built, kind, str(path))
            assert status == 1
            assert why.strip().endswith("cannot be written, it is no regular file")
    assert queue.is_fifo()
    assert run(built, "--output", str(link))[0] == 0
    assert link.is_symlink()
    assert np.load(real).size
    command = [str(built / "build" / "run"), "--repeat", "300", "--trace", str(tmp_path / "y")]
    writers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert json.loads((tmp_path / "y").read_text())["traceEvents"]
    assert other.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (queue, real, link, other, tmp_path / "y")
    )


@pytest.mark.slow
def test_a_signal_leaves_nothing_unfinished(built: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    command = [str(built / "build" / "run"), "--repeat", "30000", "--trace", str(trace)]
    ends: list[int] = []
    while not ends or (ends[-1] == 0 and len(ends) < 100):
        runner = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while runner.poll() is None:
            if list(tmp_path.glob("*.unfinished")):
                runner.send_signal(signal.SIGTERM)
        ends.append(runner.wait(60))
        assert list(tmp_path.glob("*.unfinished")) == []
    assert ends[-1] == -signal.SIGTERM
