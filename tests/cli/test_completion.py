"""The shell completes verbs, options, choices and files from the script that the tool prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.cli import main
from nnstretch.cli.doctor.completion import completion_script
from nnstretch.cli.verbs import VERB_NAMES

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash in a folder with a workload and a folder."""
    pytest.importorskip("shtab")
    if BASH is None:
        pytest.skip("no bash here")
    folder = tmp_path_factory.mktemp("completion")
    (folder / "workload.yaml").touch()
    (folder / "wide").mkdir()
    script: Path = folder / "completion.sh"
    script.write_text(completion_script("bash"))
    return script


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words in the folder of the script."""
    program = (
        f"cd {script.parent}; source {script}; COMP_WORDS=(nnstretch {' '.join(map(repr, words))});"
        f" COMP_CWORD={len(words)}; _shtab_nnstretch; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    assert BASH is not None
    done = subprocess.run([BASH, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_verbs_options_and_choices(bash_script: Path) -> None:
    assert completed(bash_script, "") >= set(VERB_NAMES)
    assert completed(bash_script, "sea") == {"search"}
    assert completed(bash_script, "run", "--mod") == {"--mode"}
    assert "pipeline" in completed(bash_script, "run", "--mode", "")
    assert completed(bash_script, "export", "--format", "o") == {"onnx"}


def test_bash_completes_files_and_folders(bash_script: Path) -> None:
    assert completed(bash_script, "predict", "w") == {"workload.yaml", "wide"}
    assert completed(bash_script, "serve", "workload.yaml", "wo") == {"workload.yaml"}
    assert completed(bash_script, "search", "net.onnx", "--soc", "wi") == {"wide"}
    assert completed(bash_script, "study", "net.onnx", "--out", "wi") == {"wide"}
    assert completed(bash_script, "export", "--format", "w") == set()


def test_bash_completes_verbs_of_two_words(bash_script: Path) -> None:
    assert completed(bash_script, "simulate", "m") == {"measure"}
    assert completed(bash_script, "study", "c") == {"capacity", "completion.sh"}
    sweep = completed(bash_script, "simulate", "sweep", "--")
    assert {"--out", "--workers"} <= sweep
    assert "--policy" not in sweep
    assert completed(bash_script, "simulate", "sweep", "wo") == {"workload.yaml"}
    assert completed(bash_script, "study", "capacity", "net.onnx", "--to") == {"--tolerance"}


def test_what_a_verb_of_one_word_takes_is_completed_where_it_has_others(bash_script: Path) -> None:
    assert completed(bash_script, "simulate", "wo") == {"workload.yaml"}
    assert completed(bash_script, "simulate", "workload.yaml", "m") == set()
    assert completed(bash_script, "simulate", "workload.yaml", "--pol") == {"--policy"}
    assert completed(bash_script, "simulate", "--trace", "wo") == {"workload.yaml"}


def test_zsh_is_told_of_files_and_verbs_of_two_words() -> None:
    pytest.importorskip("shtab")
    lines = completion_script("zsh").splitlines()
    assert any("--soc[" in line and line.endswith(':_files"') for line in lines)
    assert "  if (( CURRENT > 2 )) && [[ $words[2] == (measure|sweep) ]]; then" in lines
    assert "  if (( CURRENT > 2 )) && [[ $words[2] == (capacity) ]]; then" in lines


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["--print-completion", "fish-like"]) == 1
    assert "unknown shell 'fish-like', --print-completion, it is" in capsys.readouterr().err
    assert main(["--print-completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef nnstretch")


def test_without_shtab_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 1
    said = capsys.readouterr().err
    assert said.endswith("--print-completion, pip install 'nnstretch[completion]'\n")
