"""Show what an ingest will do and what it did, to a person or as JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.ingest import Summary
    from comem_cli.store.plan import Plan
    from comem_cli.store.run import IngestRun

_EXPECTED = {"ignored", "ignore-file", "vcs"}  # reasons that a person need not hear about


def show_counts(plan: Plan) -> None:
    """Say in one line, or one `plan` event, how much there is to do."""
    counts = {
        "read": len(plan.changed),
        "unchanged": plan.unchanged,
        "removed": len(plan.gone),
        "skipped": len(plan.skips),
        "bytes": plan.bytes_to_read,
    }
    if out.json:
        out.event({"type": "plan", **counts})
        return
    out.note(
        f"{counts['read']} files to read ({counts['bytes']:,} bytes), {counts['unchanged']} unchanged, "
        f"{counts['removed']} to remove, {counts['skipped']} skipped"
    )


def show_plan(plan: Plan) -> None:
    """List every file with what would be done: a table of action, path and reason, or an event a file."""
    show_counts(plan)
    rows = [("read", source.path, "") for source in plan.changed]
    rows += [("remove", row.name, "") for row in plan.gone]
    rows += [("skip", skip.path, skip.reason) for skip in plan.skips]
    if not out.json:
        out.table(("action", "path", "reason"), rows)
        return
    for action, path, reason in rows:
        out.event({"type": action, "path": path} | ({"reason": reason} if reason else {}))


def show_summary(run: IngestRun, summary: Summary, indexed: int | None) -> None:
    """Print the result; name the sources that were not read."""
    if out.json:
        counts = {key: value for key, value in vars(summary).items() if key != "skips"}
        skips = {"skipped": len(summary.skips), "failed": len(summary.failed)}
        settings = {
            "store": str(run.store),
            "split": run.fingerprint.split,
            "residual_dtype": run.fingerprint.residual_dtype,
        }
        out.event({"type": "summary", **settings, **counts, **skips, "indexed_chunks": indexed})
        return
    for skip in summary.skips:
        if skip.failed:
            out.warning(f"not read: {skip.path}: {skip.reason} ({skip.detail})")
        elif skip.reason not in _EXPECTED:
            out.note(f"skipped: {skip.path}: {skip.reason}")
    out.text(
        f"{run.store}: {summary.files} files read, {summary.unchanged} unchanged, {summary.removed} removed; "
        f"{summary.written_chunks} chunks ({summary.written_tokens:,} tokens) written at split {run.fingerprint.split}"
    )
