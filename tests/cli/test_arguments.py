"""Arguments that nobody can mean are refused by their names, shortly; close words are suggested."""

from __future__ import annotations

import argparse
import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nnstretch.cli import main, parser_of
from nnstretch.cli.arguments import finite_number, quantity, whole_number
from nnstretch.cli.verbs import BY_NAME
from nnstretch.errors import BadInput, BrokenFile

NO_WHOLE = ("1_000", "1e3", "0x10", "1:30", "٣", "1.0", "", " 1", "nan", "inf", "1" + "0" * 400)
NO_NUMBER = ("nan", "inf", "-inf", "1e400", "1_0", "0x10", "1:30", "٣", "", " 1", "1" + "0" * 400)


def numeric_options() -> Iterator[tuple[str, str]]:
    """Yield verb and option of every argument that is parsed as a number."""
    for verb in BY_NAME:
        for action in parser_of(verb)._actions:
            if action.option_strings and is_numeric(action.type):
                yield verb, action.option_strings[0]


def is_numeric(parse: Callable[[str], Any] | None) -> bool:
    """Return whether a parser of an argument takes 7 or 700 for a number."""
    for text in ("7", "700"):
        try:
            if parse is not None and type(parse(text)) in (int, float):
                return True
        except (argparse.ArgumentTypeError, ValueError, TypeError):
            continue
    return False


OPTIONS = list(numeric_options())


@pytest.mark.parametrize("words", ["train digits", "simulate sweep x.yaml", "accelerate x.onnx"])
def test_an_empty_folder_is_not_the_current_one(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--out", ""]) == 1
    assert capsys.readouterr().err == (
        "nnstretch: --out is empty, command line, needed is a path\n"
    )


def test_every_verb_of_numbers_is_seen() -> None:
    assert {"run", "search", "profile", "study", "partition", "bench"} <= {v for v, _ in OPTIONS}
    assert ("run", "--deadline-ms") in OPTIONS
    assert ("search", "--alpha") in OPTIONS
    assert ("profile", "--budget-s") in OPTIONS


@pytest.mark.parametrize(("verb", "option"), OPTIONS)
def test_a_number_that_nobody_can_mean_is_refused_by_its_option(
    verb: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("nan", "inf", "1e400", "1_0", "0x10", "1:30", "٣", "1" + "0" * 5000):
        assert status_of([*verb.split(), "x", f"{option}={text}"]) in (1, 2)
        said = capsys.readouterr().err.splitlines()[-1]
        assert option in said
        assert "soc" not in said
        assert len(said) < 400


@pytest.mark.parametrize("verb", [verb for verb, option in OPTIONS if option == "--seed"])
def test_a_seed_below_zero_is_refused_in_one_line(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of([*verb.split(), "x", "--seed=-1"]) == 1
    assert capsys.readouterr().err == "nnstretch: --seed is -1, command line, needed is 0 or more\n"


def status_of(words: list[str]) -> int:
    """Return the exit status of a command."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("text", NO_WHOLE)
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(
        (argparse.ArgumentTypeError, BadInput), match=r"no whole number in plain decimals|digits"
    ):
        whole_number(text)


@pytest.mark.parametrize("text", NO_NUMBER)
def test_what_is_no_finite_number(text: str) -> None:
    with pytest.raises((argparse.ArgumentTypeError, BadInput), match=r"is no number|a finite"):
        finite_number(text)
    with pytest.raises(BadInput, match="--min-macs is "):
        quantity(text, 100.0, "--min-macs", 0.0)
    with pytest.raises(BadInput, match="--min-macs is "):
        quantity(f"{text}x", 100.0, "--min-macs", 0.0)


def test_numbers_as_people_write_them() -> None:
    assert [whole_number(text) for text in ("0", "-3", "+7", "012")] == [0, -3, 7, 12]
    assert [finite_number(text) for text in ("1", "-.5", "1.", "2e3", "1.5e-2")] == [
        *(1.0, -0.5, 1.0, 2000.0, 0.015)
    ]
    assert quantity("0.5x", 100.0, "--min-macs", 0.0) == 50
    assert quantity("1.6e9", 100.0, "--min-macs", 0.0) == 1.6e9
    assert quantity("0", 100.0, "--min-macs", 1.0) == 0


@pytest.mark.parametrize("text", ["0.9", "1", "999"])
def test_a_ratio_without_its_x_is_no_count(text: str) -> None:
    with pytest.raises(BadInput, match=rf"--max-macs is {text}, .*, write {text}x for a share"):
        quantity(text, 1e9, "--max-macs", 0.0)


def test_close_verbs_and_options_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serch", "x"]) == 2
    assert "unknown verb 'serch'" in (said := capsys.readouterr().err)
    assert "; close to it: search" in said
    for words, near in ((["--procesors", "cpu"], "--processors"), (["--beat=1"], "--beta")):
        with pytest.raises(SystemExit) as end:
            main(["search", "x", "--soc", "mi9", *words])
        assert end.value.code == 2
        assert near in capsys.readouterr().err.splitlines()[-1].partition("close to it: ")[2]


@pytest.mark.parametrize(
    "shape", ["-1,3,224,224", "N,3,224,224", "x=1,3,?,?", "batch x 3 x 32 x 32"]
)
def test_a_dynamic_shape_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    words = ["export", "torchvision:resnet18", "--format", "cpp", "--input", shape]
    assert main([*words, "--out", str(tmp_path / "r18")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--input is {shape}, command line" in line
    assert "leaves a size open, no format has dynamic shapes" in line


def test_a_refusal_is_short_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(str(BrokenFile("member " + "x" * 1_000_000 + " ends here"))) < 2100
    assert str(BrokenFile("member " + "x" * 1_000_000 + " ends here")).endswith(" ends here")
    assert str(BrokenFile("short, a.nns, why")) == "short, a.nns, why"
    with pytest.raises(SystemExit):
        main(["search", "x", "--soc", "mi9", "y" * 100_000])
    assert len(capsys.readouterr().err.splitlines()[-1]) < 2200
    assert main(["z" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 400


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 2500])
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["report", "PATH", "--out", "page.html"], "FOLDER is 'xx|FOLDER is 'a/a/"),
        (["simulate", "workload.yaml", "--log", "PATH"], "--log is 'xx|--log is 'a/a/"),
    ],
)
def test_a_path_that_is_too_long_is_refused_by_its_option(
    words: list[str], option: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([path if word == "PATH" else word for word in words]) == 1
    said = capsys.readouterr().err
    assert re.match(f"nnstretch: ({option}).* (4999|5000) letters are too long\n$", said), said


def test_what_the_system_refuses_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(args: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "x" * 5000)

    monkeypatch.setattr("nnstretch.cli.report.main", refuse)
    assert main(["report", "folder", "--out", "page.html"]) == 1
    said = capsys.readouterr().err
    assert said.endswith("x, Input/output error\n")
    assert len(said) < 2100
