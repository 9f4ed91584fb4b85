"""Accuracy and loss over the epochs."""

from __future__ import annotations

from nnstretch.report.chapters.elements import chapter, missing_files
from nnstretch.report.charts.curves_and_bars import Curve, curves
from nnstretch.report.format_numbers import UNKNOWN, accuracy, count, seconds, tick
from nnstretch.report.html import Markup, join, table, tag
from nnstretch.report.load.data import ReportData, ReportedEpoch


def training_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the training."""
    says = (
        "The original, and the branched network that starts from its weights; held-out accuracy and"
        " loss after every epoch."
    )
    if not any(report_data.training.values()):
        files = "original/training.json, branched/training.json"
        missing = missing_files(files, "nnstretch train --out original")
        return chapter("training", "Training", says, missing)
    scores = _curves(report_data, "val_accuracy", "held-out", "")
    losses = (
        *_curves(report_data, "val_loss", "held-out", ""),
        *_curves(report_data, "train_loss", "training", " faded"),
    )
    charts: list[Markup] = []
    if scores:
        charts.append(curves("Accuracy, held-out", "epoch", scores, _percent_tick))
    if losses:
        charts.append(curves("Loss", "epoch", losses, tick))
    pair = tag("div", join(charts), class_="pair")
    return chapter("training", "Training", says, pair, _training_table(report_data))


def _percent_tick(value: float) -> str:
    return f"{100 * value:.4g}%" if value <= 1 else f"{value:.4g}%"


def _curves(report_data: ReportData, field: str, which: str, look: str) -> tuple[Curve, ...]:
    lines: list[Curve] = []
    for network, epochs in report_data.training.items():
        values = ((e.epoch or 0.0, getattr(e, field)) for e in epochs)
        points = tuple((epoch, value) for epoch, value in values if value is not None)
        if points:
            lines.append(Curve(f"{network}, {which}", f"{network}{look}", points))
    return tuple(lines)


def _training_table(report_data: ReportData) -> Markup:
    header = ("network", "epochs", "accuracy at the end", "best accuracy", "time")
    training = report_data.training
    rows = [_training_row(network, epochs) for network, epochs in training.items() if epochs]
    return table("Training in numbers", header, rows)


def _training_row(network: str, epochs: tuple[ReportedEpoch, ...]) -> tuple[str, ...]:
    scores = [e.val_accuracy for e in epochs if e.val_accuracy is not None]
    times_s = [e.seconds for e in epochs if e.seconds is not None]
    last = scores[-1] if scores else None
    best = max(scores, default=None)
    time = seconds(sum(times_s)) if times_s else UNKNOWN
    return network, count(len(epochs)), accuracy(last), accuracy(best), time
