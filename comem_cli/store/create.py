"""What a new store starts from: its first facts, and a place that nothing else uses."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.store import durable, format
from comem_cli.store.catalogue import CATALOGUE_NAME, Catalogue
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.lock import LOCK_NAME
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import MetaRow


def first_facts(fingerprint: Fingerprint, width: int, recorded: Mapping[str, str]) -> dict[str, str]:
    """Return every meta fact of generation 0; `width` in values a row."""
    return {
        "format_version": str(fingerprint.format_version),
        "store_id": secrets.token_hex(16),
        "generation": "0",
        "width": str(width),
        "capacity": str(format.shard_capacity(RowLayout.of(fingerprint, width), fingerprint.chunk)),
        "fingerprint": json.dumps(fingerprint.to_dict(), sort_keys=True),
        "recorded": json.dumps(dict(recorded), sort_keys=True),
        "next_shard": "0",
        "next_chunk": "0",
        "next_document": "0",
        "content": f"{0:032x}",
        "index_name": "",
        "index_content": "",
    }


def refuse_foreign(path: Path) -> None:
    """Refuse to make a store in a directory that holds something else.

    Raises: UsageError (2).
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"{path} is a file, not a store", "choose another place with --store DIR")
    ours = {LOCK_NAME, format.METADATA_NAME, format.METADATA_NAME + durable.TMP_SUFFIX, format.ARRAY_NAME}
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(CATALOGUE_NAME)}
    if names - ours and not (path / CATALOGUE_NAME).is_file():
        raise UsageError(f"{path} is not empty and not a store", "choose another place with --store DIR")


def adopt_if_empty(catalogue: Catalogue, facts: Mapping[str, str]) -> None:
    """Let a store that holds nothing take other settings: its first ingest failed, or all its documents went."""
    (held,) = catalogue.integers("SELECT (SELECT COUNT(*) FROM chunk) + (SELECT COUNT(*) FROM document)")
    if held or catalogue.meta()["fingerprint"] == facts["fingerprint"]:
        return
    with catalogue.transaction():
        for key in ("format_version", "width", "capacity", "fingerprint", "recorded"):
            catalogue.insert(MetaRow(key, facts[key]))
