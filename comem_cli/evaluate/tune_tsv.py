"""A tuning as rows of raw values: every estimate with low, high and n; what is not known is empty."""

from __future__ import annotations

from collections.abc import Sequence

from comem_cli.evaluate.tune_choice import frontier
from comem_cli.evaluate.tune_row import TuneRow
from comem_cli.measure.inference import Estimate

_ESTIMATES = ("lm_tax", "agreement", "kl", "first_kl", "kept", "speedup")
_PARTS = ("", "_low", "_high", "_n")
_REST = (
    "copied",
    "needles",
    "question_s",
    "token_bytes",
    "write_token_s",
    "write_ratio",
    "write_flops_ratio",
    "q_star",
)


def tsv(rows: Sequence[TuneRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of the fields, and one line an arm."""
    header = ("arm", *(name + part for name in _ESTIMATES for part in _PARTS), *_REST, "frontier")
    return header, [_line(row, best) for row, best in zip(rows, frontier(rows), strict=True)]


def _line(row: TuneRow, best: bool) -> tuple[str, ...]:
    estimates = [field for name in _ESTIMATES for field in _fields(getattr(row, name))]
    copied, needles = (row.copying.copied, row.copying.n) if row.copying else (None, 0)
    write = (row.write.token_s, row.write.ratio.value, row.write.flops_ratio)
    rest = (copied, needles, row.question_s, row.token_bytes, *write, row.crossing.queries)
    return (row.arm.spec, *estimates, *map(_field, rest), "yes" if best else "dominated")


def _fields(found: Estimate | None) -> list[str]:
    return [""] * len(_PARTS) if found is None else [_field(value) for value in vars(found).values()]


def _field(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"
