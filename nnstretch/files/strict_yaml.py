"""YAML that a stranger may have written, read as plain data.

A key given twice is refused, not overridden in silence.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from nnstretch.errors import BrokenFile, one_line


class UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which keeps the last of equal keys, but for that."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return construct a mapping; refuse a key that is there twice.

        Raises ConstructorError when a key is there twice.
        """
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {str(key.value)[:60]} is there twice", key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML without duplicate keys. Raises BrokenFile that names `where` and the line."""
    try:
        return yaml.load(text, Loader=UniqueKeyLoader)
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
