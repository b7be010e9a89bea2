"""Every write mode on every family: residuals against stock forwards, keys, and bits that no run order changes."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.measure import contracts
from comem_cli.model.document import DocumentStream
from comem_cli.model.modes import ChunkMode, DocumentMode, OverlapMode, make_mode
from comem_cli.model.split import SplitModel
from comem_cli.store.fingerprint import chunk_key
from tests.tiny import FAMILIES, tiny_model

LAYERS = 6
CHUNK = 32
WINDOW = 80
KEY = partial(chunk_key, "00" * 16)
MODES = [ChunkMode(), OverlapMode(8), OverlapMode(3 * CHUNK), DocumentMode(WINDOW), DocumentMode(CHUNK)]


def ids(n: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(3, 500, n).astype("<u4").tobytes()


DOCUMENT = [ids(CHUNK, 1), ids(CHUNK, 2), ids(CHUNK, 3), ids(CHUNK, 4), ids(11, 5)]
STARTS = [0, 32, 64, 96, 128, 139]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request):
    return tiny_model(request.param, LAYERS)


def written(mode, split, documents, skip=()):
    """Write documents the way a store does; `skip`: keys that it holds already."""
    routed = hasattr(split.model.config, "num_experts")
    writer = mode.writer(split, mode.shapes(CHUNK, 128, routed=routed))
    found = {}
    for document in documents:
        for chunk in mode.pending(document, KEY):
            if chunk.key not in skip:
                found.update((p.key, rows) for p, rows in writer.add(chunk))
    found.update((p.key, rows) for p, rows in writer.flush())
    return found


def visible(mode, number: int) -> int:
    """Return the first token that chunk `number` may see, by the definition of each mode."""
    start = STARTS[number]
    if isinstance(mode, DocumentMode):
        return max(0, start - (mode.window - CHUNK))
    return max(0, start - mode.left)


def reference(model, mode, split: int) -> list[torch.Tensor]:
    """Compute every chunk's h_j from stock forwards with an explicit mask, or with the tokens cut out."""
    tokens = torch.from_numpy(np.frombuffer(b"".join(DOCUMENT), "<u4").astype(np.int64))[None]
    if not isinstance(mode, DocumentMode):
        halves = SplitModel(model, split)
        return [
            halves.lower(tokens[:, visible(mode, i) : STARTS[i + 1]])[0, STARTS[i] - visible(mode, i) :]
            for i in range(len(DOCUMENT))
        ]
    total = tokens.shape[1]
    full = torch.zeros(total, total, dtype=torch.bool)
    for i in range(len(DOCUMENT)):
        full[STARTS[i] : STARTS[i + 1], visible(mode, i) :] = True
    full &= torch.ones_like(full).tril()
    mask = full[None, None]
    if model.config.model_type == "gemma3_text":  # a sliding layer keeps its own window, whatever the full layers drop
        sliding = torch.ones_like(full).tril().triu(1 - model.config.sliding_window)
        mask = {"full_attention": mask, "sliding_attention": sliding[None, None]}
    base = model.base_model
    out = base(tokens, attention_mask=mask, position_ids=torch.arange(total)[None], output_hidden_states=True)
    h = out.hidden_states[split][0]
    return [h[STARTS[i] : STARTS[i + 1]] for i in range(len(DOCUMENT))]


@pytest.mark.parametrize("split", [1, 3, 5])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mode_stores_what_a_stock_forward_with_its_context_gives(model, mode, split):
    halves = SplitModel(model, split)
    rows = written(mode, halves, [DOCUMENT])
    with torch.inference_mode():
        wanted = reference(model, mode, split)
    scale = max(float(h.abs().max()) for h in wanted)
    for chunk, h in zip(mode.pending(DOCUMENT, KEY), wanted, strict=True):
        assert len(rows[chunk.key]) == len(chunk.ids) // 4 * halves.width * 2  # exactly c residuals a chunk
        got = torch.frombuffer(bytearray(rows[chunk.key]), dtype=torch.bfloat16).view(-1, halves.width).float()
        assert torch.allclose(got, h, rtol=2**-8, atol=2e-5 * scale)  # half a bf16 step, and fp32 noise


@pytest.mark.parametrize("split", [0, 2, 5])
def test_document_mode_equals_slices_of_one_forward(model, split):
    assert contracts.document_error(model, DOCUMENT, split, window=256) <= 1e-5


