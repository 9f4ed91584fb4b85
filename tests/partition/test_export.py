"""One file holds a pipeline: assembled of links, written, moved, read, run by what runs bundles."""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.bundles import branched_bundle
from support.pipeline_bundles import (
    framed,
    module_for,
    onnx_file,
    op,
    reference,
    reference_config,
    reference_files,
)

from nnstretch.bundle.archive import MANIFEST
from nnstretch.bundle.bundle import read_bundle, write_bundle
from nnstretch.bundle.pipeline_view import PipelineEdge, edges, functions_of
from nnstretch.errors import BadInput, BrokenFile, UnknownName, UnsupportedOp
from nnstretch.export.onnx.rename_io import rename_io
from nnstretch.partition.build_manifest import build_manifest
from nnstretch.partition.connect import PipelineConfig
from nnstretch.pipeline import PipelineSpec, PipelineStage, TensorDecl, find_group
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.pipelines.weight_patching import patch_weights


@pytest.mark.parametrize("value", [3, 4, 5, 6, 7])
def test_the_reference_network_is_linked_written_moved_read_and_right(
    value: int, tmp_path: Path
) -> None:
    """P2: one file that is not where it was written; out = 4d + 3e + 22."""
    write_bundle(tmp_path / "first.nns", *reference())
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "first.nns").rename(tmp_path / "elsewhere" / "second.nns")
    bundle = read_bundle(moved)
    pipeline = bundle.manifest.pipeline
    assert pipeline is not None
    assert (len(pipeline.inputs), len(pipeline.outputs)) == (2, 1)
    assert [item.name for item in pipeline.inputs] == ["data_a", "data_b"]
    assert edges(pipeline, bundle.manifest) == (
        PipelineEdge("data_a", "", "s0"),
        PipelineEdge("o3", "s0", "s1"),
        PipelineEdge("data_b", "", "s1"),
        PipelineEdge("n", "s1", "s2"),
        PipelineEdge("o2", "s0", "s2"),
        PipelineEdge("out", "s2", ""),
    )
    assert [sub.processor for sub in bundle.manifest.subgraphs] == ["cpu", "dsp", "cpu"]
    assert [(group.name, group.subgraph) for group in pipeline.groups] == [("param_0", "s0")]
    array = np.full((3, 3), value, np.float32)
    out = LoadedNetwork(bundle).run_sequential({"data_a": array, "data_b": array})
    assert np.array_equal(out, np.full((3, 3), 7 * value + 22))
    group = find_group(pipeline, "param_0")
    raised = {"one": np.array([11], np.float32), "two": np.array([12], np.float32)}
    files = {
        **bundle.files,
        "subgraphs/s0.onnx": patch_weights(group, bundle.files["subgraphs/s0.onnx"], raised),
    }
    out = LoadedNetwork(replace(bundle, files=files)).run_sequential(
        {"data_a": array, "data_b": array}
    )
    assert np.array_equal(out, np.full((3, 3), 7 * value + 72)), (
        "every constant of the first stage raised by 10"
    )


def test_parameters_that_do_not_fit_are_refused_by_name() -> None:
    """E10, E11, and the shapes and types that the original copies unchecked."""
    manifest, contents = reference()
    assert manifest.pipeline is not None
    group, data = manifest.pipeline.groups[0], contents["subgraphs/s0.onnx"]
    with pytest.raises(BadInput, match="no parameters, parameter group param_0"):
        patch_weights(group, data, None)  # type: ignore[arg-type]
    with pytest.raises(
        UnknownName, match="unknown parameter group 'param_1', pipeline, it has param_0"
    ):
        find_group(manifest.pipeline, "param_1")
    with pytest.raises(
        BadInput, match="unknown parameter 'four', parameter group param_0, it has one, two"
    ):
        patch_weights(group, data, {"four": np.ones(1, np.float32)})
    with pytest.raises(
        BadInput, match="parameter two is 1 float64, parameter group param_0, expected 1 float32"
    ):
        patch_weights(group, data, {"two": np.ones(1)})
    with pytest.raises(BadInput, match="parameter two is 2 float32"):
        patch_weights(group, data, {"two": np.ones(2, np.float32)})


