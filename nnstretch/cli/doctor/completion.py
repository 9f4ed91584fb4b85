"""Completion of verbs, options, choices and files, as a script that a shell reads once."""

from __future__ import annotations

import argparse

from nnstretch.cli import parser_of
from nnstretch.cli.doctor.extras import install_command
from nnstretch.cli.verbs import BY_NAME, VERB_NAMES
from nnstretch.errors import BadInput, UnknownName

OPTION = "--print-completion"
PREFIX = "nnstretch"
BESIDE_PARTS = {
    "bash": "{function}_pos_0_COMPGEN=_shtab_compgen_files",
    "zsh": """\
functions[{function}_part]=$functions[{function}]
{function}_alone=(${function}_options ': :{function}_first')
{function}_first() {{ {function}_commands; _files }}
{function}() {{
  if (( CURRENT > 2 )) && [[ $words[2] == ({parts}) ]]; then
    {function}_part
  else
    _arguments -C -s ${function}_alone
  fi
}}""",
}
"""By shell, what its script says of a verb with parts: shtab knows either files or words in one
place, and in zsh no options behind a file there.
"""


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
    preamble = "\n".join(beside_parts(shell, verb) for verb in VERB_NAMES)
    return str(shtab.complete(whole_parser(), shell, root_prefix=PREFIX, preamble=preamble))


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser of all verbs and their parts, with the options of each."""
    parser = argparse.ArgumentParser(prog=PREFIX)
    parser.add_argument("--version", action="store_true", help="print the version")
    verbs = parser.add_subparsers(dest="verb")
    for verb in VERB_NAMES:
        parents = [completing_parser(verb)]
        if parts_of(verb):
            for action in parents[0]._get_positional_actions():
                action.help = argparse.SUPPRESS  # their place is that of the part, see BESIDE_PARTS
            parents.insert(0, parser_of_parts(verb))
        verbs.add_parser(verb, parents=parents, add_help=False, help=BY_NAME[verb].summary)
    return parser


def parser_of_parts(verb: str) -> argparse.ArgumentParser:
    """Return a parser whose only argument is a part of a verb, with the options of each."""
    parser = argparse.ArgumentParser(add_help=False)
    parts = parser.add_subparsers(dest="part")
    parts.nargs = None  # one word: what follows a file in its place is no part
    for part in parts_of(verb):
        name = f"{verb} {part}"
        parents = [completing_parser(name)]
        parts.add_parser(part, parents=parents, add_help=False, help=BY_NAME[name].summary)
    return parser


def completing_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb, whose values are completed as names of files unless they are
    among a few choices.

    Most of them are files or folders, and nothing is known to complete the others.
    """
    import shtab

    parser = parser_of(verb)
    for action in parser._actions:
        if action.nargs != 0 and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def parts_of(verb: str) -> list[str]:
    """Return the second words of the verbs of two words that begin with this one."""
    return [name.split()[1] for name in BY_NAME if name.startswith(f"{verb} ")]


def beside_parts(shell: str, verb: str) -> str:
    """Return lines of a script by which a file may stand where a part of the verb does."""
    parts, lines = parts_of(verb), BESIDE_PARTS.get(shell, "")
    function = f"_shtab_{PREFIX}_{verb}"
    return lines.format(function=function, parts="|".join(parts)) if parts else ""
