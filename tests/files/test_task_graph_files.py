"""Task graphs from files: every form is read, and what is wrong is refused in one line by name."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import BadInput, BrokenFile, NnstretchError
from nnstretch.files.task_graphs.read_task_graph import processor_counts, read_task_graph

DATA = Path(__file__).parents[1] / "data" / "task_graphs"
SMALL: dict[str, Any] = {
    "tasks": ["load", "filter", "store"],
    "processors": {"cpu0": "cpu", "cpu1": "cpu", "fft0": "fft"},
    "cost": {"load": {"cpu": 4}, "filter": {"cpu": 9, "fft": 2}, "store": {"cpu1": 3}},
    "edges": [{"from": "load", "to": "filter", "data": 6}, {"from": "filter", "to": "store"}],
}
QUEUE: dict[str, Any] = {
    "processors": {"cpu0": "cpu", "fft0": "fft"},
    "queue": ["FFT1", "FFT2", "ZIP10"],
    "cost": {"FFT": {"cpu": 13, "fft": 12}, "ZIP": {"cpu": 69}, "GEMM": {"cpu": 1}},
}


def read(folder: Path, document: Any, name: str = "g.json", processors: str | None = None) -> Any:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_task_graph(path, processors)


def test_the_published_graph_is_read_with_costs_and_transfers() -> None:
    graph = read_task_graph(DATA / "topcuoglu2002.json")
    assert len(graph.tasks) == 10
    assert [processor.name for processor in graph.processors] == ["P1", "P2", "P3"]
    assert graph.cost_us["T10", "P2"] == 7.0
    assert graph.transfer_us["T4", "T8"] == 27.0
    assert graph.tasks[8].needs == {"T2", "T4", "T5"}


def test_costs_are_given_by_type_or_by_name_and_an_absent_pair_cannot_run(tmp_path: Path) -> None:
    graph = read(tmp_path, SMALL)
    assert graph.cost_us == {
        ("load", "cpu0"): 4.0,
        ("load", "cpu1"): 4.0,
        ("filter", "cpu0"): 9.0,
        ("filter", "cpu1"): 9.0,
        ("filter", "fft0"): 2.0,
        ("store", "cpu1"): 3.0,
    }


def test_an_edge_costs_latency_and_data_over_bandwidth(tmp_path: Path) -> None:
    graph = read(tmp_path, {**SMALL, "latency": 1.5, "bandwidth": 4})
    assert graph.transfer_us == {("load", "filter"): 3.0, ("filter", "store"): 1.5}


def test_the_kind_of_a_queued_task_is_its_name_without_the_digits_at_its_end(
    tmp_path: Path,
) -> None:
    graph = read(tmp_path, QUEUE)
    assert [(task.name, task.subgraph) for task in graph.tasks] == [
        ("FFT1", "FFT"),
        ("FFT2", "FFT"),
        ("ZIP10", "ZIP"),
    ]
    assert graph.cost_us["FFT", "fft0"] == 12.0
    assert ("ZIP", "fft0") not in graph.cost_us


@pytest.mark.parametrize(("name", "tasks", "work"), [("robot", 88, 2483), ("fpppp", 334, 7129)])
def test_standard_task_graphs_have_their_dummies_and_their_work(
    name: str, tasks: int, work: float
) -> None:
    graph = read_task_graph(DATA / f"{name}.stg", "2")
    assert len(graph.tasks) == tasks + 2
    assert sum(graph.cost_us[task.work, "cpu1"] for task in graph.tasks) == work
    assert [processor.name for processor in graph.processors] == ["cpu1", "cpu2"]


def test_dag_mode_json_has_the_processors_that_its_nodes_or_the_command_line_name() -> None:
    graph = read_task_graph(DATA / "correlator.json")
    assert [processor.name for processor in graph.processors] == ["cpu1", "fft1"]
    assert graph.transfer_us["ifft", "peak"] == 2.0
    wide = read_task_graph(DATA / "correlator.json", "cpu=3,fft=1")
    assert [processor.name for processor in wide.processors] == ["cpu1", "cpu2", "cpu3", "fft1"]
    assert wide.cost_us["ifft", "fft1"] == 7.0


def changed(change: Callable[[dict[str, Any]], object], document: Any = SMALL) -> dict[str, Any]:
    copied: dict[str, Any] = copy.deepcopy(document)
    change(copied)
    return copied


REFUSED: dict[str, Any] = {
    "cost.load.cpu, -4.0 is out of range": changed(lambda d: d["cost"].update(load={"cpu": -4})),
    "cost.load.cpu, 'True' is bool": changed(lambda d: d["cost"].update(load={"cpu": True})),
    "cost.load.cpu, '4' is str": changed(lambda d: d["cost"].update(load={"cpu": "4"})),
    "cost.load.cpu, inf is not finite": json.dumps(SMALL).replace("4}", "1e999}", 1),
    "NaN is not a number": json.dumps(SMALL).replace("4}", "NaN}", 1),
    "task load has no cost, none of cpu0, cpu1, fft0 can run it": changed(
        lambda d: d["cost"].pop("load")
    ),
    "task filter has no cost": changed(lambda d: d["cost"].update(filter={})),
    "cycle load -> filter -> load": changed(
        lambda d: d["edges"].append({"from": "filter", "to": "load"})
    ),
    "cycle load -> load": changed(lambda d: d["edges"].append({"from": "load", "to": "load"})),
    "unknown key 'proccessors', CostTableFile has": changed(lambda d: d.update(proccessors=["a"])),
    "close to it: processors": changed(lambda d: d.update(proccessors=["a"])),
    "cost of load on unknown processor cpuu; close to it: cpu": changed(
        lambda d: d["cost"].update(load={"cpuu": 3})
    ),
    "cost of lod, which is not among the tasks; close to it: load": changed(
        lambda d: d["cost"].update(lod={"cpu": 3})
    ),
    "edge from loud to store, loud is not among the tasks; close to it: load": changed(
        lambda d: d["edges"].append({"from": "loud", "to": "store"})
    ),
    "edge from load to filter, it is there twice": changed(
        lambda d: d["edges"].append({"from": "load", "to": "filter"})
    ),
    "edges[2], key 'to' is missing": changed(lambda d: d["edges"].append({"from": "load"})),
    "edges[2].data, -1.0 is out of range": changed(
        lambda d: d["edges"].append({"from": "load", "to": "store", "data": -1})
    ),
    "task load is there 2 times": changed(lambda d: d["tasks"].append("load")),
    "needed is either 'tasks' or 'queue'": changed(lambda d: d.update(queue=["FFT1"])),
    "key 'cost' is missing": changed(lambda d: d.pop("cost")),
    "bandwidth, 0.0 is out of range": changed(lambda d: d.update(bandwidth=0)),
    "processors, 0 items": changed(lambda d: d.update(processors={})),
    "task ZIP10 has no cost": changed(lambda d: d["cost"].pop("ZIP"), QUEUE),
    "a key twice": '{"tasks": ["a"], "tasks": ["b"]}',
    "'[]' is list, expected dict": [],
    "nested too deeply": "[" * 100_000 + "]" * 100_000,
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_refused_by_name(words: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFile) as refusal:
        read(tmp_path, REFUSED[words])
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "g.json" in str(refusal.value)


def correlator(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    return changed(change, json.loads((DATA / "correlator.json").read_text()))


REFUSED_DAGS: dict[str, Any] = {
    "edge from lfm to fft_ref, only lfm names it": correlator(
        lambda d: d["DAG"]["fft_ref"]["predecessors"].clear()
    ),
    "edge from ifft to peak, its costs are 3 and 2": correlator(
        lambda d: d["DAG"]["ifft"]["successors"][0].update(edgecost=3)
    ),
    "peek is not among the nodes; close to it: peak": correlator(
        lambda d: d["DAG"]["ifft"]["successors"][0].update(name="peek")
    ),
    "DAG.lfm.platforms[0].nodecost, -6.0 is out of range": correlator(
        lambda d: d["DAG"]["lfm"]["platforms"][0].update(nodecost=-6)
    ),
    "platform of lfm, cpu is there twice": correlator(
        lambda d: d["DAG"]["lfm"]["platforms"].append(d["DAG"]["lfm"]["platforms"][0])
    ),
    "successor of ifft, peak is there twice": correlator(
        lambda d: d["DAG"]["ifft"]["successors"].append(d["DAG"]["ifft"]["successors"][0])
    ),
    "predecessor of ifft": correlator(
        lambda d: d["DAG"]["ifft"]["predecessors"].append(d["DAG"]["ifft"]["predecessors"][0])
    ),
    "DAG.lfm.platforms, 0 items": correlator(lambda d: d["DAG"]["lfm"]["platforms"].clear()),
    "unknown Stream_enable 'tripple'": correlator(lambda d: d.update(Stream_enable="tripple")),
    "unknown key 'Shared_Object'": correlator(lambda d: d.update(Shared_Object="x.so")),
}


@pytest.mark.parametrize("words", REFUSED_DAGS)
def test_dag_mode_json_that_contradicts_itself_is_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFile) as refusal:
        read(tmp_path, REFUSED_DAGS[words])
    assert words in str(refusal.value)


def test_a_node_that_no_processor_of_the_pool_supports_is_refused() -> None:
    with pytest.raises(BrokenFile, match="task head has no cost, none of fft1, fft2 can run it"):
        read_task_graph(DATA / "correlator.json", "fft=2")


def test_a_type_on_which_no_node_runs_is_refused() -> None:
    for counts, near in (
        ("cpu=3,ftt=1", "close to it: fft"),
        ("cpu=1,zip=1", "they have cpu, fft"),
    ):
        with pytest.raises(BadInput, match=f"--processors names .*, no node runs on it; {near}"):
            read_task_graph(DATA / "correlator.json", counts)


REFUSED_STANDARD = {
    "empty": "# nothing",
    "line 1, 2 numbers": "3 4\n0 1 0\n",
    "has 1 tasks, line 1 says 3": "3\n0 1 0\n",
    "line 2, task 1, needed is task 0": "1\n1 1 0\n",
    "line 3, 3 numbers": "2\n0 1 0\n1 5 2\n",
    "line 3, task 1 needs 7, which is not among the 2 tasks": "2\n0 1 0\n1 5 1 7\n",
    "line 4, task 2 names a predecessor twice": "3\n0 1 0\n1 5 0\n2 1 2 1 1\n",
    "line 3, '-5', needed is a whole number": "2\n0 1 0\n1 -5 0\n",
    "cycle 0 -> 1 -> 0": "2\n0 1 1 1\n1 5 1 0\n",
}


@pytest.mark.parametrize("words", REFUSED_STANDARD)
def test_broken_standard_files_are_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFile) as refusal:
        read(tmp_path, REFUSED_STANDARD[words], "g.stg", "2")
    assert words in str(refusal.value)


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    for name in ("pipe.json", "pipe.stg"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(BrokenFile, match="is no regular file"):
            read_task_graph(tmp_path / name, "1" if name.endswith("stg") else None)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(257 << 20)
    with pytest.raises(BrokenFile, match="needed are at most"):
        read_task_graph(path)


@pytest.mark.parametrize("text", ["0", "-1", "two", "cpu=1,cpu=2", "cpu=", "", "1,2,", "99999999"])
def test_processors_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--processors is"):
        processor_counts(text)


def test_processors_are_named_by_the_file_or_by_the_command_line_but_not_by_both() -> None:
    with pytest.raises(BadInput, match="the file names its own processors"):
        read_task_graph(DATA / "topcuoglu2002.json", "3")
    with pytest.raises(BadInput, match="--processors is missing"):
        read_task_graph(DATA / "robot.stg")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(key=st.sampled_from(["tasks", "processors", "cost", "edges", "queue", "DAG"]), value=JSON)
def test_any_json_is_read_or_refused(
    key: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_text(json.dumps({**SMALL, key: value}))
    with suppress(NnstretchError):
        read_task_graph(path)


def test_a_graph_of_more_prices_than_can_be_kept_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.stg").write_text("1100\n" + "".join(f"{n} 1 0\n" for n in range(1100)))
    assert len(read_task_graph(tmp_path / "g.stg", "4").tasks) == 1100
    with pytest.raises(BrokenFile, match="1100 tasks on 10000 processors, needed are at most"):
        read_task_graph(tmp_path / "g.stg", "10000")


def test_a_queue_counts_each_of_its_tasks_and_kinds_that_do_not_wait_count_too(
    tmp_path: Path,
) -> None:
    processors = dict.fromkeys((f"cpu{number}" for number in range(2000)), "cpu")
    queue = {"processors": processors, "queue": [f"FFT{number}" for number in range(5001)]}
    with pytest.raises(BrokenFile, match=r"g\.json, 5001 tasks on 2000 processors, needed are"):
        read(tmp_path, {**queue, "cost": {"FFT": {"cpu": 1}}})
    kinds = {f"k{chr(number)}": {"cpu": 1} for number in range(0x4E00, 0x4E00 + 5002)}
    with pytest.raises(BrokenFile, match=r"g\.json, 5002 tasks on 2000 processors, needed are"):
        read(tmp_path, {**queue, "queue": ["FFT1"], "cost": kinds})
