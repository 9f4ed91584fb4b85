"""B1, B2, B7: factors, groups and peaks of ResNet-50 and BERT, as published or recomputed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.chip_networks import bert, resnet50
from support.random_chip_graphs import GraphMaker

from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.accelerate.steps.grouping import GroupMerger, find_groups, group_operators
from nnstretch.accelerate.steps.peak import group_peak
from nnstretch.accelerate.steps.split import SplitRules, factors, first_factor, split_of
from nnstretch.accelerate.steps.worth import parts_that_do_not_pay, whole_where_parts_do_not_pay
from nnstretch.chip.instances import Group, Split
from nnstretch.graph import TensorSpec, Value

LOCAL_BYTES = 8 * 1_310_720


def rules(capacity: int = LOCAL_BYTES, **options: object) -> SplitRules:
    return SplitRules(capacity, 8, **{"batch_only": True, **options})  # type: ignore[arg-type]


def main_groups(chip: ChipGraph) -> list[tuple[int, int]]:
    """(operators, factor) of the groups that are no leftovers at a border."""
    groups = group_operators(chip, rules(), clean_up=False)
    return [(len(g.operators), g.split.factor) for g in groups if len(g.operators) > 3]


def test_factors_are_powers_below_the_cores_then_every_number() -> None:
    assert list(factors(8, 12)) == [1, 2, 4, 8, 9, 10, 11, 12]
    assert list(factors(8, 3)) == [1, 2]
    assert list(factors(1, 3)) == [1, 2, 3]


def test_the_first_factor_that_fits_and_divides() -> None:
    assert first_factor(100, 16, SplitRules(100, 8)) == 1
    assert first_factor(100, 16, SplitRules(12, 8)) == 16, "9 fits and does not divide 16"
    assert first_factor(100, 16, SplitRules(6, 8)) is None


def test_resnet50_of_16_images_is_cut_into_8_4_2_1_instances() -> None:
    chip = resnet50(16)
    groups = group_operators(chip, rules(), clean_up=False)
    assert [factor for _, factor in main_groups(chip)] == [8, 4, 2, 1]
    assert len(groups[0].operators) == 35, "stem and first stage to its last sum"
    ends = [chip.nodes[g.operators[-1]].module for g in groups if len(g.operators) > 3]
    assert ends == ["layer1.2", "layer2.3", "layer3.5", "fc"]


def test_clean_up_brings_four_groups_of_15_instances() -> None:
    groups = group_operators(resnet50(16), rules())
    assert [g.split.factor for g in groups] == [8, 4, 2, 1]


def test_resnet50_of_8_images_is_cut_into_4_2_1_instances() -> None:
    assert [factor for _, factor in main_groups(resnet50(8))] == [4, 2, 1]


def test_with_64_kib_a_core_early_stages_have_no_batch_split_and_say_so() -> None:
    chip = resnet50(16)
    groups = group_operators(chip, rules(8 * 65536), clean_up=False)
    unsplit = {chip.nodes[g.operators[0]].module.split(".")[0] for g in groups if not g.split.fits}
    assert {"layer1", "layer2", "layer3"} <= unsplit
    assert any(str(g).count("no split fits") for g in groups)


def test_a_merge_that_pushes_a_factor_on_is_refused_with_numbers() -> None:
    _, refusals = find_groups(resnet50(16), rules(), clean_up=False)
    texts = [str(refusal) for refusal in refusals]
    assert (
        "straight merge of ..add__2 and relu__9..: 4 parts of the second are fewer than 8" in texts
    )


def three_convolutions(kernel: int = 3) -> ChipGraph:
    shape = (1, 64, 28, 28)
    maker = GraphMaker(shapes={"x": shape})
    name = "x"
    for _ in range(3):
        name = maker.relu(maker.conv(name, 64, kernel, 1))
    return chip_graph(maker.finish((Value("x", TensorSpec(shape)),), (name,)), "int8")


def test_groups_whose_parts_cannot_pay_are_computed_whole() -> None:
    chip = three_convolutions()
    rates = ChipRates(load_accelerator("ethos-u55-128"), "int8")
    published = schedule_cluster(chip, rates, ScheduleOptions(parts_margin=math.inf))
    assert max(group.split.factor for group in published.groups) == 7
    schedule = schedule_cluster(chip, rates, ScheduleOptions())
    assert [group.split.factor for group in schedule.groups] == [1]
    assert schedule.latency_us < 0.7 * published.latency_us
    refused = parts_that_do_not_pay(chip, published.groups, rates)
    assert all("us again" in str(worth) for worth in refused)
    dearest = max(worth.again_us / worth.moves_us for worth in refused)
    allowed = schedule_cluster(chip, rates, ScheduleOptions(parts_margin=1.01 * dearest))
    assert allowed.groups == published.groups


def test_parts_that_each_make_pieces_of_a_neighbour_one_do_not_pay() -> None:
    shape = (1, 64, 28, 28)
    maker = GraphMaker(shapes={"x": shape})
    first = maker.conv("x", 64, 1, 1)
    last = maker.conv(first, 64, 1, 1)
    chip = chip_graph(maker.finish((Value("x", TensorSpec(shape)),), (last,)), "int8")
    rates = ChipRates(load_accelerator("ethos-u55-128"), "int8")
    rows = Group("g0", (first,), Split(4, 2, 1, {first: 2}), group_peak(chip, [first]))
    channels = Group("g1", (last,), Split(8, 1, 1, {last: 1}), group_peak(chip, [last]))
    refused = parts_that_do_not_pay(chip, (rows, channels), rates)
    assert refused[0].group == channels, "each of eight parts reads all rows of all four"
    alone = parts_that_do_not_pay(chip, (replace(rows, split=Split(1)), channels), rates)
    assert alone == [], "what lies in one place is read where it lies"


def test_parts_stay_where_weights_are_loaded_fast_or_maps_are_large() -> None:
    chip = three_convolutions(kernel=1)
    machine = load_accelerator("ethos-u55-128", ["ddr.bandwidth=100"])
    groups = schedule_cluster(chip, ChipRates(machine, "int8"), ScheduleOptions()).groups
    assert max(group.split.factor for group in groups) == 7
    stages = group_operators(resnet50(16), rules())
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    assert whole_where_parts_do_not_pay(resnet50(16), stages, rates) == stages


def test_a_merge_that_would_close_a_cycle_is_seen() -> None:
    merger = GroupMerger(resnet50(16), rules())
    groups = merger.group_of
    assert merger.closes_cycle(
        groups["max_pool2d"], groups["add_"] if "add_" in groups else groups["add"]
    )
    assert not merger.closes_cycle(groups["conv2d"], groups["batch_norm"])


@pytest.mark.parametrize(
    ("module", "size_mb"), [("layer1", 3.61), ("layer2", 3.21), ("layer3", 1.61), ("layer4", 0.80)]
)
def test_peaks_of_the_stages_of_resnet50_by_image(module: str, size_mb: float) -> None:
    chip = resnet50(16)
    names = [n.name for n in chip.operators if n.module.startswith(module)]
    assert group_peak(chip, names) / 16e6 == pytest.approx(size_mb, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "tokens", "batch", "size_mb", "fits"),
    [
        ("base", 128, 8, 9.44, True),
        ("base", 128, 16, 18.87, False),
        ("base", 256, 4, 12.58, False),
        ("base", 512, 2, 18.87, False),
        ("large", 384, 2, 15.73, False),
    ],
)
def test_peaks_of_bert(width: str, tokens: int, batch: int, size_mb: float, fits: bool) -> None:
    chip = bert(batch, tokens, width)
    names = tuple(node.name for node in chip.operators)
    peak = group_peak(chip, names)
    assert peak / 1e6 == pytest.approx(size_mb, abs=0.005)
    assert (split_of(chip, names, rules())[0].factor == 1) == fits
