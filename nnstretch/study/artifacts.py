"""What hangs on a trial that was the best when it was told: plan, trace and picture, for optuna-dashboard."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from nnstretch.files import write_text
from nnstretch.manifest import Manifest, Port, Subgraph
from nnstretch.plan import Branch
from nnstretch.planfile import write_plan
from nnstretch.report import story
from nnstretch.report.plan_picture import plan_picture
from nnstretch.report.style import style_sheet
from nnstretch.run.perfetto import write_perfetto
from nnstretch.schedule import Placed, VirtualClock, durations_of, run, tasks_of
from nnstretch.soc import Soc
from nnstretch.stretch.lower import LoweredSegment
from nnstretch.study.judge import Verdict
from nnstretch.study.result import better, feasible
from nnstretch.trial import BranchCost, SegmentCost

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

SVG = "http://www.w3.org/2000/svg"
PLAN, TRACE, PICTURE = "plan.yaml", "trace.json", "plan.svg"
KINDS = {PLAN: "text/plain", TRACE: "application/json", PICTURE: "image/svg+xml"}


@dataclass(frozen=True)
class Keeper:
    """Keeps artifacts in a folder that `optuna-dashboard --artifact-dir` reads."""

    folder: Path
    soc: Soc

    def keep(self, study: Study, trial: Trial, verdict: Verdict, values: Sequence[float]) -> bool:
        """Attach artifacts if nothing told so far is as good; says whether it did."""
        from optuna.artifacts import FileSystemArtifactStore, upload_artifact

        known = feasible(study.get_trials(deepcopy=False))
        if any(list(t.values) == list(values) or better(t.values, values, study.directions) for t in known):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        store = FileSystemArtifactStore(self.folder)
        with tempfile.TemporaryDirectory() as folder:
            for path in written(verdict, self.soc, Path(folder)):
                upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=trial, mimetype=KINDS[path.name])
        return True


def written(verdict: Verdict, soc: Soc, folder: Path) -> tuple[Path, ...]:
    """Plan, virtual clock's trace and picture of a plan, as files."""
    write_plan(folder / PLAN, verdict.plan)
    write_trace(folder / TRACE, verdict, soc)
    write_text(folder / PICTURE, picture(verdict))
    return folder / PLAN, folder / TRACE, folder / PICTURE


def write_trace(path: Path, verdict: Verdict, soc: Soc) -> None:
    """When each branch would run, told by the virtual clock; nothing is computed."""
    manifest = manifest_of(verdict, soc)
    processors = tuple(soc.processor(name) for name in dict.fromkeys(sub.processor for sub in manifest.subgraphs))
    clock = VirtualClock(processors, durations_of(manifest))
    write_perfetto(path, {"predicted": run(tasks_of(manifest), Placed(tuple(p.name for p in processors)), clock)}, manifest)


def manifest_of(verdict: Verdict, soc: Soc) -> Manifest:
    """The bundle that exporting this plan would give, less its files."""
    assert verdict.trial is not None
    assert verdict.lowered is not None
    host = next((p.name for p in soc.processors if p.kind == "cpu"), soc.processors[0].name)
    subgraphs: list[Subgraph] = []
    for number, (lowered, cost) in enumerate(zip(verdict.lowered.segments, verdict.trial.segments, strict=True)):
        subgraphs += subgraphs_of(number, lowered, cost, host)
    ends = subgraphs[0].inputs, subgraphs[-1].outputs
    sync_us = {i: s.sync_us for i, s in enumerate(verdict.trial.segments) if s.sync_us > 0}
    return Manifest(verdict.plan.model, soc.name, *ends, tuple(subgraphs), 0.0, sync_us)


def subgraphs_of(number: int, lowered: LoweredSegment, cost: SegmentCost, host: str) -> list[Subgraph]:
    segment, found = lowered.segment, []
    into = Port(segment.start, lowered.input)
    for branch, priced in zip(lowered.branches, cost.branches, strict=True):
        name = branch.branch.processor
        out = Port(f"{segment.end}@{name}" if segment.branched else segment.end, branch.output)
        found.append(Subgraph(f"s{number}.{name}", name, "", "", 0, (into,), (out,), segment=number, predicted_us={name: priced.latency_us}))
    if segment.branched:
        outs = tuple(sub.outputs[0] for sub in found)
        met = Port(segment.end, lowered.output)
        found.append(Subgraph(f"s{number}.merge", host, "", "", 0, outs, (met,), "merge", segment=number, predicted_us={host: cost.merge_us}))
    return found


def picture(verdict: Verdict) -> str:
    """The report's picture of a plan as one SVG file, its segments side by side."""
    drawn = ElementTree.fromstring(str(plan_picture(story_of(verdict))))
    style = ElementTree.fromstring(str(style_sheet()))
    whole = ElementTree.Element("svg", {"xmlns": SVG})
    whole.append(style)
    x = 0.0
    for segment in drawn.iter("svg"):
        segment.set("x", f"{x:g}")
        x += float(segment.get("width", "0"))
        whole.append(segment)
    height = max(float(segment.get("height", "0")) for segment in drawn.iter("svg"))
    whole.set("viewBox", f"0 0 {x:g} {height:g}")
    whole.set("width", f"{x:g}")
    whole.set("height", f"{height:g}")
    return ElementTree.tostring(whole, encoding="unicode") + "\n"


def story_of(verdict: Verdict) -> tuple[story.Segment, ...]:
    """A verdict as the report's nouns, in milliseconds."""
    assert verdict.trial is not None
    assert verdict.lowered is not None
    return tuple(
        story.Segment(
            start=cost.start,
            end=cost.end,
            merge=lowered.segment.merge,
            branches=tuple(drawn_branch(b.branch, priced) for b, priced in zip(lowered.branches, cost.branches, strict=True)),
            latency_ms=cost.latency_us / 1000,
            sync_ms=cost.sync_us / 1000,
            merge_ms=cost.merge_us / 1000,
            original_ms=cost.original_us / 1000,
        )
        for lowered, cost in zip(verdict.lowered.segments, verdict.trial.segments, strict=True)
    )


def drawn_branch(branch: Branch, cost: BranchCost) -> story.Branch:
    return story.Branch(
        processor=branch.processor,
        depth=int(branch.depth) if branch.depth is not None else None,
        width=int(branch.width) if branch.width is not None else None,
        macs=cost.macs,
        params=cost.params,
        transfer_in_ms=cost.transfer_in_us / 1000,
        compute_ms=cost.compute_us / 1000,
        transfer_out_ms=cost.transfer_out_us / 1000,
        error_ms=cost.error_us / 1000,
    )
