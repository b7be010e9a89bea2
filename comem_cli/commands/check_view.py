"""Show what `comem check` found and what a repair did."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.check import Report
    from comem_cli.store.repair import Repaired

HEADER = ("severity", "code", "what", "detail", "fix")


def show_report(report: Report) -> None:
    """Print the findings, then in one line what was looked at."""
    if out.json:
        out.document(report.to_json())
        return
    _findings(report)
    out.note(_summary(report))


def show_repair(before: Report, done: Repaired, after: Report) -> None:
    """Print what was found, what was done, and what is left."""
    if out.json:
        out.document({**after.to_json(), "found": before.to_json()["findings"], "repaired": asdict(done)})
        return
    _findings(before)
    if before is not after:
        out.note(_done(done))
        left = [finding for finding in after.findings if finding.damage]
        out.note(f"left: {len(left)} of {len(before.damage)} findings")
        if left:
            _findings(after)
    out.note(_summary(after))


def _findings(report: Report) -> None:
    if report.findings:
        rows = [
            ("damage" if f.damage else "note", f.code, f.what, f.detail, f.fix(report.store)) for f in report.findings
        ]
        out.table(HEADER, rows)


def _summary(report: Report) -> str:
    if report.generation is None:
        return f"{report.store}: the catalogue cannot be read, so nothing else was checked"
    verdict = "damaged" if report.damage else "whole"
    looked = f"{report.documents:,} documents, {report.chunks:,} chunks, {report.shards:,} shards"
    return f"{report.store}: {verdict}; {looked}, {report.rows:,} rows, {report.bytes_read:,} bytes of residuals read"


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
