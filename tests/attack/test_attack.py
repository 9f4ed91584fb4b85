"""The house's own attack: hostile files and arguments on every verb, and on every public name.

18 seconds of `make check`, always the same cases, so that a change is judged and not its luck;
`make attack` is longer and draws new ones. The seed is printed, and NNSTRETCH_ATTACK_SEED repeats
it. A case is written out with what it broke: an exception that is not the project's own, a
traceback, a hang, a refusal of more than one short line, and threads, files, processes or memory
that stay. A case that makes the process larger is run again: libraries and caches come once, a leak
with every run. 18 seconds and no more, because `make check` has 12 minutes and is close to them.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attack.calls import call, quantizing, sound_calls
from attack.commands import REFUSED, SOUND, command
from attack.hostile import copy_folder, damage
from attack.processes import interrupted, with_closed_streams
from attack.samples import FILES, UNREAD, files_read, make_samples
from attack.seed import SECONDS, SEED
from attack.services import service_case, services
from attack.watch import Finding, resident_bytes, watch, watch_command
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import nnstretch
from nnstretch.cli import main
from nnstretch.cli.verbs import BY_NAME
from nnstretch.errors import NnstretchError

BATCH = 20
MOST_GROWTH_BYTES = 600 << 20
"""Of memory behind the first cases, which import libraries."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    make_samples(folder)
    return folder


Case = tuple[Callable[[], list[str]], str]
"""What is run, which returns its own faults, and a description that repeats it."""


def attack(seconds: float, draw_case: Callable[[st.DataObject], Case]) -> list[Finding]:
    """Run cases for so long; return one finding of each kind and place."""
    until = time.monotonic() + seconds
    findings: dict[tuple[str, str], Finding] = {}
    number, cases = 0, 0

    def run_case(data: st.DataObject) -> None:
        nonlocal cases
        run, described = draw_case(data)
        if time.monotonic() < until:  # behind the draws, which must not depend on time
            cases += 1
            if os.environ.get("NNSTRETCH_ATTACK_TRACE"):
                print(f"{time.monotonic():.1f} {described}", file=sys.__stderr__, flush=True)
            for finding in watch(run, described):
                findings.setdefault((finding.what[:60], finding.where), finding)

    while time.monotonic() < until:
        batch = settings(
            max_examples=BATCH,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )(seed(SEED + number)(given(st.data())(run_case)))
        batch()
        number += 1
    print(f"{cases} cases, seed {SEED}, {len(findings)} findings", file=sys.stderr)
    return list(findings.values())


def report(findings: list[Finding]) -> str:
    """Return findings as text, with what repeats them."""
    head = f"{len(findings)} findings, NNSTRETCH_ATTACK_SEED={SEED} repeats them"
    return "\n\n".join([head, *map(str, findings)])


@pytest.mark.slow
def test_no_command_on_no_file_ends_otherwise_than_it_should(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def draw_case(data: st.DataObject) -> Case:
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        monkeypatch.chdir(folder)
        argv = command(data)
        done = []
        read = files_read(argv)
        if read and data.draw(st.integers(0, 3)):
            name = data.draw(st.sampled_from(read))
            done.append(f"{name}: {damage(data, folder / name)}")
        described = f"nnstretch {' '.join(repr(word)[:200] for word in argv)}   # {'; '.join(done)}"
        kept = tmp_path / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        copy_folder(folder, kept)

        def run() -> list[str]:
            shutil.rmtree(folder)
            copy_folder(kept, folder)
            os.chdir(folder)
            return watch_command(main, argv, folder)

        return run, described

    shutil.copytree(sound, tmp_path / "first")
    monkeypatch.chdir(tmp_path / "first")
    for verb in ("export", "doctor", "serve"):  # their libraries start threads that stay
        watch_command(main, [verb, *SOUND[verb][0]], tmp_path / "first")
    findings = attack(SECONDS / 9, draw_case)
    grown_from = resident_bytes()
    findings += attack(SECONDS * 5 / 9, draw_case)
    grown = resident_bytes() - grown_from
    assert not findings, report(findings)
    assert grown < MOST_GROWTH_BYTES, f"{grown >> 20} MiB more, seed {SEED}"


@pytest.mark.slow
def test_no_odd_argument_of_a_public_function_ends_otherwise_than_it_should(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sound, tmp_path / "case")
    monkeypatch.chdir(tmp_path / "case")
    calls = sound_calls(tmp_path / "case")
    for function, arguments in calls.values():  # imports what there is
        with suppress(NnstretchError):
            function(**arguments)
    shutil.rmtree(tmp_path / "case" / "trained", ignore_errors=True)
    findings = attack(SECONDS * 2 / 9, lambda data: call(data, calls))
    assert not findings, report(findings)


def test_every_public_name_is_attacked(sound: Path) -> None:
    attacked = {*sound_calls(sound), *services(), *quantizing()}
    assert set(nnstretch.__all__) <= attacked


def test_every_verb_and_every_kind_of_file_is_attacked(sound: Path) -> None:
    assert set(SOUND) == set(BY_NAME)
    files = {str(path.relative_to(sound)) for path in sound.rglob("*") if path.is_file()}
    endings = {Path(name).suffix for name in files} - UNREAD
    assert set(FILES) <= files
    assert endings == {Path(name).suffix for name in FILES}
    commands = [list(argv) for commands in SOUND.values() for argv in commands]
    assert {name for argv in commands for name in files_read(argv)} == set(FILES)


@pytest.mark.slow
def test_no_odd_use_of_a_service_ends_otherwise_than_it_should() -> None:
    known = services()
    for service in known.values():  # imports what there is
        with service.make(**service.arguments) as opened:
            service.probe(opened)
    findings = attack(SECONDS / 9, lambda data: service_case(data, known))
    assert not findings, report(findings)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [interrupted, with_closed_streams], ids=["signals", "streams"])
def test_no_process_ends_otherwise_than_it_should(
    draw: Callable[[st.DataObject, Path], Case], sound: Path, tmp_path: Path
) -> None:
    def draw_case(data: st.DataObject) -> Case:
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        return draw(data, folder)

    findings = attack(SECONDS / 9, draw_case)
    assert not findings, report(findings)


@pytest.mark.slow
@pytest.mark.parametrize("verb", sorted(SOUND))
def test_commands_are_sound_before_they_are_made_hostile(
    verb: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, argv in enumerate(SOUND[verb]):
        folder = tmp_path / str(number)
        shutil.copytree(sound, folder)
        monkeypatch.chdir(folder)
        assert watch_command(main, [*verb.split(), *argv], folder) == []
        said = (folder / "stderr").read_text()
        assert verb in REFUSED or "nnstretch: " not in said.replace("nnstretch: no --", "")
