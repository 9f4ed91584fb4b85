"""Bundles of format 1, as earlier versions wrote them, are read and run as before.

`small.nns`: a residual network of 2 MMACs on 1x3x32x32, exported for mi9 with one segment of two
branches (cpu, dsp).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnstretch.bundle.bundle import decode_manifest, read_bundle, write_bundle
from nnstretch.bundle.manifest import FORMAT, processors_named
from nnstretch.run import Session

OLD = Path(__file__).parents[1] / "data" / "format1" / "small.nns"
OUTPUT = [
    -0.16712215542793274,
    0.23131495714187622,
    0.17916284501552582,
    -0.14358335733413696,
    0.15086792409420013,
    -0.045794978737831116,
    0.06033709645271301,
    0.05835472047328949,
    0.22137610614299774,
    0.1389671266078949,
]
"""What the version that wrote it computed for numbers from -1 to 1."""


def test_an_old_bundle_computes_what_it_did_and_is_written_in_the_present_format(
    tmp_path: Path,
) -> None:
    bundle = read_bundle(OLD)
    assert bundle.manifest.format == FORMAT
    assert not bundle.manifest.processor_kinds
    x = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)
    with Session(bundle) as session:
        np.testing.assert_allclose(np.asarray(session.run(x))[0], OUTPUT, rtol=1e-5)
    path = tmp_path / "new.nns"
    write_bundle(path, bundle.manifest, bundle.files)
    assert read_bundle(path).manifest == bundle.manifest


def test_kinds_of_old_bundles_follow_from_names_and_those_of_new_ones_are_told() -> None:
    old = read_bundle(OLD).manifest
    assert [p.kind for p in processors_named(old, ["cpu1", "dsp", "cpu1"])] == ["cpu", "dsp"]

    new = replace(old, processor_kinds={"big": "cpu", "dsp": "dsp"})
    assert [p.kind for p in processors_named(new, ["big", "dsp"])] == ["cpu", "dsp"]


def test_format_1_has_no_kinds() -> None:
    text = b'{"format": 1, "processor_kinds": {"big": "cpu"}}'
    with pytest.raises(ValueError, match="unknown key 'processor_kinds'"):
        decode_manifest(text)
