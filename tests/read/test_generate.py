"""Decoding over a pack: why it ends, how tokens are drawn, what is measured."""

import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.model.split import SplitModel
from comem_cli.read.generate import Reader, Sampling
from tests.read import stock
from tests.tiny import BOS_ID, tiny_model

CHUNKS = ([5, 6, 7, 8, 9, 10, 11], [40, 41, 42], [300, 301, 302, 303])
QUERY = [90, 91, 92, 93]
SPLIT = 2


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", 4, initializer_range=0.2)


@pytest.fixture(scope="module")
def chunks(model):
    with torch.inference_mode():
        return [stock.residuals(model, ids, SPLIT) for ids in CHUNKS]


@pytest.fixture(scope="module")
def reader(model):
    return Reader(SplitModel(model, SPLIT), BOS_ID)


@pytest.fixture(scope="module")
def greedy(model, chunks):
    return stock.greedy(model, SPLIT, chunks, QUERY, 12, bos=BOS_ID)


def read(reader, chunks, **sampling):
    return reader.generate(torch.cat(chunks), QUERY, Sampling(**sampling))


def test_greedy_decoding_equals_the_stock_layers_recomputed_for_every_token(reader, chunks, greedy):
    done = read(reader, chunks, max_new_tokens=12)
    assert done.ids == greedy
    assert done.finish == "length"
    assert done.pack_tokens == 1 + sum(map(len, CHUNKS)) + len(QUERY)


def test_an_end_of_sequence_id_ends_the_answer_and_is_left_out(reader, chunks, greedy):
    done = read(reader, chunks, max_new_tokens=12, eos_ids=(511, greedy[3]))
    assert done.ids == greedy[: greedy.index(greedy[3])]
    assert done.finish == "eos"


def test_an_end_of_sequence_id_as_first_token_gives_an_empty_answer(reader, chunks, greedy):
    done = read(reader, chunks, eos_ids=(greedy[0],))
    assert (done.ids, done.finish) == ([], "eos")


def test_the_listener_gets_every_id_and_can_stop(reader, chunks, greedy):
    seen = []

    def listen(token):
        seen.append(token)
        return len(seen) == 5

    done = reader.generate(torch.cat(chunks), QUERY, Sampling(max_new_tokens=12), listen)
    assert seen == done.ids == greedy[:5]
    assert done.finish == "stop"


def test_one_new_token_needs_no_decode_step(reader, chunks, greedy):
    assert read(reader, chunks, max_new_tokens=1).ids == greedy[:1]


def test_a_seed_reproduces_a_draw_and_another_seed_gives_another(reader, chunks):
    drawn = [read(reader, chunks, max_new_tokens=12, temperature=1.5, seed=seed).ids for seed in (7, 7, 8, 9)]
    assert drawn[0] == drawn[1]
    assert len({tuple(ids) for ids in drawn}) == 3


def test_drawing_leaves_the_global_generator_alone(reader, chunks):
    before = torch.get_rng_state()
    read(reader, chunks, max_new_tokens=3, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_tiny_nucleus_or_a_tiny_temperature_is_greedy(reader, chunks, greedy):
    assert read(reader, chunks, max_new_tokens=12, temperature=5.0, top_p=1e-6).ids == greedy
    assert read(reader, chunks, max_new_tokens=12, temperature=1e-4, seed=3).ids == greedy


def test_draws_follow_the_distribution_of_the_stock_layers(model, reader, chunks):
    with torch.inference_mode():
        pack = torch.cat([stock.residuals(model, [BOS_ID], SPLIT), *chunks, stock.residuals(model, QUERY, SPLIT)])
        n = len(pack)
        causal = [[k <= q for k in range(n)] for q in range(n)]
        wanted = torch.softmax(stock.upper_logits(model, pack, SPLIT, range(n), causal)[-1] / 0.5, -1)
    best = int(wanted.argmax())
    drawn = [read(reader, chunks, max_new_tokens=1, temperature=0.5, seed=seed).ids[0] for seed in range(200)]
    p = float(wanted[best])
    assert abs(drawn.count(best) / 200 - p) <= 4 * (p * (1 - p) / 200) ** 0.5


def test_a_question_without_tokens_is_refused(reader, chunks):
    with pytest.raises(UsageError, match="no tokens"):
        reader.generate(torch.cat(chunks), [], Sampling())


def test_every_timing_boundary_is_reported_once(reader, chunks):
    timing = read(reader, chunks, max_new_tokens=3).timing_ms
    assert list(timing) == ["fetch", "query_write", "read", "decode"]
    assert all(ms >= 0 for ms in timing.values())
