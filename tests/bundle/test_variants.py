"""Several plans in one bundle: joined, taken out again, and as hostile as a bundle of one."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle.test_bundle import PAYLOAD, forged, refusal, sub, tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bundles import feature_map

from nnstretch.bundle.archive import MANIFEST, digest
from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.bundle.image_task import ImageTask
from nnstretch.bundle.manifest import MAIN, Manifest, Subgraph, all_subgraphs, plans_by_name
from nnstretch.bundle.variants import load_variants, merge_bundles, select_plan
from nnstretch.cli import run_verb
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.run import Session


def several() -> Bundle:
    """A main plan and an alternative of one sub-graph, which shares its file."""
    bundle = tiny()
    x, z = bundle.manifest.inputs[0], bundle.manifest.outputs[0]
    only = Subgraph(
        "a",
        "dsp",
        "other.onnx",
        digest(PAYLOAD),
        len(PAYLOAD),
        (x,),
        (z,),
        predicted_us={"dsp": 9.0},
    )
    files = {"other.onnx": PAYLOAD}
    return merge_bundles(
        bundle,
        [
            (
                "alone",
                Bundle(
                    Manifest("m", None, (x,), (z,), (only,), 2e-6, {0: 1.0}, "plan: y"),
                    files,
                    "alone.nns",
                ),
            )
        ],
    )


def alone(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["alternatives"][0]  # type: ignore[no-any-return]


def test_alternatives_come_back_and_equal_files_are_stored_once(tmp_path: Path) -> None:
    bundle = several()
    assert bundle.files.keys() == {"a.onnx", "deep/b.onnx"}
    write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    back = read_bundle(tmp_path / "a.nns")
    assert (back.manifest, back.files) == (bundle.manifest, bundle.files)
    assert list(plans_by_name(back.manifest)) == [MAIN, "alone"]
    one = select_plan(back, "alone")
    assert (one.manifest.plan, one.manifest.max_abs_error, one.manifest.sync_us) == (
        "plan: y",
        2e-6,
        {0: 1.0},
    )
    assert [(s.processor, s.file) for s in one.manifest.subgraphs] == [("dsp", "a.onnx")]
    assert one.files == {"a.onnx": PAYLOAD}
    assert (
        select_plan(back, None).manifest
        == replace(bundle.manifest, alternatives=())
        == tiny().manifest
    )
    with pytest.raises(UnknownName, match=r"unknown plan 'best', .*a.nns, it has main, alone"):
        select_plan(back, "best")


def test_a_bundle_of_one_plan_is_written_as_before_there_were_several(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.nns", tiny().manifest, tiny().files)
    with zipfile.ZipFile(tmp_path / "a.nns") as archive:
        assert "alternatives" not in json.loads(archive.read(MANIFEST))


def test_plans_are_joined_of_one_network_wherever_its_file_lay() -> None:
    def made_of(model: str) -> Bundle:
        return Bundle(replace(tiny().manifest, model=model), tiny().files, "b.nns")

    main = made_of("a/det.onnx#head/scores")
    merge_bundles(main, [("b", made_of("b#1/det.onnx#head/scores"))])
    for other in ("a/other.onnx#head/scores", "a/det.onnx#head/boxes", "a/det.onnx"):
        with pytest.raises(BadInput, match=r"its network is .*, the main plan's 'a/det.onnx#head/"):
            merge_bundles(main, [("b", made_of(other))])


def test_plans_that_do_not_fit_are_not_joined() -> None:
    bundle = tiny()
    wide = replace(bundle.manifest.outputs[0], spec=feature_map(3))
    last = replace(bundle.manifest.subgraphs[1], outputs=(wide,))
    other = replace(
        bundle.manifest, outputs=(wide,), subgraphs=(bundle.manifest.subgraphs[0], last)
    )
    with pytest.raises(
        BadInput,
        match=(
            r"cannot add plan b of b\.nns, bundle, its outputs are 'z' 1x3x8x8 float32, the main"
            r" plan's 'z' 1x8x8x8"
        ),
    ):
        merge_bundles(bundle, [("b", Bundle(other, bundle.files, "b.nns"))])
    with pytest.raises(BadInput, match="it was predicted for mi9, the main plan for no chip"):
        merge_bundles(
            bundle, [("b", Bundle(replace(bundle.manifest, soc="mi9"), bundle.files, "b.nns"))]
        )
    task = ImageTask(("cat", "dog"), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    images = Bundle(replace(bundle.manifest, image_task=task), bundle.files, "b.nns")
    with pytest.raises(BadInput, match="it takes images or names classes otherwise than the main"):
        merge_bundles(bundle, [("b", images)])


@pytest.mark.parametrize(
    ("main", "added", "fits"),
    [
        *(("net.py:make", "models/net.py:make", True), ("a/n.onnx#0", "b/n.onnx#0", True)),
        ("torchvision:resnet18?num_classes=10", "torchvision:resnet18?num_classes=10", True),
        *(("net.py:make", "net.py:make?w=16", False), ("net.py:make", "net.py:other", False)),
        *(("n.py:f?path=a/w", "n.py:f?path=b/w", False), ("n.onnx", "n.onnx#1", False)),
    ],
)
def test_only_plans_of_one_network_are_joined(main: str, added: str, fits: bool) -> None:
    ours, theirs = (
        replace(tiny(), manifest=replace(tiny().manifest, model=name)) for name in (main, added)
    )
    if fits:
        assert merge_bundles(ours, [("b", theirs)]).manifest.alternatives
        return
    why = f"its network is '{added}', the main plan's '{main}', export both from one MODEL"
    with pytest.raises(BadInput, match=re.escape(why)):
        merge_bundles(ours, [("b", theirs)])


def test_names_of_added_plans_come_from_their_files(tmp_path: Path) -> None:
    for name, bundle in (("gpu", tiny()), ("both", several()), ("main", tiny()), ("a b", tiny())):
        write_bundle(tmp_path / f"{name}.nns", bundle.manifest, bundle.files)
    assert [name for name, _ in load_variants([tmp_path / "gpu.nns", tmp_path / "both.nns"])] == [
        "gpu",
        "both",
        "alone",
    ]
    for names, why in (
        (["gpu", "gpu"], "the name gpu is taken"),
        (["main"], "the name main is taken"),
        (["a b"], "'a b' is no plan's name"),
    ):
        with pytest.raises(BadInput, match=why):
            load_variants([tmp_path / f"{name}.nns" for name in names])


WRONG_ALTERNATIVES = {
    "plan 'main' is defined 2 times": lambda m: alone(m).update(name="main"),
    "plan 'alone' is defined 2 times": lambda m: m["alternatives"].append(alone(m)),
    "'../x' is no plan's name": lambda m: alone(m).update(name="../x"),
    "'' is no plan's name": lambda m: alone(m).update(name=""),
    "unknown key 'colour'": lambda m: alone(m).update(colour="red"),
    "unknown key 'alternatives'": lambda m: alone(m).update(alternatives=[]),
    "expected list": lambda m: m.update(alternatives={}),
    "its inputs are 'x' 1x8x8x9 float32, the main plan's": lambda m: widen(m),
    "its inputs are 'w'": lambda m: (
        alone(m)["inputs"][0].update(name="w"),
        sub(alone(m), 0)["inputs"][0].update(name="w"),
    ),
    "its outputs are": lambda m: (
        alone(m)["outputs"][0].update(layout="NCHW"),
        sub(alone(m), 0)["outputs"][0].update(layout="NCHW"),
    ),
    "a network needs inputs, outputs and sub-graphs": lambda m: alone(m).update(outputs=[]),
    "9999 bytes": lambda m: sub(alone(m), 0).update(size_bytes=9999, file="deep/c.onnx"),
    "expects other contents of a.onnx": lambda m: sub(alone(m), 0).update(sha256="0" * 64),
    "'../../etc/passwd', a name must be": (
        lambda m: sub(alone(m), 0).update(file="../../etc/passwd")
    ),
    "its file is the manifest itself": lambda m: sub(alone(m), 0).update(file=MANIFEST),
    "predicted_us.dsp, -1.0 is out of range, needed is at least 0 and less than 1e+12": lambda m: (
        sub(alone(m), 0)["predicted_us"].update(dsp=-1.0)
    ),
    "no merge there to charge it to": lambda m: alone(m)["sync_us"].update({"7": 1.0}),
    "reads 'ghost', which nothing writes": (
        lambda m: sub(alone(m), 0)["inputs"][0].update(name="ghost")
    ),
    "reads 'z' before it is written": (
        lambda m: sub(alone(m), 0)["inputs"].append(sub(alone(m), 0)["outputs"][0])
    ),
}


def widen(manifest: dict[str, Any]) -> None:
    for port in (alone(manifest)["inputs"][0], sub(alone(manifest), 0)["inputs"][0]):
        port["spec"].update(shape=[1, 8, 8, 9])


@pytest.mark.parametrize("why", WRONG_ALTERNATIVES)
def test_a_forged_alternative_is_refused_by_name(tmp_path: Path, why: str) -> None:
    found = refusal(forged(tmp_path / "forged.nns", WRONG_ALTERNATIVES[why], bundle=several()))
    assert why in found or (why == "9999 bytes" and "deep/c.onnx, it is missing" in found)


JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
)


@pytest.mark.slow
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_forged_manifest_is_refused_or_whole(tmp_path: Path, data: st.DataObject) -> None:
    """Any value anywhere in it, alternatives among them, replaced, dropped or doubled."""

    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest if data.draw(st.booleans()) else alone(manifest)
        while True:
            key = (
                data.draw(st.sampled_from(sorted(place)))
                if isinstance(place, dict)
                else data.draw(st.integers(0, len(place) - 1))
            )
            inner = place[key]
            if not (isinstance(inner, (dict, list)) and inner) or data.draw(st.integers(0, 4)) == 0:
                break
            place = inner
        how = data.draw(st.sampled_from(["replace", "drop", "double"]))
        if how == "replace":
            place[key] = data.draw(JUNK)
        elif how == "drop":
            del place[key]
        elif isinstance(place, list):
            place.append(inner)
        else:
            place[f"{key}2"] = inner

    try:
        back = read_bundle(forged(tmp_path / "forged.nns", change, bundle=several()))
    except BrokenFile:
        return
    for name in plans_by_name(back.manifest):
        one = select_plan(back, name)
        assert [p.name for p in one.manifest.inputs] == [p.name for p in back.manifest.inputs]
        assert all(digest(one.files[s.file]) == s.sha256 for s in one.manifest.subgraphs)
    assert set(back.files) == {s.file for s in all_subgraphs(back.manifest)}


NETWORK = """from torch import nn


