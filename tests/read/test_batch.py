"""Answers decoded together against the same answers decoded alone."""

import pytest
import torch

from comem_cli.model.split import SplitModel
from comem_cli.read.batch import can_join, decode_together
from comem_cli.read.generate import Lane, Reader, Sampling
from comem_cli.read.layout import Layout, ReadVariant
from tests.tiny import BOS_ID, tiny_model

PACKS = ((60, [5, 9, 200, 31]), (7, [8, 3]), (33, [77, 12, 5]), (60, [4, 4, 4, 4]), (15, [9]))  # rows, query
NEW = 24


def _reader(family, split):
    return Reader(SplitModel(tiny_model(family, 6), split), BOS_ID)


def _rows(reader, n):
    return reader.split.lower((torch.arange(n)[None] * 7 + n) % 500 + 3)[0]


def _started(reader, sampling, layouts=None):
    return [
        reader.start(lambda n=n: _rows(reader, n), query, sampling, *([layouts[number]] if layouts else []))
        for number, (n, query) in enumerate(PACKS)
    ]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe", "gemma2", "gpt_neox", "falcon", "deepseek_v3"])
@pytest.mark.parametrize("split", [0, 2, 5])
def test_answers_are_those_of_one_by_one(family, split):
    reader, sampling = _reader(family, split), Sampling(max_new_tokens=NEW)
    alone = [reader.generate(_rows(reader, n), query, sampling) for n, query in PACKS]
    started = _started(reader, sampling)
    assert can_join(reader, started)
    together = decode_together(reader, [Lane(one) for one in started], sampling)
    assert [(one.ids, one.finish, one.pack_tokens) for one in together] == [
        (one.ids, one.finish, one.pack_tokens) for one in alone
    ]
    assert len({tuple(one.ids) for one in alone}) > 1


def test_answers_that_end_early_leave_the_others_as_they_were():
    reader = _reader("gemma3_text", 2)
    free = [reader.generate(_rows(reader, n), query, Sampling(max_new_tokens=NEW)) for n, query in PACKS]
    sampling = Sampling(max_new_tokens=NEW, eos_ids=(free[0].ids[6], free[2].ids[3]))
    stops = [lambda token, n=number: n == 3 and token == free[3].ids[9] for number in range(len(PACKS))]
    alone = [
        reader.generate(_rows(reader, n), query, sampling, on_token)
        for (n, query), on_token in zip(PACKS, stops, strict=True)
    ]
    lanes = [Lane(one, on_token) for one, on_token in zip(_started(reader, sampling), stops, strict=True)]
    together = decode_together(reader, lanes, sampling)
    assert [(one.ids, one.finish) for one in together] == [(one.ids, one.finish) for one in alone]
    assert len({one.finish for one in together}) > 1
    assert len({len(one.ids) for one in together}) > 2
    ends = sorted(together, key=lambda one: len(one.ids))
    assert ends[0].timing_ms["decode"] <= ends[-1].timing_ms["decode"]


def test_positions_of_the_documents_go_on_in_a_batch():
    reader, sampling = _reader("llama", 3), Sampling(max_new_tokens=NEW)
    starts = zip(PACKS, (40, 0, 9, 0, 3), strict=True)
    layouts = [Layout(ReadVariant("origin", "full"), (n,), (start,)) for (n, _), start in starts]
    alone = [
        reader.generate(_rows(reader, n), query, sampling, layout=layout)
        for (n, query), layout in zip(PACKS, layouts, strict=True)
    ]
    together = decode_together(reader, [Lane(one) for one in _started(reader, sampling, layouts)], sampling)
    assert [one.ids for one in together] == [one.ids for one in alone]


def test_draws_follow_each_answers_own_seed():
    reader, sampling = _reader("llama", 2), Sampling(max_new_tokens=NEW, temperature=1.5, seed=3)
    alone = [reader.generate(_rows(reader, n), query, sampling).ids for n, query in PACKS]
    together = decode_together(reader, [Lane(one) for one in _started(reader, sampling)], sampling)
    assert [one.ids for one in together] == alone


@pytest.mark.parametrize("family", ["gpt2", "bloom", "lfm2", "qwen3_next"])
def test_families_that_cannot_be_moved_or_keep_states_are_not_joined(family):
    reader, sampling = _reader(family, 2), Sampling(max_new_tokens=2)
    assert not can_join(reader, _started(reader, sampling))


def test_one_answer_or_a_cache_without_keys_is_not_joined():
    reader, sampling = _reader("llama", 2), Sampling(max_new_tokens=2)
    started = _started(reader, sampling)
    assert not can_join(reader, started[:1])
    started[0].caches[1].layers[0] = object()
    assert not can_join(reader, started)
