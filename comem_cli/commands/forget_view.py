"""Show what a `forget` would take out, and what it did, to a person or as one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import CorruptStoreError, PartialError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.forget import Report


def show_plan(store: Path, paths: list[str]) -> None:
    """List the documents that would go, and count what goes with them; nothing is written."""
    from comem_cli.store.doomed import find_doomed
    from comem_cli.store.reader import StoreReader

    with StoreReader(store) as reader:
        doomed = find_doomed(reader.catalogue, paths)
    names = [row.name for _, row in doomed.documents]
    if out.json:
        counts: dict[str, Any] = {"chunks": len(doomed.chunks), "shared_chunks": doomed.shared, "tokens": doomed.tokens}
        sizes = {"residual_bytes": doomed.rows_bytes, "stored_documents": doomed.stored}
        out.document({"store": str(store), "documents": names, **counts, **sizes, "not_found": list(doomed.unmatched)})
        return
    out.table(("action", "path"), [("forget", name) for name in names] + [("not found", p) for p in doomed.unmatched])
    out.note(
        f"{len(names)} of {doomed.stored} documents, {len(doomed.chunks)} chunks ({doomed.tokens:,} tokens, "
        f"{doomed.rows_bytes:,} bytes of residuals) would go; {doomed.shared} chunks stay with other documents"
    )


def show_report(store: Path, report: Report) -> None:
    """Print the report, then fail for what is left: PartialError (3), CorruptStoreError (13)."""
    from dataclasses import asdict

    if out.json:
        facts = {key: value for key, value in asdict(report).items() if key not in ("scanned", "documents")}
        out.document({"store": str(store), "documents": list(report.documents), **facts, **asdict(report.scanned)})
    else:
        scanned = report.scanned
        out.text(
            f"{store}: {len(report.documents)} documents forgotten; scanned {scanned.files} files, "
            f"{scanned.bytes:,} bytes: {len(scanned.traces)} traces"
        )
        if report.documents and not scanned.traces:
            out.note("where their files still lie in the source folders, remove or ignore them before the next ingest")
    if report.again:
        out.warning(
            f"{len(report.again)} documents stay, the first {report.again[0]}: they were ingested again before this "
            f"was finished; to forget them, name them: comem forget {store} PATH"
        )
    if report.readers:
        raise PartialError(
            f"the documents are out of {store}, but bytes may be left until those who read it end",
            f"wait for them, then run: comem forget {store}",
        )
    if report.traces:
        first = report.traces[0]
        raise CorruptStoreError(
            f"{len(report.traces)} traces are left, the first in {first.file} at byte {first.offset}: {first.what} of "
            f"{first.document}",
            f"comem check {store}",
        )
