"""The closed formula of BM25 and the iterative rule, in plain Python, independent of Lucene and comem."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Chunks = Mapping[int, Sequence[int]]


def pack_ids(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def one_byte_length(length: int) -> int:
    """Lucene's SmallFloat.byte4ToInt(intToByte4(length)): 24 exact values, then four significant bits above them."""
    if length < 24:
        return length
    above = length - 24
    dropped = max(above.bit_length() - 4, 0)
    return 24 + (above >> dropped << dropped)


class ClosedFormula:
    """Scores chunks with the formula of design §3, in doubles."""

    def __init__(self, chunks: Chunks) -> None:
        self.counts = {chunk_id: Counter(ids) for chunk_id, ids in chunks.items()}
        self.lengths = {chunk_id: one_byte_length(len(ids)) for chunk_id, ids in chunks.items()}
        self.mean = sum(map(len, chunks.values())) / max(len(chunks), 1)
        self.holders: Counter[int] = Counter()
        for counts in self.counts.values():
            self.holders.update(counts.keys())

    def scores(self, query: Iterable[int], k1: float = 1.5, b: float = 0.75, common: float = 1.0) -> dict[int, float]:
        """The chunks that match, with their scores; terms of more than a share `common` of the chunks do not count."""
        total = len(self.counts)
        query = [t for t in set(query) if self.holders[t] <= common * total]
        idf = {t: math.log((total - self.holders[t] + 0.5) / (self.holders[t] + 0.5) + 1) for t in set(query)}
        scores: dict[int, float] = {}
        for chunk_id, counts in self.counts.items():
            matched = [t for t in idf if counts[t]]
            norm = k1 * (1 - b + b * self.lengths[chunk_id] / self.mean)
            if matched:
                scores[chunk_id] = math.fsum(idf[t] * counts[t] / (counts[t] + norm) for t in matched)
        return scores


def iterate(
    formula: ClosedFormula,
    rank: Mapping[int, int],
    query: Iterable[int],
    top_k: int,
    hop: int,
    rounds: int,
    common: float = 1.0,
) -> list[tuple[int, int, float]]:
    """The paper's rule: (chunk, round, score) in the order of selection. Scores that agree in six digits tie.

    common: below 1, a round leaves common terms out where others find something.
    """
    taken: list[tuple[int, int, float]] = []
    for number in range(1, rounds + 1):
        done = {chunk_id for chunk_id, _, _ in taken}
        query = list(query)
        for share in (common, 1.0):
            scores = {c: s for c, s in formula.scores(query, common=share).items() if c not in done}
            if scores:
                break
        best = sorted(scores, key=lambda c: (-float(f"{scores[c]:.6g}"), rank[c]))[: min(hop, top_k - len(taken))]
        taken += [(c, number, scores[c]) for c in best]
        query = [t for c in best for t in formula.counts[c]]
    return taken
