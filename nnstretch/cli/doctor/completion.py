"""Completion of verbs, options and choices in a shell, as a script that the shell reads once."""

from __future__ import annotations

import argparse

from nnstretch.cli import parser_of
from nnstretch.cli.doctor.extras import install_command
from nnstretch.cli.verbs import BY_NAME, VERB_NAMES
from nnstretch.errors import BadInput, UnknownName

OPTION = "--print-completion"


def completion_script(shell: str) -> str:
    """Return a shell's script. Raises UnknownName for another shell, BadInput without shtab."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise BadInput(
            f"shtab is not installed, {OPTION}, {install_command('completion')}"
        ) from None
    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise UnknownName(f"unknown shell {shell[:40]!r}, {OPTION}, it is one of {known}")
    return str(shtab.complete(whole_parser(), shell))


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser of all verbs, with the options of each."""
    parser = argparse.ArgumentParser(prog="nnstretch")
    parser.add_argument("--version", action="store_true", help="print the version")
    verbs = parser.add_subparsers(dest="verb")
    for verb in VERB_NAMES:
        summary = BY_NAME[verb].summary
        verbs.add_parser(verb, parents=[parser_of(verb)], add_help=False, help=summary)
    return parser