def test_hole_4_one_output_into_two_inputs_of_one_module_computes_right(tmp_path: Path) -> None:
    """Typical of residual blocks: y = x + x through two edges.

    In the bundle it is one tensor, and the file has one input.
    """
    files = {
        "a": onnx_file([op("Add", "p one", "q")], ["p"], ["q"], one=1),
        "b": onnx_file([op("Sub", "l r", "m"), op("Add", "m l", "s")], ["l", "r"], ["s"]),
    }
    a, b = (module_for(name, files[name]) for name in "ab")
    config = PipelineConfig()
    config["input"]["x"].connect(config[a]["input"]["p"])
    for name in "lr":
        config[a]["output"][0].connect(config[b]["input"][name])
    config[b]["output"][0].connect(config["output"][0])
    write_bundle(tmp_path / "twice.nns", *build_manifest(config.graph, files, "twice", None))
    bundle = read_bundle(tmp_path / "twice.nns")
    assert [p.name for p in bundle.manifest.subgraphs[1].inputs] == ["q"]
    assert np.array_equal(
        LoadedNetwork(bundle).run_sequential(np.full((3, 3), 4, np.float32)), np.full((3, 3), 5)
    )


def test_hole_7_and_8_roots_that_share_an_input_and_names_that_clash(tmp_path: Path) -> None:
    """Two roots read one input, one of them another too; all modules call their ends alike."""
    double, add = (
        onnx_file([op("Add", "x x", "y")], ["x"], ["y"]),
        onnx_file([op("Add", "x z", "y")], ["x", "z"], ["y"]),
    )
    files = {"a": double, "b": add, "c": add}
    a, b, c = (module_for(name, files[name]) for name in "abc")
    config = PipelineConfig()
    config["input"]["second"].connect(config[b]["input"]["z"])
    for one in (a, b):
        config["input"]["y"].connect(config[one]["input"]["x"])
    config[a]["output"][0].connect(config[c]["input"]["x"])
    config[b]["output"][0].connect(config[c]["input"]["z"])
    config[c]["output"][0].connect(config["output"][1])
    config[a]["output"][0].connect(config["output"][0])
    manifest, contents = build_manifest(config.graph, files, "roots", None)
    write_bundle(tmp_path / "roots.nns", manifest, contents)
    values = LoadedNetwork(read_bundle(tmp_path / "roots.nns"))
    ten, one = np.full((3, 3), 10, np.float32), np.ones((3, 3), np.float32)
    found = values.run_sequential({"y": ten, "second": one})
    assert manifest.pipeline is not None
    first, second = manifest.pipeline.outputs
    assert isinstance(found, dict)
    assert (float(found[first][0, 0]), float(found[second][0, 0])) == (20.0, 31.0)


def test_replicas_are_written_with_a_predicted_time_each(tmp_path: Path) -> None:
    config, files = reference_config(), reference_files()
    config[module_for("s1", files["s1"])].set(
        processors=("cpu0", "cpu1"), threads=2, cores=(2, 3), capacity=4
    )
    files["s1"] = replace(files["s1"], predicted_us={"cpu0": 7.0, "cpu1": 8.0})
    manifest, contents = build_manifest(config.graph, files, "reference", None)
    write_bundle(tmp_path / "net.nns", manifest, contents)
    read = read_bundle(tmp_path / "net.nns").manifest
    assert read.pipeline is not None
    assert read.pipeline.stages[1] == PipelineStage(
        "s1", ("s1",), replicas=("cpu0", "cpu1"), threads=2, cores=(2, 3), capacity=4
    )
    assert read.subgraphs[1].predicted_us == {"cpu0": 7.0, "cpu1": 8.0}
    files["s1"] = replace(files["s1"], predicted_us={"cpu0": 7.0})
    with pytest.raises(BrokenFile, match="no predicted time of its replica on cpu1"):
        write_bundle(tmp_path / "net.nns", *build_manifest(config.graph, files, "reference", None))


