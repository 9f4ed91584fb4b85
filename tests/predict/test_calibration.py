"""The shipped mi9 is what its script writes from the published data, and as accurate as its card
says.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from nnstretch.files.package_data import package_data
from nnstretch.kernel import Kernel
from nnstretch.predict import Roofline, load_soc, predict_ops
from nnstretch.predict.roofline import RooflineFeatures, latency_us, roofline_features

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "nn_stretch"
FOLDER = package_data("latency_predictors") / "mi9"


def errors() -> dict[str, float]:
    with (DATA / "latency_mi9.csv").open() as file:
        measured = {row["config"]: float(row["latency_us"]) / 1000 for row in csv.DictReader(file)}
    predicted = predict_ops(DATA / "ops_mi9.csv", load_soc("mi9"))
    assert predicted.keys() == measured.keys()
    return {config: predicted[config] / measured[config] - 1 for config in measured}


def printed() -> dict[str, tuple[str, ...]]:
    """Errors on the card, by network: fitted, network left out, row left out."""
    rows = re.findall(
        r"^\| (\S+-[CGD]+) \| \d+ \| (\S+) \| (\S+) \| (\S+) \|",
        (FOLDER / "CARD.md").read_text(),
        re.M,
    )
    return {row[0]: row[1:] for row in rows}


def percent(text: str) -> float:
    return abs(float(text.removesuffix("%")))


def timed() -> list[dict[str, str]]:
    with (DATA / "kernels_r34dg.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["run"] != "warmup"]


def gpu_kernel(row: dict[str, str]) -> Kernel:
    cin, cout, side_in, side_out, k = (
        int(row[key]) for key in ("cin", "cout", "hw_in", "hw_out", "k")
    )
    write = cout * side_out**2
    read = cin * side_in**2 + (write if row["role"] == "conv2" else 0)
    weights = k * k * cin * cout + cout
    hw = (side_in**2, side_out**2)
    return Kernel(
        row["op"],
        "conv",
        cin,
        cout,
        *hw,
        k,
        int(row["s"]),
        1,
        1,
        int(row["macs"]),
        read,
        write,
        weights,
    )


def by_stage(values: list[tuple[str, float]]) -> dict[str, float]:
    """Sum over both timed runs."""
    sums: dict[str, float] = defaultdict(float)
    for stage, value in values:
        sums[stage] += value
    return dict(sums)


def test_whole_networks_are_met_within_five_percent_on_average() -> None:
    found = errors()
    assert len(found) == 24
    assert sum(map(abs, found.values())) / len(found) <= 0.045
    assert max(map(abs, found.values())) <= 0.11


def test_the_card_prints_the_errors_that_the_shipped_numbers_make() -> None:
    assert {config: f"{error:+.1%}" for config, error in errors().items()} == {
        config: row[0] for config, row in printed().items()
    }


def test_errors_with_a_network_left_out_keep_their_promise() -> None:
    rows = printed()
    single = [percent(row[1]) for config, row in rows.items() if len(config.rsplit("-", 1)[1]) == 1]
    branched = [
        percent(row[1]) for config, row in rows.items() if len(config.rsplit("-", 1)[1]) > 1
    ]
    assert (len(single), len(branched)) == (18, 6)
    assert sum(single) / 18 <= 6.5
    assert sum(branched) / 6 <= 8


def test_errors_with_a_row_left_out_keep_their_promise() -> None:
    left_out = {config: float(row[2].removesuffix("%")) for config, row in printed().items()}
    branched = [off for config, off in left_out.items() if len(config.rsplit("-", 1)[1]) == 2]
    assert (len(left_out), len(branched)) == (24, 6)
    assert sum(map(abs, branched)) / 6 <= 8
    assert (sum(map(abs, left_out.values())) - sum(map(abs, branched))) / 18 <= 6
    error = load_soc("mi9").branched_error
    assert error is not None
    inside = [
        1 / error.interval_factor <= 1 + off / 100 <= error.interval_factor for off in branched
    ]
    assert sum(inside) / 6 >= 0.85
    assert error.relative_error == pytest.approx(0.075, abs=0.01)


def test_gpu_kernels_of_every_stage_add_up_to_the_measured_time() -> None:
    predictor = load_soc("mi9").predictors["gpu"]
    predicted = by_stage(
        [(row["stage"], predictor.estimate(gpu_kernel(row)).latency_us) for row in timed()]
    )
    measured = by_stage([(row["stage"], float(row["kernel_us"])) for row in timed()])
    assert sorted(measured) == ["1", "2", "3", "4"]
    for stage, total_us in measured.items():
        assert predicted[stage] == pytest.approx(total_us, rel=0.15), f"stage {stage}"


def test_a_meeting_point_costs_what_the_profiled_one_did() -> None:
    """Launch, map and what the host takes beside them: four stages of R-34-DG, two runs each."""
    soc = load_soc("mi9")
    gpu = soc.processor("gpu")
    convert = soc.processor_among("cpu", ("gpu",)).copy_in
    off: dict[str, list[float]] = defaultdict(list)
    for row in (row for row in timed() if row["kernel_index"] == "1"):
        last = next(
            r for r in reversed(timed()) if r["stage"] == row["stage"] and r["run"] == row["run"]
        )
        moved_in, moved_out = (
            int(row["cin"]) * int(row["hw_in"]) ** 2,
            int(last["cout"]) * int(last["hw_out"]) ** 2,
        )
        host_us = float(row["gpu_push_us"]) + float(row["gpu_wait_us"])
        launch_us = gpu.copy_in.cost_us(moved_in) - convert.cost_us(moved_in)
        off["launch"].append(launch_us / float(row["launch_gap_us"]) - 1)
        off["map"].append(gpu.copy_out.cost_us(moved_out) / float(row["out_gap_us"]) - 1)
        converted_us = convert.cost_us(moved_in)
        rest_us = host_us - float(row["unmapQ_to_outMap_us"])
        off["sync"].append((gpu.sync_us + converted_us) / rest_us - 1)
        around_us = gpu.copy_in.cost_us(moved_in) + gpu.copy_out.cost_us(moved_out) + gpu.sync_us
        off["whole"].append((around_us + float(row["kernel_span_us"])) / host_us - 1)
    mean = {name: sum(map(abs, errors)) / len(errors) for name, errors in off.items()}
    assert mean["launch"] <= 0.05
    assert mean["whole"] <= 0.05
    assert sum(mean.values()) / 4 <= 0.15, mean


def test_estimates_are_vectorised() -> None:
    """Many kernels are priced as one; 200,000 a second is the least."""
    np = pytest.importorskip("numpy")
    rows = timed()
    predictor = load_soc("mi9").predictors["gpu"]
    assert isinstance(predictor, Roofline)
    columns = zip(*(roofline_features(gpu_kernel(row), 1) for row in rows), strict=True)
    features = RooflineFeatures(*(np.tile(np.array(column, float), 1000) for column in columns))
    started = time.perf_counter()
    many = latency_us(predictor.rates, features)
    seconds = time.perf_counter() - started
    assert many.shape == (1000 * len(rows),)
    assert many[: len(rows)].tolist() == pytest.approx(
        [predictor.estimate(gpu_kernel(row)).latency_us for row in rows]
    )
    assert many.size / seconds >= 200_000


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scipy")
    out = tmp_path_factory.mktemp("mi9")
    command = [
        sys.executable,
        str(ROOT / "scripts" / "calibration"),
        "mi9",
        "--data",
        str(DATA),
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return out


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soc.json", "cpu.json", "gpu.json", "dsp.json", "CARD.md"])
def test_the_script_writes_what_is_shipped(rewritten: Path, name: str) -> None:
    """Word for word; numbers up to what another processor's arithmetic changes in a fit, which is
    their last printed digit.
    """
    written, kept = ((folder / name).read_text(encoding="utf-8") for folder in (rewritten, FOLDER))
    assert NUMBER.sub("#", written) == NUMBER.sub("#", kept)
    for ours, theirs in zip(NUMBER.findall(written), NUMBER.findall(kept), strict=True):
        assert float(ours) == pytest.approx(
            float(theirs),
            rel=1e-3,
            abs=10.0 ** -len(theirs.partition(".")[2]) if "." in theirs else 0,
        )
