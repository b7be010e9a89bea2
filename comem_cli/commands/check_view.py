"""Show what `comem check` found and what a repair did."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.check import Report
    from comem_cli.store.repair import Repaired

HEADER = ("severity", "code", "what", "detail", "fix")


def show_report(report: Report, *, every_byte: bool) -> None:
    """Print the findings, then in one line what was looked at; every_byte: the residuals were read whole."""
    if out.json:
        out.document(report.to_json())
        return
    _findings(report)
    out.note(_summary(report, every_byte=every_byte))


def show_repair(before: Report, done: Repaired, after: Report) -> None:
    """Print what was found, what was done, and what is left."""
    if out.json:
        out.document({**after.to_json(), "found": before.to_json()["findings"], "repaired": asdict(done)})
        return
    _findings(before, after)
    if before is not after and after.generation is not None:
        out.note(_done(done))
        out.note(f"left: {len(after.damage)} of {_count(len(before.damage), 'finding')}")
    out.note(_summary(after, every_byte=True))


def _findings(report: Report, after: Report | None = None) -> None:
    """Print the findings; after a repair, those that are gone as mended, and those that are new."""
    left = {(f.code, f.what) for f in (after or report).findings}
    found = [*report.findings]
    if after is not None:
        seen = {(f.code, f.what) for f in found}
        found += [f for f in after.findings if (f.code, f.what) not in seen]
    rows = []
    for f in found:
        stays = (f.code, f.what) in left
        severity = ("damage" if f.damage else "note") if stays else "mended"
        rows.append((severity, f.code, f.what, f.detail, f.fix(report.store) if stays else "-"))
    if rows:
        out.table(HEADER, rows)


def _summary(report: Report, *, every_byte: bool) -> str:
    if report.generation is None:
        return f"{report.store}: the catalogue cannot be read, so nothing else was checked"
    verdict = "damaged" if report.damage else "whole"
    held = (_count(report.documents, "document"), _count(report.chunks, "chunk"), _count(report.shards, "shard"))
    read = f"{report.rows:,} rows of the catalogue and {report.bytes_read:,} bytes of residuals read"
    rest = "" if every_byte or not report.shards else "; --read-data reads every byte"
    return f"{report.store}: {verdict}; {', '.join(held)}; {read}{rest}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _done(done: Repaired) -> str:
    parts = [
        f"{done.rewritten:,} chunks computed again",
        f"{done.moved:,} moved",
        f"{done.shards:,} shards replaced",
    ]
    if done.differing:
        parts.append(f"{done.differing:,} of them with other bytes than before (another device or library version)")
    if done.dropped:
        parts.append(f"{done.dropped:,} of an interrupted run dropped")
    if done.indexed is not None:
        parts.append("BM25 index rebuilt")
    return "repaired: " + ", ".join(parts)
