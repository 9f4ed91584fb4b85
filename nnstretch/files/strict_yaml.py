"""YAML that a stranger may have written, read as plain data.

Keys twice are refused, not overridden in silence, and so is 1:30, which YAML 1.1 takes for 90.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from nnstretch.errors import BrokenFile, one_line


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without two traps: equal keys, and 1:30 or 010 as whole numbers."""

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
        """Construct a number. Raises ConstructorError for one to the base 60 or 8."""
        text = str(node.value)
        if ":" in text or re.fullmatch(r"[-+]?0[0-9_]+", text):
            raise yaml.constructor.ConstructorError(
                None, None, f"{text[:60]} is a number to the base 60 or 8", node.start_mark
            )
        if node.tag == "tag:yaml.org,2002:int":
            return int(self.construct_yaml_int(node))
        return float(self.construct_yaml_float(node))


for tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    StrictLoader.add_constructor(tag, StrictLoader.construct_number)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML without duplicate keys. Raises BrokenFile that names `where` and the line."""
    try:
        return yaml.load(text, Loader=StrictLoader)
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
