"""What can be wrong, and whose doing it is.

NnstretchError
├── BrokenGraph        a graph that contradicts itself (our doing, or a broken model file)
├── CannotCapture      a network whose work is not one fixed graph of tensors
├── UnsupportedOp      an operator that a step has no rule for; never silently zero
├── BadPlan            a plan that does not fit its network or its hardware
├── UnknownName        a model, cut, processor, SoC or file that is not there
├── BrokenFile         a file that is truncated, changed or not of its kind
├── BadInput           a tensor or setting of the wrong shape, type or range
│   └── Diverged       a training whose loss or weights are not finite any more
├── NoPlan             constraints that no plan satisfies
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


class NnstretchError(Exception):
    """The tool refuses; the message names the culprit."""


def one_line(what: object) -> str:
    """Text for a terminal: white space as single blanks, control characters (of a file's name, say)
    spelt out.
    """
    text = " ".join(str(what).split())
    return "".join(
        (
            letter
            if letter.isprintable()
            else letter.encode("unicode_escape", "backslashreplace").decode()
        )
        for letter in text
    )


def closest(name: str, names: list[str]) -> str:
    """The tail of a refusal: which of `names` look like `name`; empty where none does."""
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=3)
    return f"; close to it: {', '.join(near)}" if near else ""


class BrokenGraph(NnstretchError):
    pass


class CannotCapture(NnstretchError):
    pass


class UnsupportedOp(NnstretchError):
    pass


class BadPlan(NnstretchError):
    pass


class UnknownName(NnstretchError):
    pass


class BrokenFile(NnstretchError):
    pass


class BadInput(NnstretchError):
    pass


class Diverged(BadInput):
    pass


class NoPlan(NnstretchError):
    pass


class Mismatch(NnstretchError):
    pass


class Stuck(NnstretchError):
    pass


class StageFailed(NnstretchError):
    def __init__(self, message: str, stage: str = "", item: int = -1) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


class ProcessorFailed(NnstretchError):
    pass


class DeadlineMissed(NnstretchError):
    pass


class Cancelled(NnstretchError):
    pass