@pytest.mark.parametrize("split", [0, 2, 5])
def test_overlap_that_reaches_the_beginning_equals_slices_of_one_forward(model, split):
    assert contracts.overlap_error(model, DOCUMENT, split) <= 1e-5


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_resume_writes_the_same_bits(model, mode):
    split = SplitModel(model, 3)
    other = [DOCUMENT[0], DOCUMENT[1], ids(CHUNK, 9)]
    whole = written(mode, split, [DOCUMENT, other])
    keys = [chunk.key for chunk in mode.pending(DOCUMENT, KEY)]
    for stored in (keys[:2], keys[1:3], keys[:4]):
        rest = written(mode, split, [other, DOCUMENT], skip=stored)
        assert rest == {key: rows for key, rows in whole.items() if key not in stored}


def test_document_mode_computes_every_token_once(monkeypatch):
    split = SplitModel(tiny_model("llama", 4), 2)
    steps = []
    real = DocumentStream.step
    monkeypatch.setattr(DocumentStream, "step", lambda self, ids: steps.append(len(ids) // 4) or real(self, ids))
    written(DocumentMode(WINDOW), split, [DOCUMENT])
    assert steps == [32, 32, 32, 32, 11]


def test_after_an_error_the_writer_begins_the_document_again(monkeypatch):
    split = SplitModel(tiny_model("llama", 4), 2)
    mode = DocumentMode(WINDOW)
    chunks = mode.pending(DOCUMENT, KEY)
    writer = mode.writer(split, mode.shapes(CHUNK, 128, routed=False))
    first = dict(writer.add(chunks[0]))
    with monkeypatch.context() as patch:
        patch.setattr(DocumentStream, "step", lambda self, ids: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(writer.add(chunks[1]))
    again = {p.key: rows for p, rows in writer.add(chunks[1])}
    assert again == {chunks[1].key: written(mode, split, [DOCUMENT])[chunks[1].key]}
    assert len(first) == 1


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_changed_token_changes_the_keys_of_the_chunks_that_see_it_and_no_other(mode):
    before = [chunk.key for chunk in mode.pending(DOCUMENT, KEY)]
    for at in (0, 31, 32, 63, 100, 130):
        text = bytearray(b"".join(DOCUMENT))
        text[4 * at] ^= 1
        edited = [bytes(text[4 * a : 4 * b]) for a, b in pairwise(STARTS)]
        after = [chunk.key for chunk in mode.pending(edited, KEY)]
        for i in range(len(DOCUMENT)):
            first = 0 if isinstance(mode, DocumentMode) else visible(mode, i)  # deeper layers carry it past the window
            assert (before[i] != after[i]) == (first <= at < STARTS[i + 1])


def test_keys_of_chunk_mode_and_of_overlap_zero_are_those_of_the_ids_alone():
    keys = [KEY(b"", ids) for ids in DOCUMENT]
    assert [chunk.key for chunk in ChunkMode().pending(DOCUMENT, KEY)] == keys
    assert [chunk.key for chunk in OverlapMode(0).pending(DOCUMENT, KEY)] == keys


def test_pending_chunks_of_a_long_document_hold_no_more_than_its_ids():
    document = [ids(CHUNK, 1)] * 20_000
    chunks = DocumentMode(WINDOW).pending(document, KEY)
    assert all(chunk.left == b"" and chunk.ids is document[0] for chunk in chunks)
    assert chunks[-1].previous is chunks[-2]
    assert len(repr(chunks[-1])) < 1000


def test_forwards_count_context_and_new_tokens():
    lengths = [32, 32, 32, 32, 11]
    assert ChunkMode().forwards(lengths) == [(0, 32)] * 4 + [(0, 11)]
    assert OverlapMode(40).forwards(lengths) == [(0, 32), (0, 64), (0, 72), (0, 72), (0, 51)]
    assert DocumentMode(80).forwards(lengths) == [(0, 32), (32, 32), (48, 32), (48, 32), (48, 11)]
    assert DocumentMode(80).forwards([]) == []


def test_a_mode_is_made_from_what_the_fingerprint_says():
    assert make_mode("chunk", 0, 512) == ChunkMode()
    assert make_mode("overlap", 32, 512) == OverlapMode(32)
    assert make_mode("document", 0, 512) == DocumentMode(512)


@pytest.mark.parametrize(("name", "overlap"), [("chunk", 8), ("document", 8), ("overlap", 0), ("chunks", 0)])
def test_a_mode_that_contradicts_itself_is_a_usage_error(name, overlap):
    with pytest.raises(UsageError):
        make_mode(name, overlap, 512)
