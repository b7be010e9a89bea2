"""BM25 by its closed formula, without Lucene: what contract 8 holds an index against.

The sum over the distinct terms t of the query, with k1 = 1.5 and b = 0.75,
    ln((N - df(t) + .5) / (df(t) + .5) + 1) * tf / (tf + k1 * (1 - b + b * dl / avgdl)),
in double precision; dl is the chunk's length as Lucene stores it in one byte, avgdl the true mean. The source is that
of `comem_cli.select.bm25`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from comem_cli.select.bm25 import K1, B
from comem_cli.select.selector import decode_ids
from comem_cli.select.terms import TOKENS, TermScheme

_EXACT = 24  # lengths below this are stored as they are
_SIGNIFICANT = 4  # bits kept of what exceeds it


def stored_length(length: int) -> int:
    """Return the length that Lucene's one-byte code stands for (`SmallFloat.byte4ToInt` of `intToByte4`)."""
    if length < _EXACT:
        return length
    dropped = max((length - _EXACT).bit_length() - _SIGNIFICANT, 0)
    return _EXACT + ((length - _EXACT) >> dropped << dropped)


def bm25_scores(
    chunks: Iterable[tuple[int, bytes]], queries: Sequence[Collection[int]], scheme: TermScheme = TOKENS
) -> list[dict[int, float]]:
    """Score every chunk (id, token ids as uint32 LE bytes) for each query's token ids, in one pass over `chunks`.

    scheme makes the terms that count. Returns {chunk id: score} a query, of the chunks that match; holds counts of the
    queries' terms only. A chunk without any term is not there.
    """
    asked = [set(scheme.query_terms(query)) for query in queries]
    wanted = set().union(*asked)
    lengths: dict[int, int] = {}
    counts: dict[str, dict[int, int]] = {}  # term -> chunk id -> tf
    for chunk_id, stored in chunks:
        terms = scheme.terms(decode_ids(stored))
        if terms:
            lengths[chunk_id] = len(terms)
        for term, tf in Counter(filter(wanted.__contains__, terms)).items():
            counts.setdefault(term, {})[chunk_id] = tf
    total = len(lengths)
    mean = sum(lengths.values()) / max(total, 1)
    norms = {chunk_id: K1 * (1 - B + B * stored_length(n) / mean) for chunk_id, n in lengths.items()}
    return [_scores(query, counts, norms, total) for query in asked]


def _scores(
    query: Collection[str], counts: dict[str, dict[int, int]], norms: dict[int, float], total: int
) -> dict[int, float]:
    parts: dict[int, list[float]] = {}
    for term in query:
        holders = counts.get(term, {})
        idf = math.log((total - len(holders) + 0.5) / (len(holders) + 0.5) + 1)
        for chunk_id, tf in holders.items():
            parts.setdefault(chunk_id, []).append(idf * tf / (tf + norms[chunk_id]))
    return {chunk_id: math.fsum(some) for chunk_id, some in parts.items()}
