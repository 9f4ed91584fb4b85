"""What goes to standard output and to files.

Names are never markup, nothing is replaced by mistake, no traceback where nobody reads.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table
from support.bundles import branched_bundle

from nnstretch import cli
from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli import main, run_verb
from nnstretch.cli.bench.result import options
from nnstretch.cli.console import Terminal
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.serve.show import show as show_served
from nnstretch.errors import BadInput
from nnstretch.files.atomic import atomic_write

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "nn_stretch"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    bundle = branched_bundle(segments=2)
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    return tmp_path / "net.nns"


@pytest.mark.parametrize(
    "text",
    [
        *("b[/x]/net.py:make", "c[red ]/n.nns", "a[3]", r"a\[b]", ":cat:.py:make"),
        *("[cpu0 4 x 1024", "[cpu0 4 x 1024 | cpu1 = x =]  concat"),
    ],
)
def test_names_are_printed_as_they_are(text: str) -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=200)
    table = Table("name", title=text)
    table.add_row(text)
    console.print(table)
    console.print(f"[yellow]{text}[/yellow]")
    console.print(text, markup=False)
    assert file.getvalue().count(text) == 4
    assert "yellow" not in file.getvalue()


def test_control_characters_of_names_are_escaped() -> None:
    name, escaped = "\x1b]0;a\x07\nb\u202e\x9b", "\\x1b]0;a\\x07\\nb\\u202e\\x9b"
    file = io.StringIO()
    console = Terminal(file=file, width=200)
    table = Table(name, title=name)
    table.add_row(name)
    console.print(table)
    console.print(f"[yellow]{name}[/yellow]")
    console.print(name, markup=False)
    text = file.getvalue()
    assert text.count(escaped) == 5
    assert text.replace("\n", "").isprintable()


def test_a_task_graph_sends_no_control_characters_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b[31mred\n"
    graph = {"processors": [name], "tasks": [name], "cost": {name: {name: 1}}}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    assert main(["schedule", str(tmp_path / "graph.json")]) == 0
    text = capsys.readouterr().out
    assert r"\x1b[31mred\n" in text
    assert text.replace("\n", "").isprintable()


def test_nothing_in_a_table_is_cut_on_a_narrow_terminal() -> None:
    latency_ms = {"mean": 171.2, "p50": 154.2, "p95": 1334.9, "p99": 15004.0}
    counts = {"accepted": 20108, "answered": 17656, "refused": 345, "cancelled": 478}
    counts |= {"failed": 1974}  # those that missed their deadline among them
    app = {"name": "recommendations", "latency_ms": latency_ms, "deadline_misses": 1573, **counts}
    result = {"apps": [app], "utilisation": {"cpu0": 0.4}, "policy": "eft", "lost": 0}
    file = io.StringIO()
    rates = {"throughput_per_s": 0.33, "scheduling_us": {"per_task": 17.8}}
    show_served(result | rates, Terminal(file=file, width=60))
    text = file.getvalue()
    assert "…" not in text
    columns = zip(*(line.split("│") for line in text.splitlines() if "│" in line), strict=True)
    words = ["".join("".join(column).split()) for column in columns]
    assert {"recommendations", "17656of20108", "345,1573,401,478", "1.5e+04"} <= set(words)


@pytest.mark.slow
def test_branches_of_a_plan_are_printed_without_backslashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("import", [str(DATA / "example_R-34-CD.yaml")]) == 0
    text = capsys.readouterr().out
    assert "layer1 -> layer2  [cpu 3 x 80 | dsp 3 x 64]" in text
    assert "\\" not in text


def test_only_the_console_escapes_brackets() -> None:
    """A verb that did so as well would print the escape."""
    folder = Path(cli.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name != "console.py":
            text = path.read_text(encoding="utf-8")
            assert "\\\\[" not in text, path
            assert "rich.markup" not in text, path


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--json"], []])
def test_a_full_standard_output_is_one_line(net: Path, how: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "nnstretch.cli", "run", str(net), *how],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (ran.returncode, ran.stderr) == (
        1,
        "nnstretch: cannot write the result, standard output, No space left on device\n",
    )


def test_an_interrupt_while_a_verb_is_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(verb: str) -> SimpleNamespace:
        raise KeyboardInterrupt

    monkeypatch.setattr("nnstretch.cli.verb_module", interrupted)
    assert run_verb("run", []) == 130
    assert capsys.readouterr() == ("", "nnstretch: interrupted\n")


def test_an_interrupt_within_text_that_is_executed_is_one_line_and_no_death(tmp_path: Path) -> None:
    """Named tuples and dataclasses are made of such text, so an import may be within it."""
    text = "import signal; signal.raise_signal(signal.SIGINT)"
    (tmp_path / "interrupted.py").write_text(
        "import sys\nimport nnstretch.cli\nfrom nnstretch.__main__ import main\n"
        f"nnstretch.cli.main = lambda: exec({text!r})\nsys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (130, "nnstretch: interrupted\n")


def test_little_is_imported_before_interrupts_are_heard_of() -> None:
    code = "import sys; import nnstretch.__main__; print('typing' in sys.modules, *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, check=True, cwd=ROOT
    )
    heavy, *modules = done.stdout.decode().split()
    assert heavy == "False"
    assert not {"inspect", "re", "argparse", "json", "nnstretch.cli"} & set(modules)


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="it is a device or a pipe"):
        check_writable(tmp_path / "pipe")
    with pytest.raises(BadInput, match="it is a device or a pipe"), atomic_write(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_the_output_is_not_the_trace(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(net.with_name("one"))
    assert run_verb("run", [str(net), "--output", path, "--trace", path]) == 1
    assert (
        capsys.readouterr().err
        == f"nnstretch: --trace is {path}, command line, it is --output, too\n"
    )
    assert not Path(path).exists()


def test_a_page_says_how_many_images_calibrated() -> None:
    args = Namespace(
        weights=None,
        bundle=None,
        backend=None,
        int8=True,
        only_int8=False,
        calibration="digits",
        calibration_images=3,
        seconds=None,
        runs=2,
    )
    assert options(args) == {
        "int8": "",
        "calibration": "digits",
        "calibration-images": "3",
        "runs": "2",
    }


def test_a_report_does_not_overwrite_its_trace(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = net.with_name("trace.json")
    assert run_verb("run", [str(net), "--trace", str(trace)]) == 0
    before = trace.read_bytes()
    assert run_verb("report", [str(trace), "--out", str(trace)]) == 1
    assert "it is the command's own input" in capsys.readouterr().err
    assert trace.read_bytes() == before


def test_copies_of_a_processor_run_with_their_chip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = branched_bundle(segments=1)
    subs = tuple(
        replace(
            sub,
            processor={"cpu": "cpu0", "dsp": "cpu1"}[sub.processor],
            predicted_us={"cpu0": 9.0, "cpu1": 9.0},
        )
        for sub in bundle.manifest.subgraphs
    )
    write_bundle(tmp_path / "net.nns", replace(bundle.manifest, subgraphs=subs), bundle.files)
    assert run_verb("run", [str(tmp_path / "net.nns"), "--soc", "mi9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == {
        "cpu0": "onnxruntime",
        "cpu1": "onnxruntime",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [
        ("1>&-", 1, "cannot write the result, standard output, it is closed"),
        ("2>&-", 0, ""),
        ("0<&-", 0, ""),
        (">/dev/full", 1, "cannot write the result, standard output, No space left on device"),
        ("| true", 0, "cannot write the result, standard output, Broken pipe"),
    ],
)
def test_streams_that_are_closed_or_full_are_one_line(
    streams: str, status: int, said: str, net: Path
) -> None:
    command = f"{sys.executable} -m nnstretch run {net} --clock virtual {streams}"
    end = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert end.returncode == status
    assert said in end.stderr
    assert end.stderr.count("\n") == (1 if said else 0)


@pytest.mark.parametrize("words", ["--help", "--version", "--print-completion zsh"])
@pytest.mark.parametrize(
    ("stream", "why"), [(">/dev/full", "No space left on device"), ("1>&-", "it is closed")]
)
def test_texts_that_nobody_can_read_are_one_line(words: str, stream: str, why: str) -> None:
    command = f"{sys.executable} -m nnstretch {words} {stream}"
    end = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert end.returncode == 1
    assert end.stderr == f"nnstretch: cannot write the result, standard output, {why}\n"


def test_help_and_a_verb_is_what_the_verb_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "study", "capacity"], ["study", "capacity", "--help"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
    first, second = capsys.readouterr().out.split("usage: ")[1:]
    assert first == second


def schedule(path: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "nnstretch", "schedule", str(path), "--processors", "2"]
    return subprocess.run(words, capture_output=True, check=False, env=os.environ | environment)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_an_output_cannot_show_are_escaped(tmp_path: Path, encoding: str) -> None:
    graph = tmp_path / "\u4e2d\udcff.stg"
    graph.write_bytes((ROOT / "tests/data/task_graphs/sparse.stg").read_bytes())
    end = schedule(graph, PYTHONIOENCODING=encoding)
    assert (end.returncode, end.stderr) == (0, b"")
    assert end.stdout.count(b"\n") > 30
    assert end.stdout.decode(encoding).isascii() == (encoding != "utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["0", "99999999999"])
def test_a_width_that_no_terminal_has_is_not_taken(columns: str) -> None:
    end = schedule(ROOT / "tests/data/task_graphs/sparse.stg", COLUMNS=columns)
    assert (end.returncode, end.stderr) == (0, b"")
    usual = schedule(ROOT / "tests/data/task_graphs/sparse.stg", COLUMNS="80")
    if columns == "0":
        assert end.stdout == usual.stdout
    assert len(end.stdout) >= len(usual.stdout)


@pytest.mark.parametrize(("width", "is_whole"), [(40, True), (24, False)])
def test_heads_of_a_table_are_folded_between_words_where_there_is_room(
    width: int, is_whole: bool
) -> None:
    out = io.StringIO()
    table = Table("plan", "meeting points", "what it is called")
    table.add_row("1", "3", "a name that goes on for longer than a line has columns")
    Terminal(file=out, width=width).print(table)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = {cell.strip() for line in lines[:4] for cell in line.split("┃")}
    assert ({"plan", "meeting", "points"} <= words) is is_whole


@pytest.mark.parametrize("name", ["[red]a", "[bold]", "[yellow]a[/yellow]"])
def test_names_in_tables_and_within_lines_have_no_colours(name: str) -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=200)
    table = Table(name, title=name)
    table.add_row(name)
    console.print(table)
    console.print(f"network {name}")
    console.print(f"[yellow]note:[/yellow] {name} is small")
    console.print(f"[bold]{name}[/bold] on mi9")
    console.print(f"[red]never measured {name}[/red]")
    shown = file.getvalue()
    assert shown.count(name) == 7
    for tag in ("[yellow]note", "note:[/yellow]", "[bold]" + name, "[/bold]", "[red]never"):
        assert tag not in shown


def test_a_verb_colours_the_begin_of_a_line_or_all_of_it() -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=200, force_terminal=True, color_system="standard")
    console.print("[yellow]note:[/yellow] a", highlight=False)
    console.print("[yellow]all of it[/yellow]", highlight=False)
    console.print("[bold]net 7[/bold] on mi9, 5 ms")
    first, second, third = file.getvalue().splitlines()
    assert (first, second) == ("\x1b[33mnote:\x1b[0m a", "\x1b[33mall of it\x1b[0m")
    assert third.startswith("\x1b[1mnet ")
    assert "\x1b[1;36m5\x1b[0m" in third


@pytest.mark.parametrize("name", ["n[/red].py", "[bold]n[/red]", "[/bold][/yellow]", "\\\\[/red]"])
def test_a_name_that_closes_what_nothing_opened_is_printed(name: str) -> None:
    file = io.StringIO()
    Terminal(file=file, width=200).print(f"network {name}")
    assert name in file.getvalue()
