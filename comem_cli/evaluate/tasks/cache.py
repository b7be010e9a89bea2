"""Keep generated cells: a cell of long texts takes minutes to generate and is asked for again by every run.

A task that can name what its texts are made of (`inputs`) is kept; others read their file each time. A kept cell is
used only if its key and the hash of its content are right; anything else is generated again and replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from comem_cli.evaluate.task import Cell, Document, Example, Span, Task, TaskContext
from comem_cli.model.cache import cache_directory

FORMAT = "1"


@runtime_checkable
class Generated(Protocol):
    """A task that names everything beside the context that decides its texts."""

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name versions and digests: generator, packages, data files. Raises UsageError (2) as `cell` does."""
        ...


def cached_cell(task_spec: str, task: Task, context: TaskContext, folder: Path | None = None) -> Cell:
    """Return task.cell(context), from `folder` where it was generated before; its default is in the user's cache.

    The key: `task_spec`, n, seed, the tokenizer's hash and the task's `inputs`. Raises whatever `cell` raises; not
    being able to write only costs time.
    """
    if not isinstance(task, Generated):
        return task.cell(context)
    settings = {"format": FORMAT, "spec": task_spec, "n": str(context.n), "seed": str(context.seed)}
    key = {**settings, "tokenizer": context.tokenizer_hash, **task.inputs(context)}
    name = f"{re.sub('[^0-9A-Za-z_.=-]+', '_', task_spec)[:80]}-{_digest(key)[:16]}.json"
    path = (folder or cache_directory() / "cells") / name
    if (kept := _read(path, key)) is not None:
        return kept
    cell = task.cell(context)
    with contextlib.suppress(OSError):
        _write(path, key, _packed(cell))
    return cell


def _read(path: Path, key: Mapping[str, str]) -> Cell | None:
    """Read a kept cell; None for a file that is missing, damaged, or of another key."""
    try:
        found = json.loads(path.read_bytes())
        if found["key"] != key or found["blake2b"] != _digest(found["cell"]):
            return None
        return _cell(found["cell"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _write(path: Path, key: Mapping[str, str], packed: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            json.dump({"key": key, "blake2b": _digest(packed), "cell": packed}, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)  # gone already after a rename


def _packed(cell: Cell) -> dict[str, Any]:
    """Turn a cell into JSON values; documents that examples share are kept once."""
    shared: dict[int, int] = {}
    corpora: list[list[dict[str, str]]] = []
    examples = []
    for one in cell.examples:
        if id(one.documents) not in shared:
            shared[id(one.documents)] = len(corpora)
            corpora.append([asdict(document) for document in one.documents])
        fields = {name: value for name, value in vars(one).items() if name not in ("documents", "evidence")}
        evidence = [asdict(span) for span in one.evidence]
        examples.append({**fields, "documents": shared[id(one.documents)], "evidence": evidence})
    fields = {name: value for name, value in vars(cell).items() if name != "examples"}
    return {**fields, "provenance": dict(cell.provenance), "corpora": corpora, "examples": examples}


def _cell(packed: Mapping[str, Any]) -> Cell:
    corpora = [tuple(Document(**document) for document in documents) for documents in packed["corpora"]]
    fields = {name: value for name, value in packed.items() if name not in ("corpora", "examples")}
    examples = tuple(
        Example(
            **{
                **one,
                "documents": corpora[one["documents"]],
                "answers": tuple(one["answers"]),
                "evidence": tuple(Span(**span) for span in one["evidence"]),
            }
        )
        for one in packed["examples"]
    )
    return Cell(**{**fields, "stop": tuple(fields["stop"]), "examples": examples})


def _digest(value: object) -> str:
    """Return 32 hex characters over a JSON value; tuples count as lists."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()
