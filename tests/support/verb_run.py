"""`nnstretch run --json`: how it answers, and how it refuses."""

from __future__ import annotations

import json

import pytest

from nnstretch.cli import run_verb


def ran(capsys: pytest.CaptureFixture[str], *argv: object) -> dict:
    status = run_verb("run", [*map(str, argv), "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return json.loads(out)  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert run_verb("run", [*map(str, argv), "--json"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.strip().removeprefix("nnstretch: ")
