"""Reading a recipe: YAML, then dotted overrides, then every check."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from nnstretch.errors import BadInput, BrokenFile, UnknownName, closest
from nnstretch.files.checked import checked
from nnstretch.files.decode import decode
from nnstretch.files.limits import BLANK, shorten
from nnstretch.files.package_data import package_data
from nnstretch.files.read import as_path, read_text
from nnstretch.files.strict_yaml import dump_yaml, parse_yaml
from nnstretch.train import recipe as recipe_nouns
from nnstretch.train.recipe import Recipe


def recipe_settings(kind: type = Recipe, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted key and default of every setting."""
    hints = get_type_hints(kind)
    for entry in fields(kind):
        if is_dataclass(hints[entry.name]):
            yield from recipe_settings(hints[entry.name], f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", entry.default


def setting_descriptions() -> dict[str, str]:
    """Return the text below each setting in recipe.py, by dotted key."""
    tree = ast.parse(inspect.getsource(recipe_nouns))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def walk(kind: str, prefix: str) -> Iterator[tuple[str, str]]:
        for entry, text in pairwise(classes[kind].body):
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                name = entry.target.id
                if isinstance(entry.annotation, ast.Name) and entry.annotation.id in classes:
                    yield from walk(entry.annotation.id, f"{prefix}{name}.")
                elif isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    yield f"{prefix}{name}", str(text.value.value)

    return dict(walk("Recipe", ""))


@checked
def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; overrides are `"--trainer.max_epochs", "2"` or `"trainer.max_epochs=2"`.

    Raises UnknownName for no such recipe, BrokenFile for a file that is not YAML, BadInput for a
    key or value.
    """
    path = find_recipe(path_or_name)
    tree = parse_recipe_file(path)
    for group, keys in group_keys_by_prefix().items():
        if group in tree and not isinstance(tree[group], dict):
            raise BadInput(
                f"recipe {path}, key {group} is {shorten(tree[group])}, it must hold"
                f" {', '.join(keys)}"
            )
    refuse_unknown(flatten_keys(tree), f"recipe {path}")
    try:
        return build_recipe(changed_tree(tree, overrides), "an override")
    except BadInput:
        build_recipe(tree, f"recipe {path}")  # where the file alone is refused, it is to blame
        raise


def changed_tree(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a recipe's keys and values with overrides. Raises BadInput for no such key."""
    changed: dict[str, Any] = {}
    for section, value in tree.items():
        changed[section] = dict(value) if isinstance(value, dict) else value
    for key, text in split_overrides(overrides):
        refuse_unknown([key], "an override")
        section, dot, name = key.rpartition(".")
        (changed.setdefault(section, {}) if dot else changed)[name] = parse_override(key, text)
    return changed


def split_overrides(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and texts. Raises BadInput for a word that is neither, or has no value."""
    remaining = iter(words)
    for word in remaining:
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            refuse_unknown([key], "an override")
            text = next(remaining, "")
            if not text or text.startswith("--"):
                raise BadInput(f"an override, {key} has no value, write --{key} VALUE")
        yield key, text


def parse_override(key: str, text: str) -> Any:
    """Return the value that a text stands for: itself where the key holds text, else YAML's."""
    default = dict(recipe_settings())[key]
    if isinstance(default, str):
        return text
    value = parse_yaml(text, f"override {key}")
    return BLANK if value is None else value


def build_recipe(tree: dict[str, Any], where: str) -> Recipe:
    """Build a recipe of keys and values. Raises BadInput when a value does not suit its key."""
    try:
        recipe: Recipe = decode(Recipe, tree, "")
    except ValueError as error:
        raise BadInput(f"{where}, {str(error).removeprefix('.').removeprefix(', ')}") from None
    return recipe


def refuse_unknown(keys: Iterable[str], where: str) -> None:
    """Refuse an unknown key, and name known ones that look alike. Raises BadInput."""
    known = [key for key, _ in recipe_settings()]
    for key in keys:
        if key not in known:
            raise BadInput(f"{where}, no such key {key[:60]}{closest(key, known)}")


def flatten_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys and their values; sections hold no sections."""
    pairs: dict[str, Any] = {}
    for section, value in tree.items():
        if not isinstance(value, Mapping):
            pairs[str(section)] = value
            continue
        for key in value:
            pairs[f"{section}.{key}"] = value[key]
    return pairs


def group_keys_by_prefix() -> dict[str, list[str]]:
    """Return the recipe's keys by section."""
    groups: dict[str, list[str]] = {}
    for key, _ in recipe_settings():
        section, dot, name = key.partition(".")
        if dot:
            groups.setdefault(section, []).append(name)
    return groups


def shipped_recipes() -> list[str]:
    """Return the names of recipes that come with the package."""
    return sorted(path.stem for path in package_data("recipes").glob("*.yaml"))


def find_recipe(path_or_name: str | Path) -> Path:
    """Return the path of a file or shipped recipe. Raises UnknownName when there is none."""
    path = as_path(path_or_name, "recipe")
    if path.suffix not in (".yaml", ".yml"):
        path = package_data("recipes") / f"{path_or_name}.yaml"
    if not path.exists():
        raise UnknownName(
            f"no recipe {path_or_name}, no file {path}, shipped ones are"
            f" {', '.join(shipped_recipes()) or 'none'}"
        )
    return path


def parse_recipe_file(path: Path) -> dict[str, Any]:
    """Read a recipe file. Raises UnknownName, or BrokenFile when it is not YAML of keys."""
    tree = parse_yaml(read_text(path, "recipe"), f"recipe {path}")
    if tree is None:
        raise BrokenFile(f"recipe {path}, it is empty, write {{}} to ask for every default")
    if not isinstance(tree, dict):
        raise BrokenFile(
            f"recipe {path}, a {type(tree).__name__} at its top, it must be keys and values"
        )
    return tree


def recipe_yaml(recipe: Recipe) -> str:
    """Return the whole recipe as YAML, which `load_recipe` reads back to an equal one."""
    return dump_yaml(asdict(recipe), one_line_lists=False)
