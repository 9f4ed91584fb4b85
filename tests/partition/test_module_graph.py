"""Linking by hand: every rule of connections, and each known hole of the tool that had them
first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.module_graphs import MAP, A, B, C, module, two

from nnstretch.errors import BadInput, NnstretchError, UnknownName
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import Module, topological_order
from nnstretch.pipeline import TensorDecl


def reference() -> tuple[PipelineConfig, Module, Module, Module]:
    """S0(data_0) -> (o3, o2); S1(data_n_0, data_1) -> n; S2(data_n_1, data_n_2) -> out."""
    s0 = Module(
        "s0",
        (TensorDecl("data_0", MAP),),
        (TensorDecl("o3", MAP), TensorDecl("o2", MAP)),
        (TensorDecl("w", MAP),),
    )
    s1 = Module(
        "s1", (TensorDecl("data_n_0", MAP), TensorDecl("data_1", MAP)), (TensorDecl("n", MAP),)
    )
    s2 = Module(
        "s2", (TensorDecl("data_n_1", MAP), TensorDecl("data_n_2", MAP)), (TensorDecl("out", MAP),)
    )
    config = PipelineConfig()
    for one, processors in ((s0, ("cuda",)), (s1, ("cpu",)), (s2, ("cpu",))):
        config[one].set(processors=processors)
    config["param_group"]["param_0"].connect(config[s0]["param"])
    config["input"]["data_a"].connect(config[s0]["input"]["data_0"])
    config["input"]["data_b"].connect(config[s1]["input"]["data_1"])
    config[s0]["output"][0].connect(config[s1]["input"]["data_n_0"])
    config[s0]["output"][1].connect(config[s2]["input"]["data_n_2"])
    config[s1]["output"][0].connect(config[s2]["input"]["data_n_1"])
    config[s2]["output"][0].connect(config["output"][0])
    return config, s0, s1, s2


REFERENCE_TEXT = """\
Params
  |param_0: mod0:param

Inputs
  |data_a: mod0:data_0
  |data_b: mod1:data_1

output
  |output(0) : mod2.output(0)

