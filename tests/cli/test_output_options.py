"""One rule for results, over all verbs as their parsers have them.

What cannot be written is refused before anything is read; a file that is there is replaced, and
only once the new one is complete.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from nnstretch.cli import main, parser_of
from nnstretch.cli.verbs import VERB_NAMES

WRITES = {
    *("--out", "--out-dir", "--output", "--single", "--picture", "--svg", "--trace"),
    *("--report", "--log", "--record"),
}
READS = {
    *("--also", "--check", "--weights", "--input", "--schedule", "--bundle", "--costs", "--replay"),
    "--socket",
}
GIVEN = {"--soc": "mi9", "--accelerator": "stcp920", "--ops": "nosuch.csv"}
"""What verbs cannot do without, beside files that are not there."""
BESIDE = {
    ("search", "--picture"): ["--pareto", "macs"],
    ("export", "--single"): ["--format", "onnx"],
}


def options() -> list[tuple[str, argparse.Action]]:
    """Return the options of every verb that name a file or a folder."""
    named: list[tuple[str, argparse.Action]] = []
    for verb in sorted({*VERB_NAMES}):
        for action in parser_of(verb)._actions:
            word = str(action.metavar)
            if action.option_strings and ("FILE" in word or "FOLDER" in word or ".yaml" in word):
                named.append((verb, action))
    return named


ELSEWHERE = {
    ("simulate measure", "--record"),  # read: a record of `serve`
    ("run", "--output"),  # refused once the names of the outputs are read from the bundle
}
WRITTEN = [
    (verb, action)
    for verb, action in options()
    if action.option_strings[0] in WRITES and (verb, action.option_strings[0]) not in ELSEWHERE
]
READERS = [
    (verb, action)
    for verb, action in WRITTEN
    if not all(argument.option_strings for argument in parser_of(verb)._actions)
]
"""Of them, those of verbs that are told what to read: others would begin their work."""
BOTH = ("verb", "action")


def shown(written: list[tuple[str, argparse.Action]]) -> list[str]:
    """Return the names of tests."""
    return [f"{verb} {action.option_strings[0]}" for verb, action in written]


def command(verb: str, option: str, target: Path, folder: Path) -> list[str]:
    """Return a command line whose inputs are not there and that writes to `target`."""
    words = [*verb.split()]
    for action in parser_of(verb)._actions:
        name = action.option_strings[0] if action.option_strings else ""
        if not name:
            words.append("nosuch.yaml" if "yaml" in str(action.metavar).lower() else "nosuch.onnx")
        elif action.required and name != option:
            words += [name, GIVEN.get(name, str(folder / f"written{ending(action)}"))]
    return [*words, *BESIDE.get((verb, option), []), option, str(target)]


def ending(action: argparse.Action) -> str:
    """Return the ending that an option's file has."""
    return Path(str(action.metavar).partition("|")[0]).suffix


def test_every_option_that_names_a_file_is_known_to_read_or_to_write() -> None:
    assert {action.option_strings[0] for _, action in options()} <= WRITES | READS


@pytest.mark.parametrize(BOTH, WRITTEN, ids=shown(WRITTEN))
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    verb: str,
    action: argparse.Action,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    option, is_folder = action.option_strings[0], str(action.metavar) == "FOLDER"
    target = tmp_path / "absent" / f"result{ending(action)}"
    if is_folder:
        target = tmp_path / "taken"
        target.write_text("older")
    before = sorted(tmp_path.rglob("*"))
    assert main(command(verb, option, target, tmp_path)) == 1
    line = capsys.readouterr().err.strip()
    assert line.startswith("nnstretch: ")
    assert str(target) in line
    assert "\n" not in line
    assert sorted(tmp_path.rglob("*")) == before


MAKES = [(verb, action) for verb, action in WRITTEN if str(action.metavar) == "FOLDER"]


@pytest.mark.parametrize(BOTH, MAKES, ids=shown(MAKES))
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_read(
    verb: str, action: argparse.Action, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("older")
    target = tmp_path / "taken" / "below"
    assert main(command(verb, action.option_strings[0], target, tmp_path)) == 1
    line = capsys.readouterr().err.strip()
    assert line.startswith("nnstretch: cannot write ")
    assert str(target) in line
    assert "\n" not in line


FOLDERS = [
    (verb, parser_of(verb)._option_string_actions["--out"])
    for verb in ("accelerate", "profile", "simulate sweep", "study", "train")
]


@pytest.mark.parametrize("split", ["", "train"])
@pytest.mark.parametrize(BOTH, FOLDERS, ids=shown(FOLDERS))
def test_a_data_set_is_no_folder_of_results(
    verb: str,
    action: argparse.Action,
    split: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("disc", "square"):
        (tmp_path / "photos" / split / name).mkdir(parents=True)
        (tmp_path / "photos" / split / name / "0.jpg").touch()
    (tmp_path / "photos" / "README").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(command(verb, "--out", tmp_path / "photos", tmp_path)) == 1
    assert "photos, command line, it is a data set (" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(BOTH, READERS, ids=shown(READERS))
def test_what_is_there_is_no_reason_to_refuse_and_stays_until_the_new_is_complete(
    verb: str,
    action: argparse.Action,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / f"result{ending(action)}"
    older = target
    if str(action.metavar) == "FOLDER":
        target.mkdir()
        older = target / "notes.txt"
    older.write_text("older")
    words = command(verb, action.option_strings[0], target, tmp_path)
    words += ["--overwrite"] if "--overwrite" in parser_of(verb)._option_string_actions else []
    assert main(words) == 1
    assert "nosuch" in capsys.readouterr().err
    assert older.read_text() == "older"


TWICE = [
    ("search", "--out p.yaml --out-dir p.yaml"),
    ("search", "--top 3 --out plans/plan2.yaml --out-dir plans"),
    ("search", "--pareto macs --picture p.svg --out-dir p.svg"),
    ("accelerate", "--out timeline --trace timeline"),
    ("study", "--out kept --storage kept"),
    ("study", "--out kept --storage kept/study.json"),
]


@pytest.mark.parametrize(("verb", "places"), TWICE, ids=[" ".join(words) for words in TWICE])
def test_two_results_in_one_place_are_refused_before_anything_is_read(
    verb: str,
    places: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans").mkdir()
    words = places.split()
    argv = command(verb, words[0], Path(words[1]), tmp_path)
    assert main([*argv, *words[2:]]) == 1
    assert "is written twice, command line" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["plans"]
