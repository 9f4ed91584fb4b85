"""What hangs on a trial that was the best when it was told.

Plan, trace and picture, for optuna-dashboard.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from nnstretch.files.atomic import write_text
from nnstretch.files.decode import decode
from nnstretch.files.plan_yaml import write_plan
from nnstretch.files.trial_json import segments_json
from nnstretch.report.charts.plan_diagram import plan_picture
from nnstretch.report.load.data import ReportedSegment
from nnstretch.report.style import style_sheet
from nnstretch.run.perfetto import TraceLabels, write_traces
from nnstretch.schedule import StaticPlacement, VirtualExecutor, run_tasks
from nnstretch.schedule.task_graph import durations_of_trial, roles_of_trial, tasks_of_trial
from nnstretch.soc import Soc
from nnstretch.study.evaluate import Evaluation
from nnstretch.study.result import dominates, feasible_trials

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
PLAN_FILE, TRACE_FILE, PICTURE_FILE = "plan.yaml", "trace.json", "plan.svg"
MIME_TYPES = {
    PLAN_FILE: "text/plain",
    TRACE_FILE: "application/json",
    PICTURE_FILE: "image/svg+xml",
}


@dataclass(frozen=True)
class ArtifactWriter:
    """Keeps artifacts in a folder that `optuna-dashboard --artifact-dir` reads."""

    folder: Path
    soc: Soc

    def write_if_best(
        self, study: Study, trial: Trial, verdict: Evaluation, values: Sequence[float]
    ) -> bool:
        """Attach artifacts if nothing told so far is as good; says whether it did."""
        from optuna.artifacts import FileSystemArtifactStore, upload_artifact

        known = feasible_trials(study.get_trials(deepcopy=False))
        if any(
            list(t.values) == list(values) or dominates(t.values, values, study.directions)
            for t in known
        ):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        store = FileSystemArtifactStore(self.folder)
        with tempfile.TemporaryDirectory() as folder:
            for path in write_artifacts(verdict, self.soc, Path(folder)):
                upload_artifact(
                    artifact_store=store,
                    file_path=str(path),
                    study_or_trial=trial,
                    mimetype=MIME_TYPES[path.name],
                )
        return True


def write_artifacts(verdict: Evaluation, soc: Soc, folder: Path) -> tuple[Path, ...]:
    """Plan, virtual clock's trace and picture of a plan, as files."""
    write_plan(folder / PLAN_FILE, verdict.plan)
    write_trace(folder / TRACE_FILE, verdict, soc)
    write_text(folder / PICTURE_FILE, plan_svg(verdict))
    return folder / PLAN_FILE, folder / TRACE_FILE, folder / PICTURE_FILE


def write_trace(path: Path, verdict: Evaluation, soc: Soc) -> None:
    """Write when each branch would run on the virtual clock; nothing is computed."""
    trial = verdict.trial
    assert trial is not None
    host = next((p.name for p in soc.processors if p.kind == "cpu"), soc.processors[0].name)
    tasks = tasks_of_trial(trial, host)
    names = dict.fromkeys(task.processor or "" for task in tasks)
    clock = VirtualExecutor(
        tuple(soc.processor(name) for name in names), durations_of_trial(trial, host)
    )
    trace = run_tasks(tasks, StaticPlacement(tuple(names)), clock)
    write_traces(path, {"predicted": trace}, TraceLabels(verdict.plan.model, roles_of_trial(trial)))


def plan_svg(verdict: Evaluation) -> str:
    """Return the report's picture of a plan as one SVG file, its segments side by side."""
    drawn = ElementTree.fromstring(str(plan_picture(report_segments(verdict))))
    style = ElementTree.fromstring(str(style_sheet()))
    whole = ElementTree.Element("svg", {"xmlns": SVG_NAMESPACE})
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


def report_segments(verdict: Evaluation) -> tuple[ReportedSegment, ...]:
    """Return the segments of a feasible plan as the report reads them from search.json."""
    assert verdict.trial is not None
    return decode(
        tuple[ReportedSegment, ...], segments_json(verdict.trial, verdict.lowered), "segments"
    )
