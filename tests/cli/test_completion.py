"""The shell completes verbs, options and choices from the script that the tool prints."""

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


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    program = (
        f"source {script}; COMP_WORDS=(nnstretch {' '.join(map(repr, words))});"
        f" COMP_CWORD={len(words)}; _shtab_nnstretch; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    assert BASH is not None
    done = subprocess.run([BASH, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(BASH is None, reason="no bash here")
def test_bash_completes_verbs_options_and_choices(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    script = tmp_path / "completion.sh"
    script.write_text(completion_script("bash"))
    assert completed(script, "") >= set(VERB_NAMES)
    assert completed(script, "sea") == {"search"}
    assert completed(script, "run", "--mod") == {"--mode"}
    assert "pipeline" in completed(script, "run", "--mode", "")
    assert completed(script, "export", "--format", "o") == {"onnx"}


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
