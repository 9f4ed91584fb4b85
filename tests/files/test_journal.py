"""Journals: what was appended is read back, whatever a kill cut off, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.journal import append_rows, decode_row, read_journal, resume_journal
from nnstretch.files.limits import Range


@dataclass(frozen=True, slots=True)
class Reading:
    time_us: Annotated[float, Range(0)]


def test_a_journal_cut_off_at_any_byte_goes_on_with_its_whole_lines(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    rows = [{"time_us": 1.5}, {"name": "é\n"}, {}]
    append_rows(whole, rows[:1])
    append_rows(whole, rows[1:])
    data = whole.read_bytes()
    for end in range(len(data) + 1):
        path = tmp_path / "torn.jsonl"
        path.write_bytes(data[:end])
        count = data[:end].count(b"\n")
        assert read_journal(path) == rows[:count]
        assert path.read_bytes() == data[:end], "a reader writes nothing"
        assert resume_journal(path) == rows[:count]
        append_rows(path, [{"next": 1}])
        assert read_journal(path) == [*rows[:count], {"next": 1}]


def test_no_file_is_an_empty_journal(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none.jsonl") == []
    assert resume_journal(tmp_path / "none.jsonl") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 9999])
def test_a_whole_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "j.jsonl").write_text('{"format": 1}\n' + line + "\n")
    with pytest.raises(BrokenFile, match=r"j\.jsonl line 2") as refusal:
        read_journal(tmp_path / "j.jsonl")
    assert "\n" not in str(refusal.value)


def test_a_line_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_bytes(b'{"a": "\xc3\xa9"}\n{"a": "\xff"}\n')
    with pytest.raises(BrokenFile, match=r"j\.jsonl line 2, 'utf-8' codec can't decode"):
        read_journal(tmp_path / "j.jsonl")


def test_a_row_of_another_form_is_named_with_its_path(tmp_path: Path) -> None:
    assert decode_row(Reading, {"time_us": 2}, tmp_path, 3) == Reading(2.0)
    with pytest.raises(BrokenFile, match=r"line 3, row\.time_us, -1\.0 is out of range"):
        decode_row(Reading, {"time_us": -1}, tmp_path, 3)


def test_a_journal_that_cannot_be_written_keeps_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="what was written before is kept"):
        append_rows(tmp_path / "missing" / "j.jsonl", [{}])
