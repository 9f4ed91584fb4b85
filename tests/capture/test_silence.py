"""What exporters say is dropped; what other threads say meanwhile is not."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout

import pytest
import torch
from torch import nn

from nnstretch.capture import capture
from nnstretch.capture.host_process import silence_process, silence_python

LOG = logging.getLogger("test_silence")
LOG.propagate = False


def speak(who: str) -> None:
    print(f"{who} printed")
    print(f"{who} complained", file=sys.stderr)
    sys.stdout.writelines([f"{who} listed\n"])
    LOG.error("%s logged", who)
    warnings.warn(f"{who} warned", stacklevel=1)


@contextmanager
def silenced_thread() -> Iterator[None]:
    """Keep a thread silenced, which speaks at the beginning and at the end."""
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with silence_python():
            speak("silenced")
            begun.set()
            end.wait(10)
            speak("silenced")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        end.set()
        thread.join()


@pytest.fixture(autouse=True)
def logged() -> Iterator[io.StringIO]:
    """Return what is logged; check that streams, filters and the handler are as they were."""
    handler = logging.StreamHandler(io.StringIO())
    LOG.addHandler(handler)

    def state() -> list[object]:
        filters = [list(warnings.filters), list(handler.filters)]
        return [sys.stdout, sys.stderr, warnings.showwarning, filters]

    before = state()
    yield handler.stream
    assert state() == before
    LOG.removeHandler(handler)


def test_only_the_thread_that_is_silenced_is_silent(
    capsys: pytest.CaptureFixture[str], logged: io.StringIO
) -> None:
    with warnings.catch_warnings(record=True) as warned, silenced_thread():
        speak("other")
    out, err = capsys.readouterr()
    assert out == "other printed\nother listed\n"
    assert err == "other complained\n"
    assert logged.getvalue() == "other logged\n"
    assert [str(warning.message) for warning in warned] == ["other warned"]


def test_a_silenced_thread_ignores_warnings_that_are_errors_elsewhere() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with silenced_thread(), pytest.raises(UserWarning, match="other warned"):
            speak("other")
        with silence_python(), silence_python():
            speak("silenced")
        with pytest.raises(UserWarning, match="afterwards"):
            warnings.warn("afterwards", stacklevel=1)


def test_what_another_thread_replaces_meanwhile_stays_and_is_heard_afterwards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    theirs = redirect_stdout(io.StringIO())
    with silenced_thread():
        text = theirs.__enter__()
    print("into theirs")
    assert text.getvalue().endswith("into theirs\n")
    theirs.__exit__(None, None, None)  # puts the stream back that the silence had in place
    print("heard")
    assert capsys.readouterr().out == "heard\n"


def test_threads_that_capture_at_once_leave_everything_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Loud(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            speak("network")
            return x + 1

    x = torch.ones(2)
    with ThreadPoolExecutor(4) as pool:
        graphs = [pool.submit(capture, Loud(), x) for _ in range(8)]
        for _ in range(50):
            print("main")
        assert len({str(graph.result()) for graph in graphs}) == 1
    assert capsys.readouterr() == ("main\n" * 50, "")


def test_a_silenced_process_has_its_terminal_again_whoever_was_first(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(_: int) -> None:
        with silence_process():
            os.write(1, b"lost")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    os.write(1, b"heard")
    assert capfd.readouterr().out == "heard"
