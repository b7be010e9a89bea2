"""Take a task spec apart: NAME[:SIZE][:key=value,...], as in `vt:4096:hops=8`, `xquad:documents=own`, `longeval:200`.

SIZE may itself hold colons (a path), since only a last part that reads `key=value,...` is taken for options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TypeVar

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Task

Name = TypeVar("Name", bound=str)

_DIGITS = 9
_OPTIONS = re.compile(r"[a-z_]+=[^:=,]+(?:,[a-z_]+=[^:=,]+)*")


class Options:
    """Hold SIZE and the options of one spec; a builder takes what it knows, `finish` refuses the rest."""

    def __init__(self, spec: str) -> None:
        """Take `spec` apart; raises UsageError (2) for an option given twice."""
        self.spec = spec
        self.name, _, rest = spec.partition(":")
        head, _, last = rest.rpartition(":")
        self._size, listed = (head, last.split(",")) if _OPTIONS.fullmatch(last) else (rest, [])
        pairs = [item.partition("=")[::2] for item in listed]
        self._left = dict(pairs)
        self._known = ["SIZE"] if self._size else []
        if len(self._left) < len(pairs):
            raise UsageError(f"{spec}: an option is given twice", f"pass {self.name}:SIZE:key=value,...")

    def size(self) -> str:
        """Return SIZE as it was written; "" where there is none."""
        size, self._size = self._size, ""
        return size

    def whole_size(self, example: int, low: int = 1) -> int:
        """Return SIZE as a whole number of at least `low`; raises UsageError (2) naming `example` as a good one."""
        size = self.size()
        hint = f"pass for example {self.name}:{example}"
        if not size.isascii() or not size.isdecimal() or len(size) > _DIGITS:
            raise UsageError(f"{self.spec}: {self.name} needs a size, a whole number", hint)
        if int(size) < low:
            raise UsageError(f"{self.spec}: the size is at least {low}", hint)
        return int(size)

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """Return an option as a whole number in [low, high]; raises UsageError (2)."""
        text = self._take(key, str(default))
        if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS or not low <= int(text) <= high:
            hint = f"pass for example {key}={default}"
            raise UsageError(f"{self.spec}: {key} is a whole number from {low} to {high}", hint)
        return int(text)

    def choice(self, key: str, allowed: Collection[Name]) -> Name:
        """Return an option out of `allowed`, whose first is the default; raises UsageError (2)."""
        first = next(iter(allowed))
        text = self._take(key, first)
        for name in allowed:
            if name == text:
                return name
        raise UsageError(f"{self.spec}: {key} is one of {', '.join(allowed)}", f"pass for example {key}={first}")

    def finish(self) -> None:
        """Refuse what no builder took; raises UsageError (2) naming the options that there are."""
        if self._size:
            raise UsageError(f"{self.spec}: {self.name} takes no size", f"pass {self.name}")
        if self._left:
            there = f"options of {self.name}: {', '.join(self._known)}" if self._known else f"pass {self.name} alone"
            raise UsageError(f"{self.spec}: {self.name} has no option {min(self._left)}", there)

    def _take(self, key: str, default: str) -> str:
        self._known.append(key)
        return self._left.pop(key, default)


Builder = Callable[[Options], Task]
"""Make the task of one name from its size and options; `Options.finish` is called by `make_task`."""
