"""Runs of token ids that only forgotten chunks hold: what a scan may look for.

A run is 8 tokens. Runs that live chunks hold as well are found by a rolling hash over every live chunk, then compared
id by id, in the memory of one chunk and of the runs looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

RUN = 8  # tokens
_LEAST_DISTINCT = 4  # a run of one repeated token is no trace of anybody
_ID_BYTES = 4
_FACTORS = np.random.default_rng(8).integers(1, 2**63, RUN, dtype=np.uint64) | np.uint64(1)


def runs(ids: bytes) -> Iterator[bytes]:
    """Yield runs that cover a chunk's token ids, uint32 LE: every 8 tokens, and the last 8. So any 15 hold a whole one.

    Runs of fewer than 4 different tokens are left out.
    """
    count = len(ids) // _ID_BYTES
    starts = dict.fromkeys([*range(0, count - RUN + 1, RUN), count - RUN]) if count >= RUN else {}
    for start in starts:
        run = ids[start * _ID_BYTES : (start + RUN) * _ID_BYTES]
        if len({run[at : at + _ID_BYTES] for at in range(0, len(run), _ID_BYTES)}) >= _LEAST_DISTINCT:
            yield run


def narrow(run: bytes) -> bytes | None:
    """Return a run of uint32 LE as uint16 LE; None where an id does not fit."""
    ids = np.frombuffer(run, "<u4")
    return ids.astype("<u2").tobytes() if int(ids.max()) < 2**16 else None


def shared_runs(wanted: set[bytes], live: Iterable[bytes]) -> set[bytes]:
    """Return those of the runs `wanted` that stand anywhere in the `live` chunks' token ids (uint32 LE)."""
    found: set[bytes] = set()
    if not wanted:
        return found
    known = np.sort(np.concatenate([_rolling(run) for run in wanted]))
    for ids in live:
        hashes = _rolling(ids)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        for start in np.flatnonzero(known[at] == hashes).tolist():
            run = ids[start * _ID_BYTES : (start + RUN) * _ID_BYTES]
            if run in wanted:
                found.add(run)
    return found


def _rolling(ids: bytes) -> npt.NDArray[np.uint64]:
    """Hash every run of 8 tokens."""
    tokens = np.frombuffer(ids, "<u4").astype(np.uint64)
    count = max(len(tokens) - RUN + 1, 0)
    total = np.zeros(count, dtype=np.uint64)
    for number, factor in enumerate(_FACTORS):
        total += tokens[number : number + count] * factor
    return total
