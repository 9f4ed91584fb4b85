"""Plan, trace and picture of the best trials, as artifacts for optuna-dashboard."""

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
from nnstretch.soc import Soc, host_of
from nnstretch.study.evaluate import Evaluation, PlanEvaluator
from nnstretch.study.result import dominates, feasible_trials

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
PLAN_FILE = "plan.yaml"
TRACE_FILE = "trace.json"
PICTURE_FILE = "plan.svg"
MIME_TYPES = {
    PLAN_FILE: "text/plain",
    TRACE_FILE: "application/json",
    PICTURE_FILE: "image/svg+xml",
}


@dataclass(frozen=True)
class ArtifactWriter:
    """Writer into a folder that `optuna-dashboard --artifact-dir` reads."""

    folder: Path
    evaluator: PlanEvaluator

    def write_if_best(
        self, study: Study, trial: Trial, evaluation: Evaluation, values: Sequence[float]
    ) -> None:
        """Attach artifacts to a trial if no finished trial is as good."""
        from optuna.artifacts import FileSystemArtifactStore, upload_artifact

        for finished in feasible_trials(study.get_trials(deepcopy=False)):
            if list(finished.values) == list(values):
                return
            if dominates(finished.values, values, study.directions):
                return
        self.folder.mkdir(parents=True, exist_ok=True)
        store = FileSystemArtifactStore(self.folder)
        with tempfile.TemporaryDirectory() as folder:
            for path in write_artifacts(evaluation, self.evaluator, Path(folder)):
                upload_artifact(
                    artifact_store=store,
                    file_path=str(path),
                    study_or_trial=trial,
                    mimetype=MIME_TYPES[path.name],
                )


def write_artifacts(
    evaluation: Evaluation, evaluator: PlanEvaluator, folder: Path
) -> tuple[Path, ...]:
    """Write plan, predicted trace and picture of an evaluation."""
    write_plan(folder / PLAN_FILE, evaluation.plan, evaluator.prediction(evaluation))
    write_trace(folder / TRACE_FILE, evaluation, evaluator.soc)
    write_text(folder / PICTURE_FILE, plan_svg(evaluation))
    return folder / PLAN_FILE, folder / TRACE_FILE, folder / PICTURE_FILE


def write_trace(path: Path, evaluation: Evaluation, soc: Soc) -> None:
    """Write when each branch would run, by the virtual clock."""
    trial = evaluation.trial
    assert trial is not None
    host = host_of(soc.processors) or soc.processors[0].name
    tasks = tasks_of_trial(trial, host)
    names = dict.fromkeys(task.processor or "" for task in tasks)
    processors = tuple(soc.processor(name) for name in names)
    clock = VirtualExecutor(processors, durations_of_trial(trial, host))
    trace = run_tasks(tasks, StaticPlacement(tuple(names)), clock)
    labels = TraceLabels(evaluation.plan.model, roles_of_trial(trial))
    write_traces(path, {"predicted": trace}, labels)


def plan_svg(evaluation: Evaluation) -> str:
    """Return the report's picture of a plan as one SVG, segments side by side."""
    segments = ElementTree.fromstring(str(plan_picture(report_segments(evaluation))))
    style = ElementTree.fromstring(str(style_sheet()))
    picture = ElementTree.Element("svg", {"xmlns": SVG_NAMESPACE})
    picture.append(style)
    x = 0.0
    height = 0.0
    for segment in segments.iter("svg"):
        segment.set("x", f"{x:g}")
        x += float(segment.get("width", "0"))
        height = max(height, float(segment.get("height", "0")))
        picture.append(segment)
    picture.set("viewBox", f"0 0 {x:g} {height:g}")
    picture.set("width", f"{x:g}")
    picture.set("height", f"{height:g}")
    return ElementTree.tostring(picture, encoding="unicode") + "\n"


def report_segments(evaluation: Evaluation) -> tuple[ReportedSegment, ...]:
    """Return the segments of a feasible plan as the report reads them from search.json."""
    assert evaluation.trial is not None
    return decode(
        tuple[ReportedSegment, ...], segments_json(evaluation.trial, evaluation.lowered), "segments"
    )
