"""Commands under `scripts/`: their parsers, their refusals, and verbs in processes of their own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from nnstretch.errors import BadInput, NnstretchError, one_line


def command_parser(description: str | None) -> ArgumentParser:
    """Return a parser whose help shows the module's docstring as it is written."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)


def parser_of_parts(description: str | None, parts: Mapping[str, ModuleType]) -> ArgumentParser:
    """Return the parser of a command with parts; each module has `add_options` and `run(args)`."""
    parser = command_parser(description)
    choices = parser.add_subparsers(metavar="PART", required=True)
    for name, module in parts.items():
        part = choices.add_parser(
            name,
            help=(module.__doc__ or "").partition("\n")[0].replace("%", "%%"),
            description=module.__doc__,
            formatter_class=RawDescriptionHelpFormatter,
        )
        module.add_options(part)
        part.set_defaults(run=module.run)
    return parser


def run_command(run: Callable[[], int]) -> int:
    """Return the exit status of a command: 1 with one line where it refuses, 130 on Ctrl-C."""
    try:
        return run()
    except NnstretchError as refusal:
        print(f"nnstretch: {one_line(refusal)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run_part(parser: ArgumentParser) -> int:
    """Return the exit status of the part that the command line names."""
    args = parser.parse_args()
    return run_command(lambda: int(args.run(args)))


def command_line() -> str:
    """Return the running script's command as a user types it from the repository's root."""
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).resolve().name}", *sys.argv[1:]])


def run_verb(*argv: object) -> dict[str, Any]:
    """Run a verb in a process of its own and return its JSON. Raises BadInput where it refuses."""
    command = [sys.executable, "-m", "nnstretch.cli", *map(str, argv), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"status {ended.returncode}"]
        raise BadInput(lines[-1].removeprefix("nnstretch: "))
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
