"""Holes of TVM's pipeline executor that are none here."""

from __future__ import annotations

import pytest
from support.module_graphs import A, B, C, module, two

from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import require_complete, topological_order


def test_hole_1_and_2_after_a_refused_cycle_all_goes_on() -> None:
    """The original keeps the edge that it refused, and never returns from printing."""
    config = two()
    with pytest.raises(BadInput, match="cycle"):
        config[B]["output"][0].connect(config[A]["input"]["y"])
    config["input"]["in"].connect(config[A]["input"]["y"])
    config["input"]["more"].connect(config[B]["input"]["y"])
    assert len(str(config).splitlines()) == 12
    assert [one["mod_idx"] for one in config.get_config()["module_connection"].values()] == [0, 1]


def test_a_cycle_of_three_is_found_also_behind_a_side_branch() -> None:
    config = two()
    config[B]["output"][0].connect(config[C]["input"]["x"])
    config[A]["output"][1].connect(config[C]["input"]["y"])
    with pytest.raises(BadInput, match=r"that is a cycle, a -> .*c -> a"):
        config[C]["output"][0].connect(config[A]["input"]["y"])


def test_hole_3_printing_between_connections_changes_no_order_and_hides_no_cycle() -> None:
    """The original's sort takes parent links away.

    A consumer named first then came before its producer.
    """
    config = PipelineConfig()
    config[C], config[B], config[A]
    config[A]["output"][0].connect(config[B]["input"]["x"])
    assert str(config) == str(config)
    config[B]["output"][0].connect(config[C]["input"]["x"])
    assert [one.name for one in topological_order(config.graph)] == ["a", "b", "c"]
    str(config)
    with pytest.raises(BadInput, match="cycle"):
        config[C]["output"][0].connect(config[A]["input"]["x"])


def test_hole_4_one_output_feeds_two_inputs_of_one_module() -> None:
    """The original's table has one entry a consumer: the second edge replaced the first."""
    config = two()
    config[A]["output"][0].connect(config[B]["input"]["y"])
    config["input"]["in"].connect(config[A]["input"]["y"])
    dependencies = config.get_config()["module_connection"]["a"]["output"][0]["dependencies"]
    assert dependencies == [{"mod_idx": 1, "input_name": "x"}, {"mod_idx": 1, "input_name": "y"}]


def test_hole_5_everything_that_is_not_connected_is_named() -> None:
    config = two()
    config[C]
    config.pipe_input("spare")
    with pytest.raises(BadInput) as caught:
        config.get_config()
    for what in (
        "a.input(y) is fed by nothing",
        "c.input(z) is fed by nothing",
        "no output of module c is used",
        "pipeline input spare feeds",
    ):
        assert what in str(caught.value)


def test_hole_6_types_are_checked_at_pipeline_inputs_too() -> None:
    double = module("double", "x", spec=TensorSpec((3, 3), "float64"))
    wide = module("wide", "x", spec=TensorSpec((3, 4)))
    config = two()
    for other, message in (
        (double, "pipeline input in is 3x3 float32, double.input(x) is 3x3 float64"),
        (wide, "is 3x4 float32"),
    ):
        with pytest.raises(BadInput) as caught:
            config["input"]["in"].connect(config[other]["input"]["x"])
        assert message in str(caught.value)
        with pytest.raises(BadInput, match=r"a\.output"):
            config[A]["output"][1].connect(config[other]["input"]["x"])
    with pytest.raises(BadInput, match="it is 3x3 float32 already"):
        config.pipe_input("in", TensorSpec((3, 3), "float64"))
    config.pipe_input("declared", TensorSpec((3, 3), "float64"))
    with pytest.raises(BadInput, match="declared is 3x3 float64"):
        config["input"]["declared"].connect(config[A]["input"]["y"])


def test_hole_7_and_8_one_input_feeds_several_stages_and_several_roots_are_driven() -> None:
    """The original takes one connection an input, and drives module 0 only."""
    config = PipelineConfig()
    for one, index in ((A, 0), (B, 1)):
        config["input"]["image"].connect(config[one]["input"]["x"])
        config["input"]["other"].connect(config[one]["input"]["y"])
        config[one]["output"][0].connect(config["output"][index])
    found = config.get_config()
    assert [
        (row["global_interface_name"], row["mod_idx"]) for row in found["input_connection"]
    ] == [
        *(("image", 0), ("other", 0)),
        *(("image", 1), ("other", 1)),
    ]


def test_outputs_are_counted_without_a_hole() -> None:
    config = two()
    config["input"]["in"].connect(config[A]["input"]["y"])
    config["input"]["more"].connect(config[B]["input"]["y"])
    config[A]["output"][1].connect(config["output"][3])
    with pytest.raises(BadInput, match="outputs are 0, 3, not 0 to 1"):
        require_complete(config.graph)