connections
  |mod0.output(0)-> mod1.data_n_0
  |mod0.output(1)-> mod2.data_n_2
  |mod1.output(0)-> mod2.data_n_1"""


def test_connections_are_listed_in_the_order_of_modules_however_many() -> None:
    config = PipelineConfig()
    modules = [module(f"m{number}", "x") for number in range(12)]
    config["input"]["in"].connect(config[modules[0]]["input"]["x"])
    for first, second in pairwise(modules):
        config[first]["output"][0].connect(config[second]["input"]["x"])
    config[modules[-1]]["output"][0].connect(config["output"][0])
    rows = str(config).rpartition("connections")[2].split()
    assert rows[::2] == [f"|mod{number}.output(0)->" for number in range(11)]


def test_the_reference_network_prints_and_reads_as_written_by_hand() -> None:
    config, *modules = reference()
    assert str(config) == REFERENCE_TEXT
    plain = {"threads": 1, "cores": [], "capacity": 2, "call": ""}
    found = config.get_config()
    assert found["module_connection"] == {
        "s0": {
            "mod_idx": 0,
            "processors": ["cuda"],
            **plain,
            "output": [
                {"output_idx": 0, "dependencies": [{"mod_idx": 1, "input_name": "data_n_0"}]},
                {"output_idx": 1, "dependencies": [{"mod_idx": 2, "input_name": "data_n_2"}]},
            ],
        },
        "s1": {
            "mod_idx": 1,
            "processors": ["cpu"],
            **plain,
            "output": [
                {"output_idx": 0, "dependencies": [{"mod_idx": 2, "input_name": "data_n_1"}]},
            ],
        },
        "s2": {
            "mod_idx": 2,
            "processors": ["cpu"],
            **plain,
            "output": [{"output_idx": 0, "dependencies": [{"global_output_index": 0}]}],
        },
    }
    assert found["input_connection"] == [
        {"global_interface_name": "data_a", "mod_idx": 0, "module_interface_name": "data_0"},
        {"global_interface_name": "data_b", "mod_idx": 1, "module_interface_name": "data_1"},
    ]
    assert found["param_connection"] == [{"global_param_name": "param_0", "mod_idx": 0}]
    assert [config.get_mod_idx(one) for one in modules] == [0, 1, 2]


FORBIDDEN: dict[str, tuple[Callable[[PipelineConfig], None], str]] = {
    "E1 unknown output": (lambda c: c[A]["output"][9], "unknown output 9, module a, it has 2"),
    "E2 unknown input": (
        lambda c: c[A]["input"]["data_9"],
        "unknown input 'data_9', module a, it has x, y",
    ),
    "E3 cycle of two": (
        lambda c: c[B]["output"][0].connect(c[A]["input"]["y"]),
        "that is a cycle, a -> b -> a",
    ),
    "E4 to itself": (
        lambda c: c[A]["output"][0].connect(c[A]["input"]["y"]),
        "both ends belong to one module",
    ),
    "E5 input to own input": (
        lambda c: c[A]["input"]["x"].connect(c[A]["input"]["y"]),
        "both ends belong to one module",
    ),
    "E6 input to input": (
        lambda c: c[A]["input"]["y"].connect(c[B]["input"]["y"]),
        "a module's input feeds nothing",
    ),
    "E7 output to pipeline input": (
        lambda c: c[A]["output"][0].connect(c["input"]["new"]),
        "a pipeline input is fed by the caller",
    ),
    "E8 pipeline input to output": (
        lambda c: c["input"]["in"].connect(c[A]["output"][0]),
        "a pipeline input feeds a module's input only",
    ),
    "E9 from pipeline output": (
        lambda c: c["output"][0].connect(c[A]["output"][0]),
        "a pipeline output feeds nothing",
    ),
    "pipeline to pipeline": (
        lambda c: c["input"]["in"].connect(c["output"][1]),
        "both ends belong to the pipeline",
    ),
    "from parameters": (
        lambda c: c[A]["param"].connect(c[B]["input"]["y"]),
        "a module's parameters feed nothing",
    ),
    "group to input": (
        lambda c: c["param_group"]["g"].connect(c[A]["input"]["y"]),
        "a parameter group feeds a module's parameters only",
    ),
    "input to parameters": (
        lambda c: c["input"]["in"].connect(c[A]["param"]),
        "a pipeline input feeds a module's input only",
    ),
    "output to parameters": (
        lambda c: c[A]["output"][0].connect(c[B]["param"]),
        "only a parameter group feeds a module's parameters",
    ),
    "output to group": (
        lambda c: c[A]["output"][0].connect(c["param_group"]["g"]),
        "a parameter group is fed by the caller",
    ),
    "output to output": (
        lambda c: c[A]["output"][0].connect(c[B]["output"][0]),
        "a module's output is fed by its module",
    ),
    "hole 5 fed twice": (
        lambda c: c[A]["output"][1].connect(c[B]["input"]["x"]),
        "a.output(o0) feeds it already",
    ),
    "hole 5 bound twice": (
        lambda c: c[A]["output"][1].connect(c["output"][0]),
        "b.output(o0) feeds it already",
    ),
    "bound to two outputs": (
        lambda c: c[B]["output"][0].connect(c["output"][1]),
        "it is pipeline output 0 already",
    ),
    "not an end": (lambda c: c[A]["output"][0].connect("x"), "it is no end of this one"),
    "another configuration's end": (
        lambda c: c[A]["output"][1].connect(two()[B]["input"]["y"]),
        "it is no end of this one",
    ),
    "unknown key": (lambda c: c["outputs"], "unknown key 'outputs', pipeline"),
    "unknown key of a module": (lambda c: c[A]["params"], "unknown key 'params', module a"),
    "output by name": (lambda c: c["output"]["first"], "unknown pipeline output 'first'"),
    "another module of one name": (lambda c: c[module("a", "q")], "two modules are called 'a'"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_is_refused_is_refused_in_one_line_and_changes_nothing(case: str) -> None:
    """Hole 1: the original leaves half of a rejected connection behind."""
    config = two()
    config[A]["output"][1]
    before, printed = config.graph, str(config)
    attempt, message = FORBIDDEN[case]
    with pytest.raises(NnstretchError) as caught:
        attempt(config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (config.graph, str(config)) == (before, printed)


def test_a_parameter_group_has_one_module_and_a_module_one_group() -> None:
    config, s0, s1, _ = reference()
    with pytest.raises(BadInput, match="parameter group param_0 feeds it already"):
        config["param_group"]["second"].connect(config[s0]["param"])
    with pytest.raises(BadInput, match=r"the group feeds s0.param already"):
        config["param_group"]["param_0"].connect(config[s1]["param"])
    with pytest.raises(BadInput, match="s1 has no parameters"):
        config["param_group"]["second"].connect(config[s1]["param"])


def test_a_failed_access_names_what_there_is() -> None:
    with pytest.raises(UnknownName, match="unknown module 'c', pipeline, it has a, b"):
        two().get_mod_idx(C)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=30))
def test_any_sequence_of_connections_stays_a_dag_in_order(
    attempts: list[tuple[int, int, int]],
) -> None:
    modules = [module(f"m{i}", "wxyz") for i in range(6)]
    config = PipelineConfig()
    for one in modules:
        config[one]
    for source, target, at in attempts:
        before = config.graph
        try:
            config[modules[source]]["output"][0].connect(
                config[modules[target]]["input"]["wxyz"[at]]
            )
        except BadInput:
            assert config.graph == before
        place = {one.name: i for i, one in enumerate(topological_order(config.graph))}
        assert len(place) == 6
        assert all(place[s.owner] < place[t.owner] for s, t in config.graph.connections)
        assert str(config) == str(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capacity", 0),
        ("capacity", -1),
        ("capacity", 2.5),
        ("capacity", 10**12),
        ("threads", 0),
        ("threads", True),
        ("replicas", 0),
        ("replicas", 65),
    ],
)
def test_a_setting_that_no_stage_can_have_is_refused_where_it_is_made(
    name: str, value: object
) -> None:
    config, first = PipelineConfig(), module("a", "x")
    with pytest.raises(BadInput, match=f"{name} is .*, module a, give a number from 1 to"):
        config[first].set(**{name: value})
    assert not config.graph.settings


@pytest.mark.parametrize("value", [(-1,), (0, 0), "0", (True,), ("0",), 3])
def test_cores_that_no_machine_has_are_refused_where_they_are_set(value: object) -> None:
    config, first = PipelineConfig(), module("a", "x")
    with pytest.raises(
        BadInput, match=r"cores is .*, module a, give numbers from 0 to 4095, each once"
    ):
        config[first].set(cores=value)
    assert config[first].set(cores=[2, 0]).config.graph.settings["a"].cores == (2, 0)


def test_a_networks_replicas_are_its_processors() -> None:
    config, first = PipelineConfig(), module("a", "x")
    with pytest.raises(
        BadInput,
        match="replicas is 2, module a, a network's replicas are its processors: name several",
    ):
        config[first].set(replicas=2)
    assert not config.graph.settings
