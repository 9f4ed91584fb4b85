"""What no file can be called, as the path of every public function that takes one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.trainings import small_net

from nnstretch import export, load_model, load_soc, profile
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.schedule_file import read_schedule
from nnstretch.errors import LONGEST_MESSAGE, NnstretchError
from nnstretch.files.journal import read_journal
from nnstretch.files.plan_yaml import read_plan, write_plan
from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.files.workload.arrival_csv import read_arrivals
from nnstretch.files.workload.measured_costs import read_measured_costs
from nnstretch.files.workload.service_record import read_record
from nnstretch.files.workload.sweep_yaml import read_sweep
from nnstretch.files.workload.workload_yaml import read_workload
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.predict import predict_ops
from nnstretch.report import write_report
from nnstretch.run import Pipeline, Session
from nnstretch.run.results.npy_files import read_npy
from nnstretch.run.server import Server
from nnstretch.study.storage import open_storage
from nnstretch.train import fit, load_recipe, load_weights
from nnstretch.train.data.shards import open_shards

ODD = {
    "long": "x" * 5000,
    "long parts": "x/" * 2500,
    "none": None,
    "bytes": b"plan.yaml",
    "empty": "",
    "zero byte": "a\0b",
    "no text": "a\ud800b",
    "number": 3,
    "Path of a long name": Path("y" * 300),
}
"""What is given as a path."""


@cache
def plan() -> Plan:
    return Plan("net.py:make", (1, 3, 16, 16), (Segment("input", "output", (Branch("cpu"),)),))


TAKERS: dict[str, Callable[[Any], Any]] = {
    "load_model": load_model,
    "load_soc": load_soc,
    "load_accelerator": load_accelerator,
    "Session": Session,
    "Server": Server,
    "Pipeline": Pipeline,
    "export": lambda path: export(small_net(), plan(), path),
    "write_report folder": lambda path: write_report(path, "page.html"),
    "write_report out": lambda path: write_report(".", path),
    "load_weights": lambda path: load_weights(small_net(), path),
    "load_recipe": load_recipe,
    "fit": lambda path: fit(small_net(), load_recipe("digits"), path),
    "profile": lambda path: profile(path, backend="nowhere", budget_s=1),
    "read_plan": read_plan,
    "write_plan": lambda path: write_plan(path, plan()),
    "read_npy": read_npy,
    "read_journal": read_journal,
    "read_task_graph": read_task_graph,
    "predict_ops": lambda path: predict_ops(path, load_soc("mi9")),
    "read_workload": read_workload,
    "read_sweep": read_sweep,
    "read_arrivals": read_arrivals,
    "read_measured_costs": read_measured_costs,
    "read_record": read_record,
    "open_storage": open_storage,
    "open_shards": open_shards,
    "read_schedule": read_schedule,
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", TAKERS)
def test_what_no_file_can_be_called_is_refused(
    name: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NnstretchError) as refusal:
        TAKERS[name](ODD[odd])
    said = str(refusal.value)
    assert said.isprintable()
    assert len(said) <= LONGEST_MESSAGE
    assert list(tmp_path.iterdir()) == []