def test_python_stages_stand_around_the_network_and_are_never_loaded(tmp_path: Path) -> None:
    write_bundle(tmp_path / "net.nns", *framed())
    before = set(sys.modules)
    manifest = read_bundle(tmp_path / "net.nns").manifest
    assert not {"camera", "camera.read", "boxes"} & (set(sys.modules) | before)
    pipeline = manifest.pipeline
    assert pipeline is not None
    assert [(stage.name, stage.call) for stage in pipeline.stages if stage.call] == [
        ("before", "camera.read:load"),
        ("after", "boxes:draw"),
    ]
    assert (pipeline.inputs, pipeline.outputs) == ((TensorDecl("item"),), ("result",))
    assert [p.name for p in manifest.inputs] == [
        "data_a",
        "data_b",
    ], "its network still runs without them"
    with pytest.raises(
        BadInput,
        match=(
            r"stage after runs boxes:draw, pipeline, no function was passed for it; passed are camera\.read:load"
        ),
    ):
        functions_of(pipeline, {"camera.read:load": len})
    assert functions_of(pipeline, {"camera.read:load": len, "boxes:draw": repr}) == {
        "before": len,
        "after": repr,
    }


def test_links_and_files_that_do_not_fit_are_refused() -> None:
    files = reference_files()
    with pytest.raises(BadInput, match="module s1 has no file"):
        build_manifest(
            reference_config().graph, {"s0": files["s0"], "s2": files["s2"]}, "reference", None
        )
    with pytest.raises(BadInput, match="inputs of module s1 are data_n_0 3x3"):
        build_manifest(reference_config().graph, {**files, "s1": files["s2"]}, "reference", None)


def test_a_stage_may_itself_be_branched(tmp_path: Path) -> None:
    """A plan's segments form stages: the stem, and two branches with their merge."""
    bundle = branched_bundle(segments=1)
    stages = (
        PipelineStage("stem", ("stem",)),
        PipelineStage("both", ("s1_cpu", "s1_dsp", "s1_merge")),
    )
    spec = bundle.manifest.inputs[0].spec
    pipeline = PipelineSpec(stages, (TensorDecl("image", spec),), ("s1.merged",))
    write_bundle(tmp_path / "plan.nns", replace(bundle.manifest, pipeline=pipeline), bundle.files)
    read = read_bundle(tmp_path / "plan.nns").manifest
    assert read.pipeline == pipeline
    assert edges(pipeline, read) == (
        PipelineEdge("image", "", "stem"),
        PipelineEdge("stem", "stem", "both"),
        PipelineEdge("s1.merged", "both", ""),
    )


def test_a_bundle_without_a_pipeline_is_written_as_ever(tmp_path: Path) -> None:
    bundle = branched_bundle()
    write_bundle(tmp_path / "plain.nns", bundle.manifest, bundle.files)
    with zipfile.ZipFile(tmp_path / "plain.nns") as archive:
        assert "pipeline" not in json.loads(archive.read(MANIFEST))


def test_ends_are_renamed_also_where_names_are_taken_or_shared() -> None:
    """An inner tensor of a wanted name gives way.

    An output that is an input or another output gets a tensor of its own.
    """
    model = onnx.load_from_string(
        onnx_file([op("Add", "p one", "q"), op("Mul", "q q", "r")], ["p"], ["r"], one=1).data
    )
    model.graph.output.extend([model.graph.output[0], model.graph.input[0]])
    renamed = rename_io(model, ["q"], ["one", "second", "same"])
    onnx.checker.check_model(renamed)
    session = onnxruntime.InferenceSession(
        renamed.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(["one", "second", "same"], {"q": np.full((3, 3), 2, np.float32)})
    assert [float(array[0, 0]) for array in found] == [9.0, 9.0, 2.0]
    with pytest.raises(UnsupportedOp, match="it has 1 inputs and 3 outputs, expected 2 and 1"):
        rename_io(model, ["a", "b"], ["c"])
