"""Batched Write against stock forwards of one chunk, and the independence of a chunk from its batch."""

import numpy as np
import pytest
import torch

from comem_cli.measure import contracts
from comem_cli.model.shapes import (
    TOKENS_PER_BATCH,
    Pending,
    Shape,
    batch_shapes,
    shape_of,
    shapes_from_json,
    shapes_to_json,
)
from comem_cli.model.split import SplitModel
from comem_cli.model.write import BatchWriter
from tests.tiny import FAMILIES, tiny_model

CHUNK = 64
SPLIT = 3


def ids(n: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(3, 500, n).astype("<u4").tobytes()


CHUNKS = [ids(n, n) for n in (64, 64, 1, 33, 64, 16, 17, 64, 48, 5, 64, 9, 64)]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request):
    return tiny_model(request.param, 6)


def shapes_for(model) -> tuple[Shape, ...]:
    return batch_shapes(CHUNK, 0, 256, routed=hasattr(model.config, "num_experts"))


def test_batched_write_equals_one_stock_forward_a_chunk(model):
    assert contracts.write_error(model, CHUNKS, shapes_for(model), SPLIT) <= 1e-5


def test_neighbours_and_order_change_no_bit(model):
    assert contracts.write_bits_changed(SplitModel(model, SPLIT), CHUNKS, shapes_for(model)) == 0


def test_neighbours_and_order_change_no_bit_in_bf16(model):
    half = tiny_model(model.config.model_type, 6).to(torch.bfloat16)
    assert contracts.write_bits_changed(SplitModel(half, SPLIT), CHUNKS, shapes_for(model)) == 0


def test_left_context_is_seen_and_dropped():
    split = SplitModel(tiny_model("llama", 6), SPLIT)
    writer = BatchWriter(split, [Shape(1, 96)])
    left, chunk = ids(32, 1), ids(64, 2)
    [(_, rows)] = list(writer.add(Pending("k", chunk, left)))
    whole = torch.from_numpy(np.frombuffer(left + chunk, "<u4").astype(np.int64))[None]
    with torch.inference_mode():
        stock = split.lower(whole)[0, 32:].to(torch.bfloat16)
    got = torch.frombuffer(bytearray(rows), dtype=torch.bfloat16).view(64, -1)
    assert (got.float() - stock.float()).abs().max() <= 2**-7 * stock.float().abs().max()


def test_every_chunk_comes_out_once_with_its_own_length():
    split = SplitModel(tiny_model("llama", 6), SPLIT)
    writer = BatchWriter(split, batch_shapes(CHUNK, 0, 256))
    out = [pair for n, c in enumerate(CHUNKS) for pair in writer.add(Pending(str(n), c))]
    out += list(writer.flush())
    assert sorted(int(p.key) for p, _ in out) == list(range(len(CHUNKS)))
    assert all(len(rows) == len(p.ids) // 4 * split.width * 2 for p, rows in out)
    assert list(writer.flush()) == []


def test_a_shape_follows_from_the_length_alone():
    assert [s.length for s in batch_shapes(512, 0, 2048)] == [64, 128, 192, 256, 320, 384, 448, 512]
    assert [s.batch for s in batch_shapes(512, 0, 2048)] == [8, 4, 3, 2, 2, 1, 1, 4]
    assert {s.batch for s in batch_shapes(512, 32, 2048, routed=True)} == {1}
    assert [s.batch for s in batch_shapes(512, 32, 2048) if s.length in (512, 544)] == [4, 4]
    assert batch_shapes(512, 32, 2048)[-1].length == 544


@pytest.mark.parametrize(("left", "bound"), [(0, 1.03), (32, 1.03 * 1.05 * (1 + 32 / 512))])
def test_padding_costs_little_on_a_cpu_even_for_few_documents(left, bound):
    """Tokens of all batches / tokens that are kept, of the documents that `bench write` makes of 16 chunks."""
    kept, ran, waiting = 0, 0, {}
    shapes = batch_shapes(512, left, TOKENS_PER_BATCH["cpu"])
    for length in (2142, 2082, 2057, 1936):
        for start in range(0, length, 512):
            own = min(512, length - start)
            kept += own
            shape = shape_of(Pending("k", b"1234" * own, b"1234" * min(left, start)), shapes)
            waiting[shape] = waiting.get(shape, 0) + 1
    for shape, count in waiting.items():
        ran += -(-count // shape.batch) * shape.batch * shape.length
    assert kept < ran <= bound * kept


def test_shapes_survive_the_fingerprint():
    shapes = batch_shapes(512, 0, 2048)
    assert shapes_from_json(shapes_to_json(shapes)) == shapes
