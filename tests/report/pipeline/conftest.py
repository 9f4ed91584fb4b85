"""A run of a pipeline that is a tenth slower than its prediction, and a copy to spoil."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.pipeline_bundles import reference
from support.pipeline_results import RUN, SPLIT, TIMES_US

from nnstretch.bundle.bundle import Bundle
from nnstretch.report.load.pipeline import PIPELINE_FILES
from nnstretch.run import write_perfetto
from nnstretch.run.pipelines.prediction import predict_stream
from nnstretch.trace import Trace


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run a tenth slower than its prediction."""
    folder = tmp_path_factory.mktemp("pipeline")
    manifest = Bundle(*reference()).manifest
    manifest = replace(
        manifest,
        subgraphs=tuple(
            replace(sub, predicted_us={sub.processor: TIMES_US[sub.name]})
            for sub in manifest.subgraphs
        ),
    )
    forecast = predict_stream(manifest, 40, {})
    played = Trace(
        tuple(
            replace(
                s,
                start_us=1.1 * s.start_us + 50_000,
                end_us=1.1 * s.end_us + 50_000,
                handed_us=None,
            )
            for s in forecast.spans
        )
    )
    write_perfetto(
        folder / "trace_pipeline.json",
        {"predicted": forecast, "measured": played},
        manifest,
        "emulated",
    )
    (folder / "run_pipeline.json").write_text(json.dumps(RUN), encoding="utf-8")
    (folder / "partition.json").write_text(json.dumps(SPLIT), encoding="utf-8")
    return folder


@pytest.fixture
def folder(sample: Path, tmp_path: Path) -> Path:
    for name in PIPELINE_FILES:
        (tmp_path / name).write_bytes((sample / name).read_bytes())
    return tmp_path
