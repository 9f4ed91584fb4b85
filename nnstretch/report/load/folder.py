"""A folder -> Story.

Absent files and absent optional fields become None; wrong ones are refused with their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.files.strict_yaml import parse_yaml
from nnstretch.report.load.data import (
    HeadlineSummary,
    PlanCost,
    ReportData,
    ReportedBranch,
    ReportedEpoch,
    ReportedSegment,
    RunSummary,
    SearchSummary,
    SourceFile,
    SummaryRow,
)
from nnstretch.report.load.json_cursor import JsonCursor, read_json, read_text
from nnstretch.report.load.pipeline import PIPELINE_FILES, TRACE, is_pipelines, parse_pipeline
from nnstretch.report.load.trace import read_timelines

KINDS = ("original", "branched")
FILES = (
    "summary.json",
    "search.json",
    *(f"{what}_{kind}.json" for what in ("run", "trace", "training") for kind in KINDS),
    "plan.yaml",
)
T = TypeVar("T")


def read_report_data(folder: Path) -> ReportData:
    """Read a folder of the files that verbs write, or one trace file. Raises UnknownName,
    BrokenFile.
    """
    folder = Path(folder)
    if folder.is_file():
        place = read_json(folder)
        if is_pipelines(place):
            return ReportData(
                files=(_source(folder, place),), pipeline=parse_pipeline({TRACE: place})
            )
        return ReportData(
            timelines={"branched": read_timelines(place)}, files=(_source(folder, place),)
        )
    if not folder.is_dir():
        raise UnknownName(
            f"cannot report {folder}, no such folder, name the one that holds search.json and its"
            " neighbours"
        )
    present = [name for name in (*FILES, *PIPELINE_FILES) if (folder / name).exists()]
    if not present:
        raise UnknownName(
            f"nothing to report in {folder}, it holds none of"
            f" {', '.join((*FILES, *PIPELINE_FILES))}"
        )
    read = {name: read_json(folder / name) for name in present if name.endswith(".json")}
    return ReportData(
        summary=parse_summary(read["summary.json"]) if "summary.json" in read else None,
        search=parse_search(read["search.json"]) if "search.json" in read else None,
        runs=_by_kind(read, "run", parse_run),
        timelines=_by_kind(read, "trace", read_timelines),
        training=_by_kind(read, "training", parse_training),
        plan_text=parse_plan_text(folder / "plan.yaml") if "plan.yaml" in present else None,
        files=tuple(_source(folder / name, read.get(name)) for name in present),
        pipeline=parse_pipeline(read),
    )


def _by_kind(
    read: dict[str, JsonCursor], what: str, parse: Callable[[JsonCursor], T]
) -> dict[str, T]:
    return {kind: parse(read[name]) for kind in KINDS if (name := f"{what}_{kind}.json") in read}


def _source(path: Path, place: JsonCursor | None) -> SourceFile:
    content = path.read_bytes()
    says = place.at("command").texts() if place and isinstance(place.value, dict) else ()
    return SourceFile(path.name, len(content), hashlib.sha256(content).hexdigest(), says)


def parse_summary(place: JsonCursor) -> HeadlineSummary:
    """Decode summary.json. Raises BrokenFile when a field is wrong."""
    return HeadlineSummary(
        title=place.at("title").maybe_text(),
        rows=tuple(_summary_row(row) for row in place.at("rows").items()),
        speedup_vs_fastest=place.at("speedup_vs_fastest").maybe_size(),
        speedup_vs_iso_mac=place.at("speedup_vs_iso_mac").maybe_size(),
        notes=place.at("notes").texts(),
    )


def _summary_row(row: JsonCursor) -> SummaryRow:
    numbers = ("accuracy", "macs", "params", "predicted_ms", "predicted_error_ms", "emulated_ms")
    values = {name: row.at(name).maybe_size() for name in numbers}
    return SummaryRow(
        network=row.at("network").text(), processor=row.at("processor").maybe_text(), **values
    )


def parse_search(place: JsonCursor) -> SearchSummary:
    """Decode search.json. Raises BrokenFile when a field is wrong."""
    original, space = place.at("original"), place.at("space")
    return SearchSummary(
        model=place.at("model").maybe_text(),
        soc=place.at("soc").maybe_text(),
        processors=place.at("processors").texts(),
        provenance=tuple(_flat(place.at("provenance"), "")),
        calibrated=place.at("calibrated").maybe_flag(),
        original_macs=_inside(original, "macs").maybe_size(),
        original_params=_inside(original, "params").maybe_size(),
        original_ms=_sizes(_inside(original, "latency_ms")),
        fastest=_inside(original, "fastest").maybe_text(),
        log10_size=_inside(space, "log10_size").maybe_number(),
        refused=_sizes(_inside(space, "refused")),
        optimal=place.at("optimal").maybe_flag(),
        lower_bound_ms=place.at("lower_bound_ms").maybe_size(),
        search_s=place.at("search_s").maybe_size(),
        plans=tuple(_plan(plan) for plan in place.at("plans").items()),
    )


def _inside(place: JsonCursor, key: str) -> JsonCursor:
    """Return a field of an object that may itself be absent."""
    return JsonCursor(place.file, f"{place.path}.{key}", None) if place.missing else place.at(key)


def _sizes(place: JsonCursor) -> dict[str, float]:
    """Return an object of numbers; an entry that is null (unsupported there) is left out."""
    return {key: value.size() for key, value in place.entries() if not value.missing}


def _flat(place: JsonCursor, name: str) -> Iterator[tuple[str, str]]:
    """Yield one pair per leaf: provenance has no fixed form, it is text, an object or a list."""
    if isinstance(place.value, dict):
        for key, inner in place.entries():
            yield from _flat(inner, f"{name}, {key}" if name else key)
    elif isinstance(place.value, list):
        for inner in place.items():
            yield from _flat(inner, name)
    elif not place.missing:
        yield name or "latency predictor", str(place.value)


def _plan(plan: JsonCursor) -> PlanCost:
    optional = (
        "error_ms",
        "macs",
        "params",
        "speedup_vs_fastest",
        "iso_mac_latency_ms",
        "speedup_vs_iso_mac",
    )
    values = {name: plan.at(name).maybe_size() for name in optional}
    segments = tuple(_segment(segment) for segment in plan.at("segments").items())
    return PlanCost(latency_ms=plan.at("latency_ms").size(), segments=segments, **values)


def _segment(segment: JsonCursor) -> ReportedSegment:
    branches = tuple(_branch(branch) for branch in segment.at("branches").items())
    if not branches:
        segment.at("branches").broken("at least one branch")
    return ReportedSegment(
        start=segment.at("start").text(),
        end=segment.at("end").text(),
        merge=segment.at("merge").maybe_text(),
        branches=branches,
        latency_ms=segment.at("latency_ms").size(),
        sync_ms=segment.at("sync_ms").maybe_size() or 0.0,
        merge_ms=segment.at("merge_ms").maybe_size() or 0.0,
        original_ms=segment.at("original_ms").maybe_size(),
    )


def _branch(branch: JsonCursor) -> ReportedBranch:
    return ReportedBranch(
        processor=branch.at("processor").text(),
        depth=branch.at("depth").maybe_whole(),
        width=branch.at("width").maybe_whole(),
        macs=branch.at("macs").maybe_size(),
        params=branch.at("params").maybe_size(),
        transfer_in_ms=branch.at("transfer_in_ms").maybe_size() or 0.0,
        compute_ms=branch.at("compute_ms").size(),
        transfer_out_ms=branch.at("transfer_out_ms").maybe_size() or 0.0,
        error_ms=branch.at("error_ms").maybe_size(),
    )


def parse_run(place: JsonCursor) -> RunSummary:
    """Decode run.json. Raises BrokenFile when a field is wrong."""
    processors = dict(place.at("processors").entries())
    return RunSummary(
        mode=place.at("mode").maybe_text(),
        clock=place.at("clock").maybe_text(),
        timing=place.at("timing").maybe_text(),
        latency_ms=_sizes(place.at("latency_ms")),
        critical_path_ms=place.at("critical_path_ms").maybe_size(),
        overlap_efficiency=place.at("overlap_efficiency").maybe_number(),
        dilation=place.at("dilation").maybe_size(),
        busy_ms={name: at.at("busy_ms").maybe_size() or 0.0 for name, at in processors.items()},
        utilisation={
            name: at.at("utilisation").maybe_size() or 0.0 for name, at in processors.items()
        },
    )


def parse_training(place: JsonCursor) -> tuple[ReportedEpoch, ...]:
    """Decode training.json. Raises BrokenFile when a field is wrong."""
    return tuple(_epoch(row, number) for number, row in enumerate(place.at("history").items()))


def _epoch(row: JsonCursor, number: int) -> ReportedEpoch:
    epoch = row.at("epoch").maybe_number()
    return ReportedEpoch(
        epoch=float(number) if epoch is None else epoch,
        train_loss=row.at("train_loss").maybe_number(),
        val_loss=row.at("val_loss").maybe_number(),
        val_accuracy=row.at("val_accuracy").maybe_size(),
        seconds=row.at("seconds").maybe_size(),
    )


def parse_plan_text(path: Path) -> str:
    """Return the text as it is, after a check that it is a plan.

    Raises BrokenFile when the text is no mapping.
    """
    text = read_text(path)
    if not isinstance(parse_yaml(text, f"plan {path}"), dict):
        raise BrokenFile(
            f"cannot report {path}, top level is no mapping, expected the keys of a plan"
        )
    return text
