"""`nnstretch accelerate`: what it answers."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
from support.tiny_networks import answer, refusal

from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.cli import run_verb
from nnstretch.cli.accelerate.schedule_rules import RULES, options_with_rules

FIELDS = """
    throughput_per_s latency_ms ddr_bytes utilisation peak_bytes groups instances bound_per_s bound_by
    per_cluster iterations kernels instructions weights_ddr_bytes spills recomputed_macs assumed
    scheduling_s max_abs_error
"""


@pytest.mark.slow
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


def test_a_field_that_nobody_published_is_swept_and_has_the_first_value_beside_it(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    asked = (f"{networks}:tiny", "--accelerator", "ipu-like", "--batch", 2)
    result = answer(capsys, *asked, "--sweep", "ddr.bandwidth=1GB/s:4GB/s")
    first, *_, last = [row["throughput_per_s"] for row in result["sweep"]["rows"]]
    assert first == result["throughput_per_s"] < last
    assert "ddr.bandwidth" in result["assumed"]
    assumed = answer(capsys, *asked, "--assume", "ddr.bandwidth=1GB/s")
    assert assumed["throughput_per_s"] == first


def test_results_that_stay_on_chip_save_traffic(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    command = (f"{networks}:tiny", "--accelerator", "stcp920", "--batch", 4, "--policy")
    in_ddr, on_chip = answer(capsys, *command, "ddr"), answer(capsys, *command, "graphturbo")
    assert on_chip["ddr_bytes"] < in_ddr["ddr_bytes"]
    assert on_chip["latency_ms"] < in_ddr["latency_ms"]


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


def test_the_first_size_of_the_inputs_is_the_batch_unless_it_is_given(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    asked = (f"{networks}:tiny", "--accelerator", "stcp920", "--input")
    rows, given = answer(capsys, *asked, "8,3,16,16"), answer(capsys, *asked, "1,3,16,16")
    assert (rows["batch"], given["batch"]) == (8, 1)
    given = answer(capsys, *asked, "1,3,16,16", "--batch", 8)
    assert (rows["throughput_per_s"], 8) == (given["throughput_per_s"], given["batch"])
    assert answer(capsys, *asked, "8,3,16,16", "--batch", 2)["batch"] == 2
    asked = (f"{networks}:scaled", "--accelerator", "stcp920", "--input")
    assert answer(capsys, *asked, "();4,4")["batch"] == 4
    refused = refusal(capsys, *asked, "8,4;2,4")
    assert refused == "8 and 2 inputs at once, --input, write --batch N or equal first sizes"


def test_a_number_may_be_an_input_and_one_of_another_type(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    asked = (f"{networks}:scaled", "--accelerator", "stcp920", "--check", "--input")
    assert answer(capsys, *asked, "1,4;()")["max_abs_error"] == 0
    asked = (f"{networks}:of_bytes", "--accelerator", "stcp920", "--check", "--input")
    assert answer(capsys, *asked, "2,4:uint8")["max_abs_error"] == pytest.approx(0, abs=1e-5)


def test_what_the_host_cannot_compute_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], networks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> float:
        raise NotImplementedError("no kernel of this type\nbehind it a stack")

    monkeypatch.setattr("nnstretch.accelerate.execute.check", fail)
    asked = (f"{networks}:tiny", "--accelerator", "stcp920", "--check")
    refused = refusal(capsys, *asked)
    assert "cannot be carried out on this host, --check, no kernel of this type" in refused


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
