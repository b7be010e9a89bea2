"""Compare the files under the given paths with the catalogue: what is new, changed, unchanged or gone.

A file is known by its absolute path, whatever root it was ingested under. It counts as unchanged while size and mtime
are those of the catalogue. A document is gone only where its file lies under the given paths, was not seen, and does
not lie below something that could not be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comem_cli.corpus.walk import Skip, SourceFile, walk
from comem_cli.errors import UsageError
from comem_cli.store.rows import DocumentRow


@dataclass
class Plan:
    """List what an ingest will do.

    changed: files to read, new or changed. known: the catalogue's document of each changed file that has one.
    stored: documents before. yes: the user allows removing most of them. gone: documents whose file is not there.
    """

    changed: list[SourceFile] = field(default_factory=list)
    known: dict[bytes, DocumentRow] = field(default_factory=dict)
    unchanged: int = 0
    skips: list[Skip] = field(default_factory=list)
    stored: int = 0
    yes: bool = False
    gone: list[DocumentRow] = field(default_factory=list)

    def require_consent(self, gone: int) -> None:
        """Raise UsageError (2) where `gone` documents are more than half of the store's, without the user's yes."""
        if not self.yes and gone * 2 > self.stored:
            raise UsageError(
                f"{gone} of the store's {self.stored} documents are gone from these paths and would be removed",
                "run the same command again with --yes if they are meant to go",
            )

    @property
    def bytes_to_read(self) -> int:
        """Sum the sizes of the changed files, in bytes."""
        return sum(source.size for source in self.changed)


def require_sources(paths: Sequence[Path], store: Path) -> None:
    """Refuse paths that give nothing to ingest before a store is made for them; only the first entry is looked for.

    Raises UsageError (2) for a path that is not there, and for paths without any file where `store` does not exist:
    in one that does, an empty folder means that its documents are gone.
    """
    found = walk(paths)
    if not store.is_dir() and next(found, None) is None:
        raise _nothing(paths)


def make_plan(
    paths: Sequence[Path], documents: Iterable[DocumentRow], roots: Mapping[int, str], *, yes: bool = False
) -> Plan:
    """Walk `paths` and compare with the catalogue.

    Raises UsageError (2) for a path that is not there, for paths that hold no file at all, and, without `yes`, where
    more than half of the store's documents would go.
    """
    by_path = {os.path.join(os.fsencode(roots[row.root_id]), row.path): row for row in documents}
    plan = Plan(stored=len(by_path), yes=yes)
    seen: set[bytes] = set()
    blind: list[bytes] = []  # what could not be read: nothing below it counts as gone
    for item in walk(paths):
        absolute = os.fsencode(item.root / item.path)
        if isinstance(item, Skip):
            plan.skips.append(item)
            if item.failed:
                blind.append(absolute)
            continue
        seen.add(absolute)
        row = by_path.get(absolute)
        if row is not None and (row.size, row.mtime_ns) == (item.size, item.mtime_ns):
            plan.unchanged += 1
            continue
        if row is not None:
            plan.known[absolute] = row
        plan.changed.append(item)
    scopes = [os.fsencode(os.path.realpath(path)) for path in paths]
    plan.gone = [
        row
        for absolute, row in by_path.items()
        if absolute not in seen and below(absolute, scopes) and not below(absolute, blind)
    ]
    if not plan.changed and not plan.unchanged and not plan.gone and not plan.skips:
        raise _nothing(paths)
    plan.require_consent(len(plan.gone))
    return plan


def below(path: bytes, folders: Iterable[bytes]) -> bool:
    """Tell whether a path is one of `folders` or lies below one."""
    return any(path == folder or path.startswith(folder.rstrip(b"/") + b"/") for folder in folders)


def _nothing(paths: Sequence[Path]) -> UsageError:
    names = ", ".join(str(path) for path in paths)
    return UsageError(f"no file to ingest in {names}", "name a folder that holds text files")
