"""Runs of token ids: which a scan looks for, and which live chunks share."""

from __future__ import annotations

import random
import struct

from comem_cli.store.unshared import RUN, narrow, runs, shared_runs


def ids(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def test_any_15_tokens_of_a_chunk_hold_a_whole_run():
    tokens = random.Random(0).sample(range(60_000), 61)
    found = list(runs(ids(*tokens)))
    for start in range(len(tokens) - 14):
        assert any(run in ids(*tokens[start : start + 15]) for run in found)
    assert all(len(run) == RUN * 4 for run in found)
    assert list(runs(ids(*tokens[:7]))) == []
    assert list(runs(ids(*tokens[:8]))) == [ids(*tokens[:8])]


def test_a_repeated_token_is_no_run():
    assert list(runs(ids(*[7] * 30))) == []
    assert len(list(runs(ids(*[1, 2, 3, 4] * 4)))) == 2


def test_narrow_ids_are_those_that_fit_16_bits():
    tokens = [1, 2, 3, 65_535, 5, 6, 7, 8]
    assert narrow(ids(*tokens)) == struct.pack("<8H", *tokens)
    assert narrow(ids(65_536, *tokens[1:])) is None


def test_shared_runs_are_those_that_stand_anywhere_in_a_live_chunk():
    rng = random.Random(1)
    tokens = [rng.randrange(500) for _ in range(200)]
    wanted = set(runs(ids(*tokens)))
    live = [ids(*[rng.randrange(500) for _ in range(100)]) for _ in range(5)]
    live.append(ids(9, *tokens[16:32], 9))
    live.append(ids(*tokens[100:105]))
    expected = {run for run in wanted if any(chunk.find(run) % 4 == 0 for chunk in live)}
    assert shared_runs(wanted, live) == expected == {ids(*tokens[16:24]), ids(*tokens[24:32])}
    assert shared_runs(set(), live) == set()
