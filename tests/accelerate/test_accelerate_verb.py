"""`nnstretch accelerate`: what it answers, and how it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.cli import run_verb
from nnstretch.cli.accelerate.schedule_rules import RULES, options_with_rules

TINY = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels, 4)
        self.example_inputs = (torch.zeros(1, 3, 16, 16),)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.body(x) + x)
        return self.head(x.mean((2, 3)))

def tiny():
    return Tiny()

class Outputs(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("fixed", torch.arange(6.0).reshape(2, 3))
        if wrong:
            with torch.no_grad():
                self.layer.weight[0, 0] = float("nan")

    def forward(self, x):
        y = torch.relu(self.layer(x))
        return y, y, self.fixed, x, y[:, 4:]

def several():
    return Outputs()

def without_numbers():
    return Outputs(True)

class OfBytes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.layer(x.float()))

def of_bytes():
    return OfBytes()

class Scaled(nn.Module):
    def forward(self, x, by):
        return torch.relu(x * by)

def scaled():
    return Scaled()

def odd():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.LPPool2d(2, 3))
"""


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(TINY, encoding="utf-8")
    return path


def answer(capsys: pytest.CaptureFixture[str], *argv: object) -> dict:
    status = run_verb("accelerate", [*map(str, argv), "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, ""), err
    return json.loads(out)  # type: ignore[no-any-return]


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert run_verb("accelerate", [*map(str, argv), "--json"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    return err.strip().removeprefix("nnstretch: ")


FIELDS = """
    throughput_per_s latency_ms ddr_bytes utilisation peak_bytes groups instances bound_per_s bound_by
    per_cluster iterations kernels instructions weights_ddr_bytes spills recomputed_macs assumed
    scheduling_s max_abs_error
"""


@pytest.mark.parametrize("policy", ["ddr", "gb", "lb", "ordered", "graphturbo", "best"])
def test_every_policy_answers_with_the_fields_of_the_contract(
    capsys: pytest.CaptureFixture[str], networks: Path, policy: str
) -> None:
    result = answer(
        capsys,
        f"{networks}:tiny",
        "--accelerator",
        "stcp920",
        "--batch",
        8,
        "--policy",
        policy,
        "--budget-s",
        0.1,
        "--check",
    )
    assert set(FIELDS.split()) <= set(result)
    assert result["throughput_per_s"] == pytest.approx(8 / result["latency_ms"] * 1000)
    assert result["throughput_per_s"] <= result["bound_per_s"]
    assert result["peak_bytes"]["local"] <= 8 * 1_310_720


def test_a_schedule_that_was_written_is_read_back_as_it_was(
    capsys: pytest.CaptureFixture[str], networks: Path, tmp_path: Path
) -> None:
    sized = ("--accelerator", "stcp920", "--assume", "local_buffer.size=2KiB", "--batch", 4)
    command = (f"{networks}:tiny", *sized, "--per-cluster", 4)
    first = answer(capsys, *command, "--out", tmp_path / "out", "--trace", tmp_path / "t.json")
    again = answer(capsys, *command, "--schedule", tmp_path / "out" / "schedule.yaml", "--check")
    assert first["instances"] > 1
    assert (again["order"], again["latency_ms"]) == (first["order"], first["latency_ms"])
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == first["instructions"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format: 1\ngroups: [{end: output, parts: 0}]", "parts, 0 is out of range"),
        ("format: 1\ngroups: [{end: output, pieces: 2}]", "unknown key 'pieces'"),
        ("format: 1\ngroups: [{end: stem}]", "no group computes"),
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
    ("what", "words"),
    [
        ("grouping", "parts of dimension"),
        ("slicing", "g0.1: "),
        ("ordering", "depth first: at most"),
        ("binding", "g0.0/"),
        ("movement", "g0.0"),
        ("layers", "g0: conv2d"),
        ("memory", "slot local ["),
        ("g0", "the local buffers hold 16384 B"),
        ("x", "in/x ddr [0"),
    ],
)
def test_why_is_explained_with_numbers(
    capsys: pytest.CaptureFixture[str], networks: Path, what: str, words: str
) -> None:
    sized = ("--accelerator", "stcp920", "--assume", "local_buffer.size=2KiB", "--batch", 4)
    lines = answer(capsys, f"{networks}:tiny", *sized, "--per-cluster", 4, "--explain", what)
    assert words in "\n".join(lines["explain"])


def test_a_sweep_gives_the_rate_at_each_doubling_and_the_knee(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    command = (f"{networks}:tiny", "--accelerator", "stcp920", "--batch", 4, "--sweep")
    swept = answer(capsys, *command, "ddr.bandwidth=1GB/s:0.064TB/s")["sweep"]
    values = [f"{1 << doublings}GB/s" for doublings in range(7)]
    assert [row["value"] for row in swept["rows"]] == values
    rates = [row["throughput_per_s"] for row in swept["rows"]]
    assert rates == sorted(rates)
    assert swept["knee"] in [row["value"] for row in swept["rows"]]


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
            ("--accelerator", "ipu-like", "--sweep", "ddr.bandwidth=1GB/s:2GB/s"),
            "ddr.bandwidth of ipu-like never published",
        ),
    ],
)
def test_wrong_questions_are_one_line(
    capsys: pytest.CaptureFixture[str], networks: Path, option: tuple[str, ...], words: str
) -> None:
    assert words in refusal(capsys, f"{networks}:tiny", "--accelerator", "stcp920", *option)


def test_results_that_stay_on_chip_save_traffic(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    command = (f"{networks}:tiny", "--accelerator", "stcp920", "--batch", 4, "--policy")
    in_ddr, on_chip = answer(capsys, *command, "ddr"), answer(capsys, *command, "graphturbo")
    assert on_chip["ddr_bytes"] < in_ddr["ddr_bytes"]
    assert on_chip["latency_ms"] < in_ddr["latency_ms"]


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


def test_a_layer_that_does_not_fit_even_alone_is_computed_from_ddr_where_the_machine_may(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    small = ("--assume", "local_buffer.size=64", "--assume", "fallback=ddr")
    command = (f"{networks}:tiny", "--accelerator", "stcp920", "--batch", 4)
    usual, fallen = answer(capsys, *command), answer(capsys, *command, *small, "--check")
    named = [spill for spill in fallen["spills"] if "fallback: ddr" in spill["rule"]]
    assert {spill["to"] for spill in named} == {"ddr"}
    assert any("relu" in spill["tensor"] for spill in named)
    assert fallen["peak_bytes"]["local"] <= 8 * 64
    assert fallen["latency_ms"] > usual["latency_ms"]
    assert fallen["throughput_per_s"] <= fallen["bound_per_s"]


def test_each_rule_is_an_option() -> None:
    texts = (
        "order=depth batch-only=yes propagate=yes recomputed=0.2 clean-up=no parts-margin=inf"
        " keep-weights=yes"
    )
    changed = options_with_rules(ScheduleOptions("ordered", "none"), texts.split())
    rules = ("depth", True, True, 0.2, False, math.inf, True)
    assert changed == ScheduleOptions("ordered", "none", *rules)
    defaults = (
        "order=best batch-only=no propagate=no recomputed=0.1 clean-up=yes parts-margin=1"
        " keep-weights=no"
    )
    plain = ScheduleOptions("ordered", "none", keep_weights=False)
    assert options_with_rules(changed, defaults.split()) == plain
    assert {rule[0] for rule in RULES.values()} == {
        field.name for field in fields(ScheduleOptions)
    } - {"policy", "overlap"}


def test_rules_change_what_is_scheduled(capsys: pytest.CaptureFixture[str], networks: Path) -> None:
    sized = ("--assume", "cores=2", "--assume", "local_buffer.size=3KiB", "--check")
    command = (f"{networks}:tiny", "--accelerator", "stcp920", *sized)
    in_parts = (*command, "--rule", "parts-margin=inf")
    rows, whole = answer(capsys, *in_parts), answer(capsys, *in_parts, "--rule", "batch-only=yes")
    assert any(group["factor"] > 1 and group["axis"] == 2 for group in rows["group_list"])
    assert {group["factor"] for group in whole["group_list"]} == {1}


def test_a_schedule_that_was_carried_out_says_so_to_people(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    sized = ["--accelerator", "stcp920", "--batch", "2", "--check"]
    assert run_verb("accelerate", [f"{networks}:tiny", *sized]) == 0
    assert "carried out on the host: differs from the network by" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["several", "without_numbers"])
def test_outputs_that_are_odd_are_compared_all_the_same(
    capsys: pytest.CaptureFixture[str], networks: Path, name: str
) -> None:
    """One twice, one that is a buffer, one that is the input, one without elements, and NaN."""
    asked = (f"{networks}:{name}", "--input", "2,4", "--accelerator", "stcp920", "--batch", 2)
    assert answer(capsys, *asked, "--check")["max_abs_error"] == pytest.approx(0, abs=1e-5)


def test_a_number_may_be_an_input_and_one_of_another_type_is_refused(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    asked = (f"{networks}:scaled", "--accelerator", "stcp920", "--check", "--input")
    assert answer(capsys, *asked, "1,4;()")["max_abs_error"] == 0
    asked = (f"{networks}:of_bytes", "--accelerator", "stcp920", "--check", "--input")
    refused = refusal(capsys, *asked, "2,4:uint8")
    assert "cannot be carried out on this host, --check" in refused


def test_results_take_the_place_of_no_input_and_of_no_other_result(
    capsys: pytest.CaptureFixture[str], networks: Path, tmp_path: Path
) -> None:
    asked, out = (f"{networks}:tiny", "--accelerator", "stcp920"), tmp_path / "out"
    assert "unknown accelerator" in refusal(capsys, asked[0], "--accelerator", "no", "--out", out)
    assert not out.exists()
    answer(capsys, *asked, "--out", out)
    schedule = out / "schedule.yaml"
    before = schedule.read_bytes()
    for words in (("--out", out), ("--trace", schedule)):
        refused = refusal(capsys, *asked, "--schedule", schedule, *words)
        assert f"{schedule}, it is the command's own input" in refused
    assert "is written twice" in refusal(capsys, *asked, "--out", out, "--trace", out / "chip.json")
    assert schedule.read_bytes() == before
    (tmp_path / "bad" / "chip.json").mkdir(parents=True)
    assert "it is a folder" in refusal(capsys, *asked, "--out", tmp_path / "bad")
    assert [path.name for path in (tmp_path / "bad").iterdir()] == ["chip.json"]
