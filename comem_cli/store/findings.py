"""What `check` can find, each kind with a stable reason code, and the command that mends it.

Damage makes `check` end with exit code 13. A note is no damage: what a killed writer left, which the next writer
removes, or a file that comem did not put there. The codes are listed in stores/README.md.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

REPAIR, INDEX, VECTORS, INGEST = "repair", "index", "vectors", "ingest"
FORGET, WRITE_AGAIN, NOTHING = "forget", "write again", "nothing"

CODES = {  # code: (is damage, what mends it)
    "catalogue-unreadable": (True, WRITE_AGAIN),
    "catalogue-index": (True, REPAIR),
    "catalogue-meta": (True, WRITE_AGAIN),
    "catalogue-root": (True, WRITE_AGAIN),
    "catalogue-content": (True, INGEST),
    "catalogue-document": (True, INGEST),
    "catalogue-placement": (True, INGEST),
    "catalogue-chunk": (True, INGEST),
    "catalogue-shard": (True, REPAIR),
    "catalogue-ledger": (True, REPAIR),
    "chunk-place": (True, REPAIR),
    "residual-damaged": (True, REPAIR),
    "shard-missing": (True, REPAIR),
    "shard-size": (True, REPAIR),
    "shard-damaged": (True, REPAIR),
    "zarr-metadata": (True, REPAIR),
    "index-missing": (True, INDEX),
    "index-damaged": (True, INDEX),
    "vectors-damaged": (True, VECTORS),
    "index-none": (False, INDEX),
    "index-stale": (False, INDEX),
    "zarr-shape": (False, NOTHING),
    "leftover-file": (False, NOTHING),
    "leftover-shard": (False, NOTHING),
    "leftover-index": (False, NOTHING),
    "leftover-chunks": (False, NOTHING),
    "forget-pending": (False, FORGET),
    "stranger": (False, NOTHING),
}
_MEANT = {
    "zarr-shape": "the next writer sets it",
    "leftover-chunks": "the same ingest or rewrite goes on from them; a finished ingest drops them",
    "stranger": "comem did not put it there; move it away if it is not yours",
}


@dataclass(frozen=True)
class Finding:
    """Say what is wrong with what: a chunk key, a file, a table's row.

    paths: the documents that it touches, as far as the catalogue still tells, as absolute paths.
    """

    code: str
    what: str
    detail: str
    paths: tuple[str, ...] = ()

    @property
    def damage(self) -> bool:
        """Tell damage from a note."""
        return CODES[self.code][0]

    def fix(self, store: Path) -> str:
        """Return the command that mends it, or what becomes of it."""
        name = shlex.quote(str(store))
        way = CODES[self.code][1]
        if way == INGEST:
            sources = shlex.join(sorted(set(self.paths))) or "PATH"
            return f"comem ingest {sources} --store {name}"
        return {
            REPAIR: f"comem check {name} --repair",
            INDEX: f"comem index {name}",
            FORGET: f"comem forget {name}",
            VECTORS: f"comem index {name} --dense MODEL",
            WRITE_AGAIN: f"restore {name} from a copy, or write another one: comem ingest PATH --store DIR",
            NOTHING: _MEANT.get(self.code, "the next writer removes it"),
        }[way]

    def to_json(self, store: Path) -> dict[str, object]:
        """Return every field, with severity and fix."""
        return {
            "code": self.code,
            "severity": "damage" if self.damage else "note",
            "what": self.what,
            "detail": self.detail,
            "paths": list(self.paths),
            "fix": self.fix(store),
        }
