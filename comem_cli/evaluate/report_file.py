"""Write a report to a file, in the form that its ending names."""

from __future__ import annotations

from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.evaluate.report import Report
from comem_cli.evaluate.report_markdown import markdown
from comem_cli.evaluate.report_svg import svg
from comem_cli.evaluate.report_tsv import tsv


def _tsv_text(report: Report) -> str:
    return "".join("\t".join(row) + "\n" for row in tsv(report))


_FORMS = {".md": markdown, ".tsv": _tsv_text, ".svg": svg}


def check_ending(path: Path) -> None:
    """Raise UsageError (2) for an ending other than .md, .tsv or .svg; to be asked before a long run."""
    if path.suffix not in _FORMS:
        raise UsageError(f"{path.name}: a report ends in {', '.join(_FORMS)}", "name the report FILE.md")


def write_report(report: Report, path: Path) -> None:
    """Write the report; raises as `check_ending` does, and OSError."""
    check_ending(path)
    write_aside(path, _FORMS[path.suffix](report))


def write_aside(path: Path, text: str) -> None:
    """Write a text file whole or not at all, its folder too; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
