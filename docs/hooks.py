"""Hook of mkdocs: links that lead out of docs/ become paths in the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page whose links outside docs/ are replaced by text and path."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def replaced(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2].partition("#")[0]))
        if match[2].startswith("#") or target.startswith("docs/"):
            return match[0]
        return f"{match[1]} (`{target}`)" if match[1] != target else f"`{target}`"

    return LINK.sub(replaced, markdown)