def make():
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU()), nn.Flatten(), nn.Linear(16 * 64, 10))
"""


@pytest.mark.slow
def test_the_verb_adds_the_plans_of_other_bundles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def exported(out: str, processor: str, *argv: object, size: int = 16) -> tuple[int, str]:
        pixels = ["--input", f"1,3,{size},{size}"]
        model = f"{tmp_path}/net.py:make" if size == 16 else f"{tmp_path}/net.py:other"
        status = run_verb(
            "export",
            [
                model,
                "--processor",
                processor,
                *pixels,
                "--soc",
                "mi9",
                "--out",
                str(tmp_path / out),
                *map(str, argv),
            ],
        )
        return status, capsys.readouterr().err.strip()

    (tmp_path / "net.py").write_text(
        NETWORK + "\n\ndef other():\n    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())\n"
    )
    assert exported("dsp.nns", "dsp") == (0, "")
    assert exported("net.nns", "cpu", "--also", tmp_path / "dsp.nns") == (0, "")
    back = read_bundle(tmp_path / "net.nns")
    assert list(plans_by_name(back.manifest)) == [MAIN, "dsp"]
    assert {s.processor for s in select_plan(back, "dsp").manifest.subgraphs} == {"dsp"}
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    with Session(back) as main, Session(back, plan="dsp") as other:
        assert np.allclose(main.run(x), other.run(x), atol=1e-5)
        assert main.latency_us != other.latency_us
    before = (tmp_path / "net.nns").read_bytes()
    status, why = exported("net.nns", "cpu", "--also", tmp_path / "dsp.nns", size=8)
    assert (status, why.count("\n")) == (1, 0)
    assert "cannot add plan dsp of" in why
    assert "the main plan's" in why
    assert (tmp_path / "net.nns").read_bytes() == before
    assert (
        "the name main is taken"
        in exported("a.nns", "cpu", "--also", (tmp_path / "dsp.nns").rename(tmp_path / "main.nns"))[
            1
        ]
    )
    assert run_verb("export", ["x.yaml", "--single", "a.onnx", "--also", "b.nns"]) == 1
    assert "--also b.nns without --out" in capsys.readouterr().err


def test_files_of_one_name_in_two_folders_stay_apart() -> None:
    bundle = tiny()
    a, b = bundle.manifest.subgraphs
    subs = (
        replace(a, file="one/x.onnx", sha256=digest(b"1"), size_bytes=1),
        replace(b, file="two/x.onnx", sha256=digest(b"2"), size_bytes=1),
    )
    other = Bundle(
        replace(bundle.manifest, subgraphs=subs), {"one/x.onnx": b"1", "two/x.onnx": b"2"}, "b.nns"
    )
    back = select_plan(merge_bundles(bundle, [("b", other)]), "b")
    assert {sub.name: back.files[sub.file] for sub in back.manifest.subgraphs} == {
        "a": b"1",
        "b": b"2",
    }
