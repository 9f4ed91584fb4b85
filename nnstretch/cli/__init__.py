"""`nnstretch VERB ... [--json]`: one file per verb in this folder; this one is what they share.

A verb is a row of verbs.py and a module with `arguments(parser)`, `main(args) -> dict` (the JSON
object of the contract) and `show(result, console)` (the same for people). Exit status: 0 done,
1 refused with one line, 2 wrong usage, 130 interrupted; a result that says it was `interrupted` is
what there is so far, one that says it is not `usable` ends in 1, and so does one that lists what
is `not_written`, line by line on standard error, unless it was interrupted.

Verbs, in the order of the story: inspect.py, import_.py, profile.py, predict/, search/, study/,
train/, quantize.py, export/, partition/, run/, accelerate/, bench/, schedule/, simulate/,
serve/, report.py, doctor/. They share:

verbs.py         the table of verbs
arguments.py     the parser; MODEL, SOC, shapes, quantities
profile_check.py what `profile --check` tells
loaded_model.py  the network and chip that the arguments name
output_path.py   checks of paths before any long work
progress.py      progress bars
console.py       the terminal
out_of_memory.py what a verb says that memory does not suffice for
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from nnstretch.cli.arguments import VerbParser
from nnstretch.cli.verbs import BY_NAME, VERB_NAMES, VERBS
from nnstretch.errors import BadInput, NnstretchError, NoPlan, closest, one_line, shorten_message


def verb_module(verb: str) -> ModuleType:
    """Import the module of a verb."""
    return import_module(f"nnstretch.cli.{BY_NAME[verb].module}")


def verb_of(argv: list[str]) -> tuple[str, list[str]]:
    """Return the verb, one word or two, and the arguments behind it."""
    if len(argv) > 1 and " ".join(argv[:2]) in BY_NAME:
        return " ".join(argv[:2]), argv[2:]
    return argv[0], argv[1:]


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb."""
    module = verb_module(verb)
    parser = VerbParser(
        prog=f"nnstretch {verb}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print exactly one JSON object on standard output"
    )
    return parser


def overview() -> str:
    """Return the help text that lists the verbs."""
    lines = [f"  {verb.name:<14} {verb.summary}" for verb in VERBS]
    return (
        "usage: nnstretch VERB ... [--json]\n\n"
        + "\n".join(lines)
        + "\n\n`nnstretch VERB --help` teaches each one. `nnstretch --print-completion bash` or"
        " `zsh` prints\na script that completes verbs, options and files."
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"] and len(argv) > 1:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        return print_text(overview) or (0 if argv else 2)
    if argv[0] == "--version":
        from nnstretch import __version__

        return print_text(lambda: f"nnstretch {__version__}")
    if argv[0] == "--print-completion":
        from nnstretch.cli.doctor.completion import completion_script

        return print_text(lambda: completion_script(argv[1] if argv[1:] else "bash"))
    if argv[0] not in VERB_NAMES:
        near = closest(argv[0][:40], list(VERB_NAMES))
        known = f"it is one of {', '.join(VERB_NAMES)}"
        print(f"nnstretch: unknown verb {argv[0][:40]!r}, {known}{near}", file=sys.stderr)
        return 2
    return run_verb(*verb_of(argv))


def print_text(text: Callable[[], str]) -> int:
    """Print what a function returns; return the exit code, 1 where it refuses or nobody reads."""
    try:
        write_out(lambda: print(text()))
    except NnstretchError as error:
        print(f"nnstretch: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def run_verb(verb: str, argv: list[str]) -> int:
    """Run a verb and print its result; return the exit code.

    0, 1 for an error, 130 when interrupted.
    """
    try:
        module, args = verb_module(verb), parser_of(verb).parse_args(argv)
        result = module.main(args)
        tell(module, result, args.json)
    except NnstretchError as error:
        print(f"nnstretch: {one_line(error)}", file=sys.stderr)
        return 130 if isinstance(error, NoPlan) and error.interrupted else 1
    except ModuleNotFoundError as error:
        from nnstretch.cli.doctor.extras import refusal_of

        refusal = refusal_of(error, verb)
        if refusal is None:
            raise
        print(f"nnstretch: {one_line(refusal)}", file=sys.stderr)
        return 1
    except OSError as error:
        # What the machine refuses; without a number it is a bug and is shown whole.
        if error.errno is None:
            raise
        stopped = f"{verb} stopped, {error.filename or 'the system'}, {error.strerror}"
        print(f"nnstretch: {shorten_message(one_line(stopped))}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        from nnstretch.cli.out_of_memory import out_of_memory

        said = out_of_memory(error, verb)
        if said is None:
            raise
        print(f"nnstretch: {said}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(
            f"nnstretch: {', '.join(('interrupted', *map(str, interrupt.args)))}", file=sys.stderr
        )
        return 130
    return exit_code(result)


def exit_code(result: dict[str, Any]) -> int:
    """Return the exit code of a result that has been printed, and say what is missing beside it."""
    not_written: list[str] = result.get("not_written", [])
    for why in not_written:
        print(f"nnstretch: {one_line(why)}", file=sys.stderr)
    if result.get("usable") is False:
        return 1
    if result.get("interrupted") is True:
        return 130
    return 1 if not_written else 0


def tell(module: ModuleType, result: dict[str, Any], as_json: bool) -> None:
    """Print the result on standard output, as JSON or for people.

    Raises BadInput where nobody reads it or it has no room.
    """

    def write() -> None:
        if as_json:
            print(json.dumps(result, allow_nan=False))
        else:
            from nnstretch.cli.console import Terminal

            module.show(result, Terminal())

    write_out(write)


def write_out(write: Callable[[], None]) -> None:
    """Call a function that prints on standard output, to the last byte.

    Raises BadInput where nobody reads it or it has no room.
    """
    if sys.stdout is None:
        raise BadInput("cannot write the result, standard output, it is closed")
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is not tried again at exit
        raise BadInput(
            f"cannot write the result, standard output, {error.strerror or error}"
        ) from error
