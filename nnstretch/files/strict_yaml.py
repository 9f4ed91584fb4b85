"""YAML that a stranger may have written, read as plain data.

Keys twice are refused, not overridden in silence, and so are numbers that are not written in plain
decimals: YAML 1.1 takes 1:30 for 90 and 010 for 8. A key that is left blank, or null, is BLANK,
which no type admits (files/decode.py). What aliases repeat is bounded: a short text could otherwise
stand for billions of values.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

import yaml

from nnstretch.errors import BrokenFile, one_line
from nnstretch.files.limits import BLANK, Blank

MOST_REPEATED = 100_000
"""Values that all aliases of a text stand for."""
MOST_DIGITS = 4000
"""Python converts no more than 4,300."""
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
"""A number that YAML 1.2 knows and YAML 1.1 takes for text: 5e-4."""
FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", re.I)
INT_TAG, FLOAT_TAG, NULL_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "null"))


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without three traps: equal keys, 1:30 or 010 as whole numbers, and
    aliases of aliases.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[yaml.Node, int] = {}
        """Values within each node that is complete, with those that its aliases stand for."""
        self._repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a value. Raises ComposerError when aliases stand for too many, or for
        themselves.
        """
        is_alias = self.check_event(yaml.AliasEvent)
        mark: Any = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if is_alias and node is not None:
            self._repeat(node, mark)
        elif node is not None:
            self._sizes[node] = 1 + sum(self._sizes.get(part, 1) for part in parts_of(node))
        return node

    def _repeat(self, node: yaml.Node, mark: Any) -> None:
        """Count what an alias stands for. Raises ComposerError when it is too much."""
        self._repeated += self._sizes.get(node, 0)
        why = ""
        if node not in self._sizes:
            why = "an alias lies within what it stands for"
        elif self._repeated > MOST_REPEATED:
            why = f"aliases stand for {self._repeated} values or more, at most {MOST_REPEATED} may"
        if why:
            raise yaml.composer.ComposerError(None, None, why, mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping. Raises ConstructorError when a key is there twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {str(key.value)[:60]} is there twice", key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Construct a number. Raises ConstructorError for one that is not in plain decimals."""
        text = str(node.value)
        plain = DECIMAL if node.tag == INT_TAG else FLOAT
        if not plain.fullmatch(text):
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{text[:60]} is a number to the base 60 or 8, or not in plain decimals",
                node.start_mark,
            )
        if len(text) > MOST_DIGITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of {len(text)} digits", node.start_mark
            )
        if node.tag == INT_TAG:
            return int(text)
        return float(self.construct_yaml_float(node))

    def construct_blank(self, node: yaml.ScalarNode) -> Blank:
        """Construct the mark of an absent value."""
        return BLANK


def parts_of(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield the values within a value."""
    if isinstance(node, yaml.MappingNode):
        yield from chain.from_iterable(node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


for tag in (INT_TAG, FLOAT_TAG):
    StrictLoader.add_constructor(tag, StrictLoader.construct_number)
StrictLoader.add_constructor(NULL_TAG, StrictLoader.construct_blank)


class StrictDumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes texts that StrictLoader would take for numbers."""


for end in (StrictLoader, StrictDumper):
    end.add_implicit_resolver(FLOAT_TAG, EXPONENT, list("-+0123456789"))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML without duplicate keys; an empty text is None.

    Raises BrokenFile that names `where` and the line.
    """
    try:
        value = yaml.load(text, Loader=StrictLoader)
        return None if value is BLANK else value
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else "somewhere"
        raise BrokenFile(
            f"{where} is no YAML, {line},"
            f" {one_line(getattr(error, 'problem', None) or error)[:200]}"
        ) from error
    except RecursionError as error:
        raise BrokenFile(
            f"{where} is no YAML to read, somewhere, it is nested too deeply"
        ) from error
    # YAML's own dates and numbers may be none: 2001-99-99.
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        raise BrokenFile(
            f"{where} holds a value that YAML cannot read, somewhere, {one_line(error)[:200]}"
        ) from error


def dump_yaml(data: Mapping[str, Any], one_line_lists: bool = True) -> str:
    """Return YAML that `parse_yaml` reads back; short mappings and lists are on one line."""
    style = None if one_line_lists else False
    text = yaml.dump(
        dict(data),
        Dumper=StrictDumper,
        sort_keys=False,
        default_flow_style=style,
        width=150,
        allow_unicode=True,
    )
    return str(text)
