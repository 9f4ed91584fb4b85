"""The comparison with published plans.

Configurations that are read and priced, and the bounds of their searches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from comparison_rows import (
    ALL_MACS,
    COMBINATIONS,
    combination_of,
    gap,
    nearest,
    tasks_of,
)
from published_plans import Phone, broken, outside
from support.anynet_yaml import configurations, document
from support.reproduction_rows import original, plan, row_of, searched
from support.scripts import load_command

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.predict import load_soc
from nnstretch.stretch import lower
from nnstretch.stretch.published.anynet import import_plan, read_config
from nnstretch.stretch.published.configs_csv import config_from_rows
from nnstretch.stretch.search.constraints import SegmentLimits

nn_stretch = load_command("nn_stretch")


PUBLISHED = configurations()


@cache
def phone() -> Phone:
    return Phone(load_soc("mi9"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_read_from_its_rows_is_the_one_read_from_its_file(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document(PUBLISHED[name])))
    assert replace(config_from_rows(PUBLISHED[name]), where="") == replace(
        read_config(path), where=""
    )


def test_a_row_that_is_no_configuration_is_refused_by_name() -> None:
    rows = [dict(row) for row in PUBLISHED["R-34-CD"]]
    rows[1]["width"] = "many"
    with pytest.raises(BrokenFile, match=r"R-34-CD.*configs\.csv"):
        config_from_rows(rows)


def test_missing_data_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"configs\.csv"):
        Phone(load_soc("mi9"), tmp_path).networks  # noqa: B018


@pytest.mark.slow
def test_a_published_plan_is_priced_with_its_own_numbers() -> None:
    found = {p.combination: p for p in phone().published("R-34")}
    assert found.keys() == COMBINATIONS.keys()
    for priced in found.values():
        row = PUBLISHED[priced.config][0]
        assert (priced.macs, priced.params) == (
            int(row["cfg_macs_224_train"]),
            int(row["cfg_params_train"]),
        )
        assert "main_branch" in priced.breaks, (
            "section 5 of the published data: R-34 is below 0.4 and 0.8 of its stages"
        )
        assert priced.outside == ()
    assert found["C+D"].measured_us == 13255
    assert found["C+G+D"].measured_us is None
    assert found["C+D"].meetings == 4
    assert found["G+D"].processors == ("cpu", "dsp", "gpu"), "its stem and head stay on the CPU"


def test_plans_outside_the_search_space_are_named() -> None:
    analysis = phone().analysis("R-34")
    lowered = lower(
        analysis,
        import_plan(config_from_rows(PUBLISHED["R-34-CDG"]), analysis, phone().family("R-34")),
    )
    assert outside(lowered, analysis, SegmentLimits(min_width=0.9)) == ("narrower than min_width",)
    assert (
        broken(
            phone().trial("R-34", lowered),
            phone().soc,
            SegmentLimits(alpha=9, beta=9, main_macs=0, segment_macs=0),
        )
        == ()
    )


@pytest.mark.parametrize(
    ("config", "combination"),
    [("R-34-CD", "C+D"), ("R-34-DG", "G+D"), ("RX-1.6-CDG", "C+G+D"), ("EN-L4-C", None)],
)
def test_the_letters_of_a_configuration_are_its_processors(
    config: str, combination: str | None
) -> None:
    assert combination_of(config) == combination


def test_an_unknown_letter_is_refused() -> None:
    with pytest.raises(BadInput, match="'CN'"):
        combination_of("R-34-CN")


def test_a_combination_without_a_plan_borrows_the_nearest_bound() -> None:
    plans = [
        plan("R-34-CG", 690),
        plan("R-34-DG", 710),
        plan("R-34-CDG", 600),
        plan("R-50-CD", 999),
    ]
    near = nearest(plans, "R-34", "C+D")
    assert near is not None
    assert near.config == "R-34-DG", "as many processors, then most MACs; other networks never"
    near = nearest([plan("R-34-CG", 690), plan("R-34-CD", 710)], "R-34", "C+G+D")
    assert near is not None
    assert near.config == "R-34-CD"
    assert nearest(plans, "EN-B5", "C+D") is None


def test_every_published_plan_sets_the_bound_of_its_own_search() -> None:
    plans = [
        plan("R-34-CD", 700, 300),
        replace(plan("R-34-CD", 900, 400), config="R-34-other"),
        plan("R-34-CG", 650),
    ]
    tasks = tasks_of(plans, [original()], ["C+D", "G+D"])
    assert [(t.combination, t.bound.source, t.bound.borrowed) for t in tasks] == [
        ("C+D", "R-34-CD", False),
        ("C+D", "R-34-other", False),
        ("G+D", "R-34-other", True),
    ]
    with pytest.raises(BadInput, match="EN-B5"):
        tasks_of(plans, [original("EN-B5")], ["C+D"])


def test_the_scale_is_searched_at_all_macs() -> None:
    tasks = tasks_of([plan("R-50-CD")], [original("R-50")], ["C+D"])
    assert [(t.bound.source, t.bound.macs, t.bound.params) for t in tasks] == [
        ("R-50-CD", 700, 300),
        (ALL_MACS, 1000, 0),
    ]


def test_the_gap_of_a_plan_is_what_a_better_one_could_save() -> None:
    task = row_of().task
    assert gap(searched(task)) == 0
    assert gap(searched(task, optimal=False, lower_bound_us=45.0)) == pytest.approx(0.1)
