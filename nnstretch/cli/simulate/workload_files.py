"""Files that a workload names, beside it or where the command runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.loaded_model import is_plan
from nnstretch.cli.output_path import check_writable, files_of
from nnstretch.errors import BadInput, NnstretchError
from nnstretch.files.plan_yaml import read_plan
from nnstretch.files.workload.measured_costs import (
    MeasuredCosts,
    join_costs,
    read_measured_costs,
)
from nnstretch.files.workload.workload import WorkloadFile

if TYPE_CHECKING:
    from nnstretch.task_graph import TaskGraph

GRAPHS = (".json", ".stg")


def read_graphs(workload: WorkloadFile, folder: Path) -> dict[str, TaskGraph]:
    """Read the task graphs of a workload, by application. Raises as `pool_text` and the reader."""
    from nnstretch.files.task_graphs.read_task_graph import read_task_graph

    graphs: dict[str, TaskGraph] = {}
    for settings in workload.applications:
        if settings.model is not None and settings.model.endswith(GRAPHS):
            path = beside(settings.model, folder)
            counts = pool_text(workload, path) if path.suffix == ".stg" else None
            graphs[settings.name] = read_task_graph(path, counts)
    return graphs


def pool_text(workload: WorkloadFile, path: Path) -> str:
    """Return how many processors there are, as the reader of a graph without any wants it.

    Raises BadInput for a workload without a pool.
    """
    if workload.pool is None:
        raise BadInput(
            f"no pool, workload, {path.name} names no processors: write how many there are, such"
            " as pool: {cpu: 4}"
        )
    return str(sum(workload.pool.values()))


def costs_beside(paths: str | Sequence[str], folder: Path) -> MeasuredCosts:
    """Return what tables beside a workload say together. Raises what reading them raises."""
    named = [paths] if isinstance(paths, str) else paths
    return join_costs([read_measured_costs(beside(path, folder)) for path in named])


def beside(path: str, folder: Path) -> Path:
    """Return a path beside the workload where that is there, else as it is written.

    It may name a function of the file: `net.py:make`.
    """
    file = path.partition(":")[0]
    is_there = (folder / path).exists() or (folder / file).is_file()
    return folder / path if is_there else Path(path)


def named_files(workload: WorkloadFile, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield models, lists of arrivals, measured costs and the files of a chip, with their names.

    With a plan comes the file of its network. What is no file, such as a network of torchvision, is
    not among them. Raises UnknownName for a chip that is not there.
    """
    names: list[str] = []
    for settings in workload.applications:
        if settings.model is not None:
            names.append(settings.model)
            names += planned_network(beside(settings.model, folder))
        if settings.arrivals is not None and settings.arrivals.csv is not None:
            names.append(settings.arrivals.csv)
    costs = workload.costs or ()
    names += (costs,) if isinstance(costs, str) else costs
    for name in names:
        for path in files_of(str(beside(name, folder)))[:1]:
            yield name, path
    if workload.soc is not None:
        from nnstretch.predict.load_soc import find_soc

        chip = find_soc(workload.soc)
        for path in sorted(chip.rglob("*")):
            if path.is_file():
                yield f"{workload.soc}/{path.relative_to(chip)}", path


def planned_network(model: Path) -> list[str]:
    """Return the network that a plan stretches; nothing for what is no sound plan."""
    if not is_plan(str(model)) or not model.is_file():
        return []
    try:
        return [read_plan(model).model]
    except NnstretchError:
        return []  # who loads it says why


def check_no_input(workload: WorkloadFile, folder: Path, *outputs: Path | None) -> None:
    """Refuse to write where the workload's own files lie. Raises BadInput or UnknownName."""
    inputs = [path for _, path in named_files(workload, folder)]
    for output in outputs:
        check_writable(output, *inputs)
