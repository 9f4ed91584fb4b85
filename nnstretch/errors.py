"""Every error that the toolkit raises, and its cause.

NnstretchError
├── BrokenGraph        a graph that contradicts itself (our doing, or a broken model file)
├── CannotCapture      a network whose work is not one fixed graph of tensors
├── UnsupportedOp      an operator that a step has no rule for; never silently zero
├── BadPlan            a plan that does not fit its network or its hardware
├── UnknownName        a model, cut, processor, SoC or file that is not there
├── BrokenFile         a file that is truncated, changed or not of its kind
├── BadInput           a tensor or setting of the wrong shape, type or range
│   └── Diverged       a training whose loss or weights are not finite any more
├── NoPlan             constraints that no plan satisfies, or a search that ended before one did
├── Mismatch           exported numbers that differ from the module's
├── Stuck              a schedule in which nothing can move any more
├── StageFailed        an item of a pipeline on which a stage raised; the stage's own error is its
                       cause
├── ProcessorFailed    a processor that stopped answering and could not be replaced
├── DeadlineMissed     a request whose time was over before its answer was there
└── Cancelled          a request that was taken back, or was still open when the service ended

Every message is one line that reads WHAT, WHERE, WHY and carries its numbers: the command
line prints it behind `nnstretch: ` and exits with status 1.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MESSAGE = 2000
"""Characters of a refusal; names in forged files may have millions."""


class NnstretchError(Exception):
    """The tool refuses; one line names the culprit, and its middle is left out if it is long."""

    def __init__(self, message: object = "") -> None:
        text = shorten_message(str(message))
        super().__init__(text if text.isprintable() else shorten_message(one_line(text)))


def shorten_message(text: str) -> str:
    """Return a text without its middle where it is longer than any refusal."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    end = LONGEST_MESSAGE // 3
    cut = len(text) - 2 * end
    return f"{text[:end]}... {cut} characters ...{text[-end:]}"


def one_line(what: object) -> str:
    """Return text on one line: single blanks, and control characters escaped."""
    text = " ".join(str(what).split())
    return "".join(map(escape_control, text))


def escape_control(letter: str) -> str:
    """Return a printable letter as it is, a control character as its escape sequence."""
    if letter.isprintable():
        return letter
    return letter.encode("unicode_escape", "backslashreplace").decode()


LONGEST_REASON = 300
"""Letters of an error's own message that a message of ours repeats."""


def describe_error(error: BaseException) -> str:
    """Return an error's class and message on one line, whatever its `str` does or however long."""
    kind = type(error).__name__[:LONGEST_REASON]
    try:
        text = one_line(error)[:LONGEST_REASON]
    except BaseException as broken:  # its own doing, as is the error itself
        text = f"its message cannot be read, {type(broken).__name__[:LONGEST_REASON]}"
    return f"{kind}: {text}" if text else kind


def closest(name: str, names: list[str]) -> str:
    """Return the end of a refusal that lists the names most like `name`; empty without any."""
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=3)
    return f"; close to it: {', '.join(near)}" if near else ""


def name_first(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


class BrokenGraph(NnstretchError):
    """Graph that contradicts itself."""


class CannotCapture(NnstretchError):
    """Network that cannot be captured as a graph."""


class UnsupportedOp(NnstretchError):
    """Operator that a step has no rule for."""


class BadPlan(NnstretchError):
    """Plan that contradicts itself or its network."""


class UnknownName(NnstretchError):
    """Name of a file, model, chip or setting that does not exist."""


class BrokenFile(NnstretchError):
    """File that is damaged, forged or of another format."""


class BadInput(NnstretchError):
    """Argument or setting that makes no sense."""


class Diverged(BadInput):
    """Training whose loss or weights are no longer finite."""


class NoPlan(NnstretchError):
    """Search or study without any plan that keeps its limits, or that ended before it met one."""

    def __init__(
        self, message: object = "", interrupted: bool = False, out_of_time: bool = False
    ) -> None:
        """Keep what ended the search.

        `interrupted` says that an interrupt did; `out_of_time`, that its time was over before it
        knew whether there is a plan.
        """
        super().__init__(message)
        self.interrupted, self.out_of_time = interrupted, out_of_time


class Mismatch(NnstretchError):
    """Two results that should be equal and are not."""


class Stuck(NnstretchError):
    """Scheduler, session or server that cannot go on."""


class StageFailed(NnstretchError):
    """Error of a pipeline's stage, with the stage and the item."""

    def __init__(self, message: str, stage: str = "", item: int = -1) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


def contained(error: BaseException, where: str) -> Exception:
    """Return an error as it is; one that would end its receiver's thread or loop as StageFailed."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failed = StageFailed(f"{where}, {describe_error(error)}")
    failed.__cause__ = error
    return failed


class ProcessorFailed(NnstretchError):
    """Processor that was lost while it computed."""


class DeadlineMissed(NnstretchError):
    """Request that was not answered by its deadline."""


class Cancelled(NnstretchError):
    """Request or item that its owner cancelled."""
