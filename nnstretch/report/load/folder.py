"""A folder of results as report data; absent files become None, wrong fields are refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.files.read import MOST_JSON_BYTES, as_path, read_bytes
from nnstretch.files.strict_yaml import parse_yaml
from nnstretch.report.load.data import (
    HeadlineSummary,
    ReportData,
    ReportedEpoch,
    RunSummary,
    SearchSummary,
    SourceFile,
    TrainingSummary,
)
from nnstretch.report.load.json_files import decode_at, read_json, read_text
from nnstretch.report.load.pipeline import PIPELINE_FILES, TRACE, is_pipelines, parse_pipeline
from nnstretch.report.load.trace import read_timelines

NETWORKS = ("original", "branched")
FILES = (
    "summary.json",
    "search.json",
    *(f"{what}_{kind}.json" for what, kind in product(("run", "trace", "training"), NETWORKS)),
    "plan.yaml",
)
TRAINED = tuple(f"{kind}/training.json" for kind in NETWORKS)
ALL_FILES = (*FILES, *TRAINED, *PIPELINE_FILES)
"""In folders that `train --out` filled, in place of what `train --json` printed."""


def read_report_data(folder: Path) -> ReportData:
    """Read a folder of the files that verbs write, or one trace file.

    Raises UnknownName for a folder without any of them, BrokenFile for one that cannot be read.
    """
    folder = as_path(folder, "folder")
    if folder.is_file():
        return _read_trace(folder)
    if not folder.is_dir():
        needed = "name a trace or the folder that holds search.json and its neighbours"
        raise UnknownName(f"cannot report {folder}, no such file or folder, {needed}")
    present = [name for name in ALL_FILES if (folder / name).exists()]
    if not present:
        needed = f"it holds none of {', '.join(ALL_FILES)}"
        raise UnknownName(f"nothing to report in {folder}, {needed}")
    documents = {name: read_json(folder / name) for name in present if name.endswith(".json")}
    files = {name: str(folder / name) for name in present}
    data = _decode_documents(documents, files)
    plan_text = read_plan_text(folder / "plan.yaml") if "plan.yaml" in present else None
    sources = tuple(_source(folder / name, name, documents.get(name)) for name in present)
    return replace(data, plan_text=plan_text, files=sources)


def _read_trace(path: Path) -> ReportData:
    document = read_json(path)
    files = (_source(path, path.name, document),)
    if is_pipelines(document):
        pipeline = parse_pipeline({TRACE: document}, {TRACE: str(path)})
        return ReportData(files=files, pipeline=pipeline)
    if isinstance(document, dict) and "traceEvents" not in document:
        raise BrokenFile(
            f"no trace, {path}, a file of what --trace writes is needed, or the folder of results"
        )
    return ReportData(timelines={"branched": read_timelines(document, str(path))}, files=files)


def _decode_documents(documents: dict[str, Any], files: dict[str, str]) -> ReportData:
    summary = search = pipeline = None
    if (name := "summary.json") in documents:
        summary = decode_at(HeadlineSummary, documents[name], files[name])
    if (name := "search.json") in documents:
        search = decode_at(SearchSummary, documents[name], files[name])
    data = ReportData(summary, search)
    for network in NETWORKS:
        if (name := f"run_{network}.json") in documents:
            data.runs[network] = decode_at(RunSummary, documents[name], files[name])
        if (name := f"trace_{network}.json") in documents:
            data.timelines[network] = read_timelines(documents[name], files[name])
        for name in (f"{network}/training.json", f"training_{network}.json"):
            if name in documents:
                data.training[network] = read_training(documents[name], files[name])
    if any(name in documents for name in PIPELINE_FILES):
        pipeline = parse_pipeline(documents, files)
    return replace(data, pipeline=pipeline)


def _source(path: Path, name: str, document: Any) -> SourceFile:
    content = read_bytes(path, "file", MOST_JSON_BYTES)
    command = document.get("command") if isinstance(document, dict) else None
    command = decode_at(str | tuple[str, ...] | None, command, str(path), "command")
    commands = (command,) if isinstance(command, str) else command or ()
    return SourceFile(name, len(content), hashlib.sha256(content).hexdigest(), commands)


def read_training(document: Any, file: str) -> tuple[ReportedEpoch, ...]:
    """Return the epochs of a training. Raises BrokenFile when a field is wrong."""
    epochs: list[ReportedEpoch] = []
    for epoch in decode_at(TrainingSummary, document, file).history:
        number = float(len(epochs)) if epoch.epoch is None else epoch.epoch
        epochs.append(replace(epoch, epoch=number))
    return tuple(epochs)


def read_plan_text(path: Path) -> str:
    """Return a plan file's text as it is. Raises BrokenFile when it is no mapping."""
    text = read_text(path)
    if not isinstance(parse_yaml(text, f"plan {path}"), dict):
        why = "top level is no mapping, expected the keys of a plan"
        raise BrokenFile(f"cannot report {path}, {why}")
    return text
