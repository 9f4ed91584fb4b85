"""What `nnstretch accelerate` refuses, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_networks import refusal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: 1\ngroups: [{end: output, parts: 0}]", "parts, 0 is out of range"),
        ("format: 1\ngroups: [{end: output, pieces: 2}]", "unknown key 'pieces'"),
        ("format: 1\ngroups: [{end: stem}]", "no group computes conv2d_1 and 4 more, the schedule"),
        ("format: 1\ngroups: [{parts: 2}]", "either an end or operators"),
        ("format: 1\ngroups: [{end: output}]\nscopes: {g9.0: global}", "it is no instance"),
        ("format: 1\ngroups: [{end: output}]\nbindings: {g0.0: [16]}", "a cluster has 8"),
        (
            "format: 1\ngroups: [{end: output}]\nbindings: {g0.0: [1, 1, 2]}",
            "g0.0 has cores for 3 dimensions, the schedule, linear of 2x4 has 2",
        ),
        (
            "format: 1\ngroups: [{end: stem}, {end: output}]\nbindings: {g0.0: [4]}",
            "4 cores share dimension 0 of g0.0, the schedule, relu of 2x8x16x16 has 2 there",
        ),
        ("format: 1\ngroups: [{operators: [conv2d, conv2d]}]", "group g0 has conv2d twice"),
        ("format: 1\ngroups: [{end: output}", "is no YAML"),
        (
            "format: 1\ngroups: [{operators: [conv2d_1]}, {end: output}]",
            "group g0 reads relu of g1, the schedule, groups stand in an order",
        ),
        (
            "format: 1\ngroups: [{end: stem, parts: 2}, {end: output}]\norder: [g0.0, g1.0, g0.1]",
            "g1.0 in the order, the schedule, it needs g0.1 before it",
        ),
        (
            "format: 1\ngroups: [{end: stem}, {end: output}]\norder: [g0.0]",
            "g1.0 is not in the order",
        ),
        (
            "format: 1\ngroups: [{end: stem}, {end: output}]\nscopes: {g0.0: local}\n"
            "bindings: {g0.0: [1]}",
            "g0.0 leaves relu of 8192 B in local on 1 cores, the schedule, there stcp920 holds 2048",
        ),
    ],
)
def test_a_wrong_schedule_is_one_line(
    capsys: pytest.CaptureFixture[str], networks: Path, tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    sized = ("--assume", "local_buffer.size=2KiB", "--batch", 2, "--per-cluster", 2)
    command = (f"{networks}:tiny", "--accelerator", "stcp920", *sized, "--schedule", path)
    assert words in refusal(capsys, *command)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--explain", "groping"), "close to it: grouping"),
        (("--sweep", "local_buffer.size=4MiB:1MiB"), "B is at least A"),
        (("--sweep", "local_buffer.size"), "write FIELD=A:B"),
        (("--sweep", "local_buffer.size=1.2.3MiB:4MiB"), "write FIELD=A:B"),
        (("--sweep", "local_buffer.size=1e999MiB:1e999MiB"), "no more than 24 doublings"),
        (("--sweep", "local_buffer.size=1MiB:1e999MiB"), "no more than 24 doublings"),
        (("--sweep", "clock=1GHz:2KiB"), "A and B in the same unit or in units of one kind"),
        (("--sweep", "local_bufer.size=1MiB:2MiB"), "--sweep local_bufer.size=1MiB; close to"),
        (("--sweep", "ddr.bandwidth=1MiB:2MiB"), "no number of its unit in 'ddr.bandwidth=1MiB'"),
        (
            ("--sweep", "clock=1GHz:2GHz", "--assume", "clock=1GHz"),
            "field 'clock' is set twice, --assume and --sweep",
        ),
        (
            ("--accelerator", "ipu-like", "--sweep", "local_buffer.size=128KiB:256KiB"),
            "ddr.bandwidth of ipu-like never published",
        ),
    ],
)
def test_wrong_questions_are_one_line(
    capsys: pytest.CaptureFixture[str], networks: Path, option: tuple[str, ...], words: str
) -> None:
    assert words in refusal(capsys, f"{networks}:tiny", "--accelerator", "stcp920", *option)


@pytest.mark.parametrize(
    "option",
    [
        ("--sweep", "clock=1GHz:2GHz", "--assume", "clock=1GHz"),
        ("--sweep", "local_bufer.size=1MiB:2MiB"),
        ("--sweep", "ddr.bandwidth=1MiB:2MiB"),
        ("--sweep", "cores=1024:131072"),
        ("--out", "nets.py"),
        ("--out", "nets.py/deep/out"),
        ("--out", "dangling/out"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_scheduled(
    capsys: pytest.CaptureFixture[str],
    networks: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, ...],
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network is loaded")

    monkeypatch.chdir(networks.parent)
    (networks.parent / "dangling").symlink_to("nowhere")
    monkeypatch.setattr("nnstretch.cli.accelerate.accelerate.load_network", refuse)
    assert option[1].partition("=")[0] in refusal(
        capsys, f"{networks}:tiny", "--accelerator", "stcp920", *option
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny", "--accelerator", "stcp92"), "close to it: stcp920"),
        (("tiny", "--accelerator", "stcp920", "--batch", 0), "batch is 0"),
        (("tiny", "--accelerator", "stcp920", "--batch", 10**12), "250000000000 inputs at once"),
        (
            ("tiny", "--accelerator", "stcp920", "--batch", 2, "--per-cluster", 3),
            "1 to the batch of 2",
        ),
        (("tiny", "--accelerator", "stcp920", "--dtype", "fp64"), "no type fp64"),
        (
            ("tiny", "--accelerator", "stcp920", "--rule", "ordr=depth"),
            "unknown rule 'ordr', --rule ordr=depth; close to it: order",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--rule", "size=2"),
            "unknown rule 'size', --rule size=2; rules are order, batch-only, propagate, recomputed,"
            " clean-up, parts-margin",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--rule", "order"),
            "rule 'order' is '', --rule, write order= best, depth or breadth",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--rule", "recomputed=-1"),
            "rule 'recomputed' is '-1', --rule, write recomputed= a share of a group's MACs",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--rule", "order=best", "--rule", "order=depth"),
            "rule 'order' is set twice, --rule, name each rule once",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--policy", "lb", "--rule", "propagate=yes"),
            "--rule propagate=yes, policy lb, it computes layer by layer and has no such rule",
        ),
        (("tiny", "--accelerator", "nvdla-64", "--policy", "gb"), "gb needs a global buffer"),
        (("tiny", "--accelerator", "ipu-like"), "ddr.bandwidth of ipu-like never published"),
        (("odd", "--accelerator", "stcp920"), "no cost of"),
        (
            ("tiny", "--accelerator", "stcp920", "--assume", "ddr.size=64B"),
            "do not fit, stcp920, its ddr holds 64 B",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--assume", "local_buffer.size=64"),
            "does not fit even alone, stcp920, its smallest tiles need 952 B of a local buffer's"
            " 64 B, fallback: ddr would compute it",
        ),
        (
            ("tiny", "--accelerator", "stcp920", "--assume", "global_buffer.size=512B"),
            "its smallest tiles need 1024 B of the global buffer's 512 B, fallback: ddr",
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_culprit(
    capsys: pytest.CaptureFixture[str], networks: Path, arguments: tuple[object, ...], words: str
) -> None:
    assert words in refusal(capsys, f"{networks}:{arguments[0]}", *arguments[1:])
