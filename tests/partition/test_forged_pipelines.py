"""A forged pipeline in a bundle is refused in one line."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pipeline_bundles import (
    framed,
    reference,
)

from nnstretch.bundle.archive import MANIFEST, write_sealed
from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.errors import BrokenFile
from nnstretch.run.loaded_network import LoadedNetwork

Change = Callable[[dict[str, Any]], object]


def stage(manifest: dict[str, Any], number: int) -> dict[str, Any]:
    found: dict[str, Any] = manifest["pipeline"]["stages"][number]
    return found


FORGED: dict[str, tuple[Change, str]] = {
    "twice": (lambda m: stage(m, 1).update(name="before"), "stage 'before' is there 2 times"),
    "nameless": (lambda m: stage(m, 1).update(name=""), "a stage without a name"),
    "nothing": (lambda m: m["pipeline"].update(outputs=[]), "pipeline.outputs, 0 items"),
    "unknown sub-graph": (
        lambda m: stage(m, 1).update(subgraphs=["s9"]),
        "sub-graph 's9', the manifest has none",
    ),
    "lost sub-graph": (lambda m: m["pipeline"]["stages"].pop(2), "sub-graph 's1' is in no stage"),
    "two stages": (
        lambda m: stage(m, 1).update(subgraphs=["s0", "s1"]),
        "sub-graph 's1' is there 2 times",
    ),
    "both kinds": (
        lambda m: stage(m, 1).update(call="a:b"),
        "either sub-graphs or a Python function",
    ),
    "code": (
        lambda m: stage(m, 0).update(call="os:system('x')"),
        "needed is a function as module:",
    ),
    "path": (lambda m: stage(m, 0).update(call="../evil.py:f"), "stages[0].call, '../evil.py:f'"),
    "ends of a network": (
        lambda m: stage(m, 1).update(inputs=[{"name": "q", "spec": None}]),
        "it has those of its sub-graphs",
    ),
    "no queue": (lambda m: stage(m, 1).update(capacity=0), "stages[1].capacity, 0 is out of range"),
    "threads": (
        lambda m: stage(m, 1).update(threads=10**6),
        "stages[1].threads, 1000000 is out of range",
    ),
    "cores": (lambda m: stage(m, 1).update(cores=[1, 1]), "cores (1, 1), each once"),
    "replicas": (lambda m: stage(m, 1).update(replicas=["dsp", "dsp"]), "each processor holds one"),
    "too many replicas": (
        lambda m: stage(m, 1).update(replicas=[f"cpu{n}" for n in range(100)]),
        "stages[1].replicas, 100 items, needed are 0 to 64",
    ),
    "too many stages": (
        lambda m: m["pipeline"]["stages"].extend(
            [m["pipeline"]["stages"][0] | {"name": f"x{n}"} for n in range(300)]
        ),
        "pipeline.stages, 305 items, needed are 1 to 256",
    ),
    "replicas as a number": (
        lambda m: stage(m, 1).update(replicas=2),
        "2 replicas, a Python function has from 1 to 64, sub-graphs name",
    ),
    "function on processors": (
        lambda m: stage(m, 0).update(replicas=["cpu0", "cpu1"]),
        "a Python function has a number of them",
    ),
    "no replica": (
        lambda m: stage(m, 0).update(replicas=0),
        "stages[0].replicas, 0 is out of range",
    ),
    "too many of a function": (
        lambda m: stage(m, 0).update(replicas=65),
        "replicas, 65 is out of range, needed is at least 1 and at most 64",
    ),
    "replicas true": (lambda m: stage(m, 0).update(replicas=True), "expected list"),
    "another's replica": (
        lambda m: stage(m, 1).update(replicas=["gpu", "cpu"]),
        "replicas begin with gpu",
    ),
    "order": (
        lambda m: m["pipeline"]["stages"].reverse(),
        "before it is written, a cycle or a wrong order",
    ),
    "unfed": (
        lambda m: m["pipeline"]["inputs"][0].update(name="other"),
        "stage 'before' reads 'item', which nothing feeds",
    ),
    "idle input": (
        lambda m: m["pipeline"]["inputs"].append({"name": "spare", "spec": None}),
        "input 'spare' feeds no stage",
    ),
    "fed twice": (
        lambda m: m["pipeline"]["inputs"].append({"name": "o3", "spec": None}),
        "tensor 'o3' is there 2 times",
    ),
    "unknown output": (
        lambda m: m["pipeline"].update(outputs=["result", "zz"]),
        "output 'zz', which nothing writes",
    ),
    "bound twice": (
        lambda m: m["pipeline"].update(outputs=["result", "result"]),
        "output 'result' is there 2 times",
    ),
    "type": (
        lambda m: stage(m, 0)["outputs"][0]["spec"].update(dtype="float64"),
        "tensor 'data_a' is 3x3 float64, sub-graphs have it as 3x3",
    ),
    "shape": (
        lambda m: stage(m, 0)["outputs"][0]["spec"].update(shape=[0]),
        "spec.shape[0], 0 is out",
    ),
    "group": (
        lambda m: m["pipeline"]["groups"][0].update(subgraph="after"),
        "sub-graph 'after', the manifest has none of this name",
    ),
    "empty group": (
        lambda m: m["pipeline"]["groups"][0].update(parameters=[]),
        "groups[0].parameters, 0 items",
    ),
    "parameter outside": (
        lambda m: m["pipeline"]["groups"][0]["parameters"][0].update(offset_bytes=10**6),
        "outside its file",
    ),
    "parameters overlap": (
        lambda m: m["pipeline"]["groups"][0]["parameters"][0].update(
            offset_bytes=m["pipeline"]["groups"][0]["parameters"][1]["offset_bytes"]
        ),
        "inside another parameter",
    ),
    "unknown key": (lambda m: stage(m, 1).update(kapazitaet=1), "unknown key 'kapazitaet'"),
    "feeds nobody": (lambda m: m["pipeline"].update(outputs=["o3"]), "stage 'after' feeds nobody"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_pipeline_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    path = tmp_path / "net.nns"
    change, message = FORGED[case]
    write_bundle(path, *framed())
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents[MANIFEST])
    change(manifest)
    write_sealed(path, contents | {MANIFEST: json.dumps(manifest).encode()})
    with pytest.raises(BrokenFile) as caught:
        read_bundle(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bundle_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    manifest, contents = reference()
    assert manifest.pipeline is not None
    with pytest.raises(BrokenFile, match="cannot write bundle"):
        write_bundle(
            tmp_path / "net.nns",
            replace(manifest, pipeline=replace(manifest.pipeline, outputs=("zz",))),
            contents,
        )
    assert not (tmp_path / "net.nns").exists()


def test_a_pipeline_bundle_is_a_bundle_in_memory_too() -> None:
    manifest, contents = reference()
    assert np.array_equal(
        LoadedNetwork(Bundle(manifest, contents)).run_sequential(
            {"data_a": np.ones((3, 3), np.float32), "data_b": np.ones((3, 3), np.float32)}
        ),
        np.full((3, 3), 29),
    )
