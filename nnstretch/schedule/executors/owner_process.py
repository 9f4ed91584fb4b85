"""The process that has the threads: a fork of it has none, and would wait for ever."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from nnstretch.errors import Stuck


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """The process in which something that has threads was made."""

    what: str
    """The thing, for messages."""
    number: int = field(default_factory=os.getpid)

    def is_current(self) -> bool:
        """Return whether this is that process."""
        return os.getpid() == self.number

    def check(self) -> None:
        """Raise Stuck in any other process."""
        if not self.is_current():
            raise Stuck(
                f"process {os.getpid()} has no threads, {self.what}, a fork has no threads: make"
                " one of its own there"
            )
