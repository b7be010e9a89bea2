"""The names of the RULER tasks and the options of their specs, as in `niah_multivalue:8192:values=8`.

niah tasks take keys, values and queries, those in prose haystack=essay or books; vt takes hops, chains and haystack.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks import ruler_vt
from comem_cli.evaluate.tasks.ruler_counts import CommonWords, FrequentWords
from comem_cli.evaluate.tasks.ruler_haystack import DEPTHS
from comem_cli.evaluate.tasks.ruler_niah import Haystack, Kind, Niah
from comem_cli.evaluate.tasks.ruler_qa import RulerQa
from comem_cli.evaluate.tasks.ruler_vt import VariableTracking
from comem_cli.evaluate.tasks.spec import Builder, Options

SIZE, SMALLEST = 4096, 512


@dataclass(frozen=True)
class _Row:
    haystack: Haystack
    key: Kind = "words"
    value: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


# RULER's synthetic.yaml
_NIAH = {
    "niah_single_1": _Row("noise"),
    "niah_single_2": _Row("essay"),
    "niah_single_3": _Row("essay", value="uuids"),
    "niah_multikey_1": _Row("essay", keys=4),
    "niah_multikey_2": _Row("needle"),
    "niah_multikey_3": _Row("needle", key="uuids", value="uuids"),
    "niah_multivalue": _Row("essay", values=4),
    "niah_multiquery": _Row("essay", queries=4),
}


def _niah(row: _Row, options: Options) -> Niah:
    prose = row.haystack == "essay"
    queries = options.whole("queries", row.queries, 1, len(DEPTHS))
    keys = max(options.whole("keys", row.keys, 1, len(DEPTHS)), queries)
    values = options.whole("values", row.values, 1, len(DEPTHS))
    kinds: tuple[Haystack, ...] = ("essay", "books") if prose else (row.haystack,)
    haystack = options.choice("haystack", kinds) if prose else row.haystack
    if keys * values > len(DEPTHS):
        raise UsageError(f"{options.spec}: at most {len(DEPTHS)} needles", "ask for fewer keys or values")
    return Niah(
        name=options.name,
        size=options.whole_size(SIZE, SMALLEST),
        haystack=haystack,
        key=row.key,
        value=row.value,
        keys=keys,
        values=values,
        queries=queries,
        options=_changed(
            haystack=(haystack, row.haystack),
            keys=(keys, max(row.keys, row.queries)),
            values=(values, row.values),
            queries=(queries, row.queries),
        ),
    )


def _vt(options: Options) -> VariableTracking:
    hops, chains = options.whole("hops", 4, 1, 100), options.whole("chains", 1, 1, 20)
    kinds: tuple[ruler_vt.Haystack, ...] = ("noise", "essay", "books")
    haystack = options.choice("haystack", kinds)
    if haystack != "noise" and chains * (hops + 1) > len(DEPTHS):
        raise UsageError(f"{options.spec}: at most {len(DEPTHS)} statements in prose", "ask for fewer chains or hops")
    changed = _changed(hops=(hops, 4), chains=(chains, 1), haystack=(haystack, "noise"))
    return VariableTracking(options.whole_size(SIZE, SMALLEST), hops, chains, haystack, changed)


def _changed(**values: tuple[object, object]) -> str:
    """Write the options that are not as the table has them, for the label of the cell."""
    return ",".join(f"{key}={value}" for key, (value, default) in values.items() if value != default)


RULER: dict[str, Builder] = {
    **{name: functools.partial(_niah, row) for name, row in _NIAH.items()},
    "vt": _vt,
    "cwe": lambda options: CommonWords(options.whole_size(SIZE, SMALLEST)),
    "fwe": lambda options: FrequentWords(options.whole_size(SIZE, SMALLEST)),
    "qa_1": lambda options: RulerQa(options.name, options.whole_size(SIZE, SMALLEST)),
    "qa_2": lambda options: RulerQa(options.name, options.whole_size(SIZE, SMALLEST)),
}
