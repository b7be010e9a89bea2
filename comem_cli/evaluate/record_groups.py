"""Sort records for a report, and refuse those that must not stand in one table.

    records -> cohort -> cell -> arm -> example -> Record

Every level is sorted (numbers in names by value), so a run that was killed and resumed gives the same table as an
undisturbed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from comem_cli.errors import UsageError
from comem_cli.evaluate.records import Record

Answers = Mapping[str, Record]  # example id -> record
Arms = Mapping[str, Answers]
Cells = Mapping[str, Arms]

_Value = TypeVar("_Value")
_HINT = "report files of one run, or give comem eval another --out file for other settings"


def grouped(records: Iterable[Record], reference: str) -> dict[str, Cells]:
    """Return the records by cohort, cell, arm and example; the reference arm stands first in its cell.

    Raises: UsageError (2) where one cohort's cell holds two sets of examples, where an arm's records of a cohort were
    made with two settings (`identity`), where a record is there twice, or where one has a score outside 0 to 1.
    """
    found: dict[str, dict[str, dict[str, dict[str, Record]]]] = {}
    digests: dict[tuple[str, str], str] = {}
    identities: dict[tuple[str, str], Record] = {}
    for record in records:
        if digests.setdefault((record.cohort, record.cell), record.cell_digest) != record.cell_digest:
            raise UsageError(f"records of cell '{record.cell}' are about different examples", _HINT)
        first = identities.setdefault((record.cohort, record.arm), record)
        if first.identity != record.identity:
            raise UsageError(
                f"records of arm '{record.arm}' were made with different settings: {first.identity} in cell "
                f"'{first.cell}', {record.identity} in cell '{record.cell}'",
                _HINT,
            )
        if not 0 <= record.score <= 1:
            raise UsageError(f"example '{record.example}' of cell '{record.cell}' has the score {record.score}", _HINT)
        answers = found.setdefault(record.cohort, {}).setdefault(record.cell, {}).setdefault(record.arm, {})
        if record.example in answers:
            raise UsageError(
                f"example '{record.example}' of cell '{record.cell}' by arm '{record.arm}' is there twice", _HINT
            )
        answers[record.example] = record
    return {
        cohort: {cell: _reference_first(_ordered(arms), reference) for cell, arms in _ordered(cells).items()}
        for cohort, cells in _ordered(found).items()
    }


def _reference_first(arms: dict[str, dict[str, Record]], reference: str) -> Arms:
    names = sorted(arms, key=lambda arm: arm != reference)  # stable
    return {arm: _ordered(arms[arm]) for arm in names}


def _ordered(given: Mapping[str, _Value]) -> dict[str, _Value]:
    return {name: given[name] for name in sorted(given, key=_natural)}


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Order 2048 before 16384; the name itself decides between 07 and 7."""
    parts = re.split(r"([0-9]+)", name)  # no int(): a number may be too long for it
    return [(len(part.lstrip("0")), part.lstrip("0")) if part.isdigit() else (-1, part) for part in parts], name
