"""Published configurations become plans with exactly the published numbers, or are refused with
theirs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.anynet_yaml import DATA, PUBLISHED_SUMS, configurations, document

from nnstretch.cli import main
from nnstretch.errors import BadPlan, BrokenFile, NnstretchError, UnknownName
from nnstretch.plan import Plan
from nnstretch.stretch import NetworkAnalysis, lower
from nnstretch.stretch.published.anynet import (
    check_config,
    import_plan,
    match_published_network,
    read_config,
)

PUBLISHED = configurations()
R34, R50 = "R-34-CD", "R-50-CG"


@cache
def analysis(model: str) -> NetworkAnalysis:
    import torch

    from nnstretch.capture import load_model
    from nnstretch.capture.torch_export import capture

    torch.set_num_threads(1)
    return NetworkAnalysis(capture(load_model(model), torch.zeros(1, 3, 224, 224), model))


def imported(folder: Path, data: dict[str, Any]) -> Plan:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    config = read_config(path)
    family = match_published_network(config)
    check_config(config, family)
    return import_plan(config, analysis(family.model), family)


def changed(name: str, **keys: Any) -> dict[str, Any]:
    """A published configuration with other values; None takes a key out."""
    data = document(PUBLISHED[name])
    data["ANYNET"] = {k: v for k, v in {**data["ANYNET"], **keys}.items() if v is not None}
    return data


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_has_exactly_the_published_parameters_and_macs(
    name: str, tmp_path: Path
) -> None:
    row = PUBLISHED[name][0]
    plan = imported(tmp_path, document(PUBLISHED[name], scalars="EN" in name))
    lowered = lower(analysis(plan.model), plan)
    assert (lowered.params, lowered.macs) == (
        int(row["cfg_params_train"]),
        int(row["cfg_macs_224_train"]),
    )


@pytest.mark.parametrize("name", PUBLISHED_SUMS)
def test_a_configuration_that_contradicts_itself_is_refused_with_its_numbers(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(BadPlan) as refusal:
        imported(tmp_path, document(PUBLISHED[name], as_published=True))
    numbers = {"EN-B5": ("172", "176"), "RX-1.6": ("696", "624"), "RX-4": ("2360", "2320")}[
        PUBLISHED[name][0]["model"]
    ]
    assert all(number in str(refusal.value) for number in (*numbers, "ORIGINAL_WIDTHS"))
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(DATA.glob("example_*.yaml")), ids=lambda p: p.stem)
def test_the_published_form_reads_as_the_table_does(file: Path, tmp_path: Path) -> None:
    plan = imported(tmp_path, yaml.safe_load(file.read_text()))
    assert plan == imported(tmp_path, document(PUBLISHED[file.stem.removeprefix("example_")]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [R34, "RX-1.6-CG", "EN-L4-CG", "R-34-CDG"])
def test_the_module_has_the_parameters_of_the_description(name: str, tmp_path: Path) -> None:
    from nnstretch.stretch.weights.branched_module import build_module

    plan = imported(tmp_path, document(PUBLISHED[name]))
    module = build_module(lower(analysis(plan.model), plan))
    assert sum(p.numel() for p in module.parameters()) == int(
        PUBLISHED[name][0]["cfg_params_train"]
    )


@pytest.mark.slow
def test_a_plan_may_be_deeper_than_its_network(tmp_path: Path) -> None:
    """Preliminary R-50 configurations have a fourth block in the last stage, like
    ResNet(Bottleneck, [3, 4, 6, 4]).
    """
    import torchvision

    data = changed("R-50-C", DEPTHS=[3, 4, 6, 4])
    plan = imported(tmp_path, data)
    deeper = torchvision.models.resnet.ResNet(torchvision.models.resnet.Bottleneck, [3, 4, 6, 4])
    assert lower(analysis(plan.model), plan).params == sum(p.numel() for p in deeper.parameters())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "R-34-C",
            {"STRIDES": [1, 2, 2, 2], "DEPTHS": [3, 4, 6, 3], "WIDTHS": [64, 128, 256, 512]},
        ),
        ("R-34-C", {"DEVICES": "cpu", "BOT_MULS": None, "GROUP_WS": None, "ORIGINAL_WIDTHS": None}),
        (
            "R-34-C",
            {
                "BOT_MULS": 1,
                "MB_DOWNSAMPLE": True,
                "STEM_DEVICE": None,
                "HEAD_DEVICE": None,
                "MERGE_DEVICE": None,
                "SE_ON": None,
                "KERNELS": 3,
            },
        ),
        ("RX-1.6-C", {"GROUP_WS": 24, "STRIDES": 2}),
        pytest.param(
            "EN-L4-C",
            {"KERNELS": [[3], [3], [5], [3], [5], [5], [3]], "MB_VER": "2(default)"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_spellings_of_the_same_network(
    name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    plan = imported(tmp_path, changed(name, **keys))
    assert lower(analysis(plan.model), plan).params == int(PUBLISHED[name][0]["cfg_params_train"])


def test_a_blank_key_means_its_default_unless_it_must_be_there(tmp_path: Path) -> None:
    data = document(PUBLISHED["R-34-C"])
    data["ANYNET"] |= {"KERNELS": None, "HEAD_W": None, "ACTIVATION_FUN": None}
    assert imported(tmp_path, data) == imported(tmp_path, document(PUBLISHED["R-34-C"]))
    data["ANYNET"]["WIDTHS"] = None
    with pytest.raises(BadPlan, match=r"ANYNET, key 'WIDTHS' is missing"):
        imported(tmp_path, data)


def test_a_number_where_other_keys_have_branches_stands_for_all_of_them(tmp_path: Path) -> None:
    spelt = changed("R-34-CD", DEPTHS=[[3, 3], [3, 3], [6, 6], [3, 3]])
    assert imported(tmp_path, changed("R-34-CD", DEPTHS=[3, 3, 6, 3])) == imported(tmp_path, spelt)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        (R34, {"WIDHTS": [1]}, "ANYNET, unknown key 'WIDHTS'"),
        (R34, {"MB_DOWNSAMPLE": False}, "MB_DOWNSAMPLE"),
        (R34, {"DEPTHS": None}, "ANYNET, key 'DEPTHS' is missing"),
        (R34, {"STRIDES": []}, "ANYNET.STRIDES, 0 items"),
        (R34, {"DEPTHS": 3}, "ANYNET.DEPTHS, '3' is int, expected list"),
        (
            R34,
            {"DEPTHS": [[3, 0], [3, 3], [6, 5], [3, 2]]},
            "ANYNET.DEPTHS[0][1], 0.0 is out of range, needed is more than 0 and at most",
        ),
        (
            R34,
            {"DEPTHS": [[3, 10**9], [3, 3], [6, 5], [3, 2]]},
            "ANYNET.DEPTHS[0][1], 1000000000.0 is out of range",
        ),
        (
            R34,
            {"WIDTHS": [[32.5, 64], [80, 64], [144, 160], [256, 320]]},
            "ANYNET.WIDTHS[0][0], 32.5, needed is a whole number",
        ),
        (R34, {"WIDTHS": [[32, 64], [80, 64], [144, 160]]}, "WIDTHS has 3 stages but DEPTHS has 4"),
        (
            R34,
            {"DEPTHS": [[3, 2], [3, 3], [6, 5], [3, 2, 1]], "DEVICES": ["cpu", "dsp", "gpu"]},
            "2 branches in stage 4",
        ),
        (R34, {"STRIDES": [2, 2, 2, 2]}, "STRIDES is [2, 2] in stage 1"),
        (R34, {"STRIDES": "two"}, "ANYNET.STRIDES, 'two' is str, expected float or list"),
        (R34, {"DEVICES": ["cpu", "npu"]}, "npu"),
        (R34, {"DEVICES": ["cpu"]}, "DEVICES has 1"),
        (R34, {"HEAD_DEVICE": "tpu"}, "HEAD_DEVICE"),
        (R34, {"BLOCK_TYPE": "vanilla_block"}, "vanilla_block"),
        (R34, {"STEM_TYPE": "simple_stem_in"}, "STEM_TYPE is simple_stem_in"),
        (R34, {"STEM_W": True}, "ANYNET.STEM_W, 'True' is bool, expected int"),
        (R34, {"SE_ON": True}, "SE_ON is True"),
        (R34, {"SE_ON": "yes"}, "ANYNET.SE_ON, 'yes' is str, expected bool"),
        (R34, {"MB_VER": 3}, "ANYNET.MB_VER, 3 is out of range"),
        (R34, {"ORIGINAL_WIDTHS": [96, 144]}, "ORIGINAL_WIDTHS is [96, 144]"),
        (R34, {"KERNELS": [5, 5, 5, 5]}, "KERNELS is [5, 5, 5, 5]"),
        (R34, {"BOT_MULS": [1, 0.25, 1, 1]}, "BOT_MULS is [0.25, 0.25] in stage 2"),
        (R34, {"GROUP_WS": [8, 8, 8, 8]}, "GROUP_WS is 8 in stage 1"),
        (R50, {"KERNELS": [7, 7, 7, 7]}, "KERNELS is [7, 7, 7, 7]"),
        (R50, {"GROUP_WS": 48}, "GROUP_WS is 48 in stage 2"),
        ("RX-1.6-C", {"KERNELS": [3, 3, 3, 5]}, "KERNELS is [3, 3, 3, 5]"),
        ("RX-1.6-C", {"GROUP_WS": [24, 24, 24, 100]}, "912"),
        ("EN-L4-CG", {"ORIGINAL_WIDTHS": None}, "ORIGINAL_WIDTHS is missing"),
        ("EN-L4-CG", {"KERNELS": [3, 3, 5, 3, 5, 5, 7]}, "KERNELS"),
        ("EN-L4-CG", {"KERNELS": [[3, 5], 3, 5, 3, 5, 5, 3]}, "KERNELS has 2 branches in stage 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_names_the_key(
    name: str, keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadPlan) as refusal:
        imported(tmp_path, changed(name, **keys))
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_other_classes_and_image_sizes_are_named(tmp_path: Path) -> None:
    data = document(PUBLISHED[R34])
    with pytest.raises(BadPlan, match=r"MODEL\.NUM_CLASSES, 10\.0, needed is 1000"):
        imported(tmp_path, {**data, "MODEL": {"NUM_CLASSES": 10}})
    with pytest.raises(BadPlan, match=r"TRAIN\.IM_SIZE, '224px' is str"):
        imported(tmp_path, {**data, "TRAIN": {"IM_SIZE": "224px"}})


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"gone\.yaml"):
        read_config(tmp_path / "gone.yaml")
    for text in ("", "[1, 2]", "ANYNET: 3", "a: [", "\x00", "ANYNET:\n\t- x"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(BrokenFile, match=r"bad\.yaml"):
            read_config(tmp_path / "bad.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(BrokenFile, match=r"bad\.yaml"):
        read_config(tmp_path / "bad.yaml")


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 600)
    | st.floats(allow_nan=True)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(key=st.sampled_from(sorted(document(PUBLISHED["EN-L4-CG"])["ANYNET"])), value=odd)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_value_of_any_key_is_read_or_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    data = document(PUBLISHED["EN-L4-CG"])
    data["ANYNET"][key] = value
    path.write_text(yaml.safe_dump(data))
    said = ""
    try:
        config = read_config(path)
        check_config(config, match_published_network(config))
    except NnstretchError as refusal:
        said = str(refusal)
    assert "\n" not in said


@pytest.mark.slow
def test_a_configuration_of_other_images_is_imported_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = DATA / "example_EN-B5-CG.yaml"
    assert main(["import", str(path), "--out", str(tmp_path / "plan.yaml")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "plan are of 224 px, the configuration trains at 456 (IM_SIZE)" in said
