"""A folder -> Story. Absent files and absent optional fields become None; wrong ones are refused with their place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.report.fields import Place, read_json, read_text
from nnstretch.report.story import Branch, Epoch, PlanCost, Run, Search, Segment, SourceFile, Story, Summary, SummaryRow
from nnstretch.report.stream_reading import PIPELINE_FILES, TRACE, is_pipelines, pipeline_from
from nnstretch.report.timelines import timelines_from
from nnstretch.yamltext import parse_yaml

KINDS = ("original", "branched")
FILES = (
    "summary.json",
    "search.json",
    *(f"{what}_{kind}.json" for what in ("run", "trace", "training") for kind in KINDS),
    "plan.yaml",
)
T = TypeVar("T")


def read_story(folder: Path) -> Story:
    """A folder of the files that verbs write, or one trace file. Raises UnknownName, BrokenFile."""
    folder = Path(folder)
    if folder.is_file():
        place = read_json(folder)
        if is_pipelines(place):
            return Story(files=(_source(folder, place),), pipeline=pipeline_from({TRACE: place}))
        return Story(timelines={"branched": timelines_from(place)}, files=(_source(folder, place),))
    if not folder.is_dir():
        raise UnknownName(f"cannot report {folder}, no such folder, name the one that holds search.json and its neighbours")
    present = [name for name in (*FILES, *PIPELINE_FILES) if (folder / name).exists()]
    if not present:
        raise UnknownName(f"nothing to report in {folder}, it holds none of {', '.join((*FILES, *PIPELINE_FILES))}")
    read = {name: read_json(folder / name) for name in present if name.endswith(".json")}
    return Story(
        summary=summary_from(read["summary.json"]) if "summary.json" in read else None,
        search=search_from(read["search.json"]) if "search.json" in read else None,
        runs=_by_kind(read, "run", run_from),
        timelines=_by_kind(read, "trace", timelines_from),
        training=_by_kind(read, "training", training_from),
        plan_text=plan_text_from(folder / "plan.yaml") if "plan.yaml" in present else None,
        files=tuple(_source(folder / name, read.get(name)) for name in present),
        pipeline=pipeline_from(read),
    )


def _by_kind(read: dict[str, Place], what: str, parse: Callable[[Place], T]) -> dict[str, T]:
    return {kind: parse(read[name]) for kind in KINDS if (name := f"{what}_{kind}.json") in read}


def _source(path: Path, place: Place | None) -> SourceFile:
    content = path.read_bytes()
    says = place.at("command").texts() if place and isinstance(place.value, dict) else ()
    return SourceFile(path.name, len(content), hashlib.sha256(content).hexdigest(), says)


def summary_from(place: Place) -> Summary:
    return Summary(
        title=place.at("title").maybe_text(),
        rows=tuple(_summary_row(row) for row in place.at("rows").items()),
        speedup_vs_fastest=place.at("speedup_vs_fastest").maybe_size(),
        speedup_vs_iso_mac=place.at("speedup_vs_iso_mac").maybe_size(),
        notes=place.at("notes").texts(),
    )


def _summary_row(row: Place) -> SummaryRow:
    numbers = ("accuracy", "macs", "params", "predicted_ms", "predicted_error_ms", "emulated_ms")
    values = {name: row.at(name).maybe_size() for name in numbers}
    return SummaryRow(network=row.at("network").text(), processor=row.at("processor").maybe_text(), **values)


def search_from(place: Place) -> Search:
    original, space = place.at("original"), place.at("space")
    return Search(
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


def _inside(place: Place, key: str) -> Place:
    """A field of an object that may itself be absent."""
    return Place(place.file, f"{place.path}.{key}", None) if place.missing else place.at(key)


def _sizes(place: Place) -> dict[str, float]:
    """An object of numbers; an entry that is null (unsupported there) is left out."""
    return {key: value.size() for key, value in place.entries() if not value.missing}


def _flat(place: Place, name: str) -> Iterator[tuple[str, str]]:
    """Provenance has no fixed form: text, an object or a list, one pair per leaf."""
    if isinstance(place.value, dict):
        for key, inner in place.entries():
            yield from _flat(inner, f"{name}, {key}" if name else key)
    elif isinstance(place.value, list):
        for inner in place.items():
            yield from _flat(inner, name)
    elif not place.missing:
        yield name or "latency predictor", str(place.value)


def _plan(plan: Place) -> PlanCost:
    optional = ("error_ms", "macs", "params", "speedup_vs_fastest", "iso_mac_latency_ms", "speedup_vs_iso_mac")
    values = {name: plan.at(name).maybe_size() for name in optional}
    segments = tuple(_segment(segment) for segment in plan.at("segments").items())
    return PlanCost(latency_ms=plan.at("latency_ms").size(), segments=segments, **values)


def _segment(segment: Place) -> Segment:
    branches = tuple(_branch(branch) for branch in segment.at("branches").items())
    if not branches:
        segment.at("branches").broken("at least one branch")
    return Segment(
        start=segment.at("start").text(),
        end=segment.at("end").text(),
        merge=segment.at("merge").maybe_text(),
        branches=branches,
        latency_ms=segment.at("latency_ms").size(),
        sync_ms=segment.at("sync_ms").maybe_size() or 0.0,
        merge_ms=segment.at("merge_ms").maybe_size() or 0.0,
        original_ms=segment.at("original_ms").maybe_size(),
    )


def _branch(branch: Place) -> Branch:
    return Branch(
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


def run_from(place: Place) -> Run:
    processors = dict(place.at("processors").entries())
    return Run(
        mode=place.at("mode").maybe_text(),
        clock=place.at("clock").maybe_text(),
        timing=place.at("timing").maybe_text(),
        latency_ms=_sizes(place.at("latency_ms")),
        critical_path_ms=place.at("critical_path_ms").maybe_size(),
        overlap_efficiency=place.at("overlap_efficiency").maybe_number(),
        dilation=place.at("dilation").maybe_size(),
        busy_ms={name: at.at("busy_ms").maybe_size() or 0.0 for name, at in processors.items()},
        utilisation={name: at.at("utilisation").maybe_size() or 0.0 for name, at in processors.items()},
    )


def training_from(place: Place) -> tuple[Epoch, ...]:
    return tuple(_epoch(row, number) for number, row in enumerate(place.at("history").items()))


def _epoch(row: Place, number: int) -> Epoch:
    epoch = row.at("epoch").maybe_number()
    return Epoch(
        epoch=float(number) if epoch is None else epoch,
        train_loss=row.at("train_loss").maybe_number(),
        val_loss=row.at("val_loss").maybe_number(),
        val_accuracy=row.at("val_accuracy").maybe_size(),
        seconds=row.at("seconds").maybe_size(),
    )


def plan_text_from(path: Path) -> str:
    """The text as it is; parsed only to refuse what is not a plan at all."""
    text = read_text(path)
    if not isinstance(parse_yaml(text, f"plan {path}"), dict):
        raise BrokenFile(f"cannot report {path}, top level is no mapping, expected the keys of a plan")
    return text
