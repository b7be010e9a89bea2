"""Vectors of a store with a tiny random encoder, against Transformers and plain products."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from comem_cli.errors import IndexStaleError, ModelError
from comem_cli.model import load
from comem_cli.select.encoder import SentenceEncoder, find_encoder
from comem_cli.select.selector import decode_ids
from comem_cli.select.store_index import IndexFolder, rebuild_index, rebuild_vectors
from comem_cli.select.terms import TOKENS
from comem_cli.select.vectors import DIGITS, OWNERS, ROWS, build_vectors, open_vectors, vectors_path
from comem_cli.store.reader import INDEX_DIR, StoreReader
from comem_cli.store.writer import StoreWriter
from tests.tiny import tiny_tokenizer
from tests.tiny_store import make_store

LONGEST = 24


def save_encoder(folder, pooling="mean", seed=0, **extra):
    """A random BERT of 2 layers in the layout of sentence-transformers, with the tiny tokenizer."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(BertConfig(vocab_size=512, max_position_embeddings=64, initializer_range=0.3, **sizes))
    model.save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    module = "sentence_transformers.models."
    modules = [{"type": f"{module}Transformer", "path": ""}, {"type": f"{module}Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules + extra.get("modules", [])))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == {"mean": "mean_tokens", "cls": "cls_token"}.get(pooling, pooling)
             for name in ("mean_tokens", "cls_token", "max_tokens", "lasttoken")}  # fmt: skip
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": extra.get("prompts", {})}))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(find_encoder(str(save_encoder(tmp_path_factory.mktemp("encoder")))))


@pytest.fixture
def store(tmp_path, encoder):
    made = make_store(tmp_path)
    with StoreWriter.open(made.path) as writer:
        assert rebuild_vectors(writer, encoder, load.tokenizer(made.files)) > 1
    return made


def windows(text):
    ids = tiny_tokenizer().encode(text).ids
    return [ids[start : start + LONGEST] for start in range(0, len(ids), LONGEST)]


def reference(folder, window, pooling):
    """One window, alone, without padding."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([window])).last_hidden_state[0]
    pooled = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling]
    return (pooled / pooled.norm()).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_windows_of_a_padded_batch_equal_each_one_alone(tmp_path, pooling):
    folder = save_encoder(tmp_path, pooling)
    texts = ["the pilots", "The harbour master keeps a ledger of every vessel that enters the northern basin. " * 3]
    vectors, owners = SentenceEncoder(find_encoder(str(folder))).encode(texts)
    expected = [(number, window) for number, text in enumerate(texts) for window in windows(text)]
    assert owners == [number for number, _ in expected] and len(owners) > 3
    for vector, (_, window) in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(reference(folder, window, pooling), abs=1e-5)


def test_a_query_gets_its_prompt(tmp_path):
    made = SentenceEncoder(find_encoder(str(save_encoder(tmp_path, prompts={"query": "ask: ", "passage": "read: "}))))
    assert np.array_equal(made.encode(["gate"], "query")[0], made.encode(["gate"], "query")[0])
    plain = SentenceEncoder(find_encoder(str(save_encoder(tmp_path))))
    assert made.encode(["gate"], "query")[0] == pytest.approx(plain.encode(["ask: gate"])[0], abs=1e-6)
    assert made.encode(["gate"])[0] == pytest.approx(plain.encode(["read: gate"])[0], abs=1e-6)


def test_what_an_encoder_cannot_be_is_refused(tmp_path):
    with pytest.raises(ModelError, match="Dense"):
        dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
        find_encoder(str(save_encoder(tmp_path / "a", modules=[dense])))
    with pytest.raises(ModelError, match="max_tokens"):
        find_encoder(str(save_encoder(tmp_path / "b", "max_tokens")))


def test_a_chunk_scores_as_its_best_window_and_the_search_is_exact(store, encoder):
    tokenizer = load.tokenizer(store.files)
    question, _ = encoder.encode(["which pilots wait?"], "query")
    with StoreReader(store.path) as reader:
        expected = {}
        for chunk in reader.iter_chunks():
            rows, _ = encoder.encode([tokenizer.decode(list(decode_ids(chunk.ids)))])
            expected[chunk.id] = float((rows @ question[0]).max())
        vectors = open_vectors(reader)
        found = vectors.search("which pilots wait?", len(expected))
        best = max(expected, key=expected.__getitem__)
        rest = vectors.search("which pilots wait?", 1, exclude=[best])
    assert {hit.chunk_id: hit.score for hit in found} == pytest.approx(expected, abs=2 * 10**-DIGITS)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert rest[0].chunk_id != best and vectors.search("pilots", 0) == []


def test_chunks_that_tie_with_the_last_are_all_given(tmp_path, encoder):
    class Reader:
        path, content = tmp_path, "same"

    build_vectors(tmp_path, encoder, [(number, "the same words") for number in (9, 4, 7)], "same")
    assert {hit.chunk_id for hit in open_vectors(Reader()).search("words", 1)} == {4, 7, 9}


def test_vectors_of_other_content_or_another_encoder_or_with_damage_are_stale(store, encoder):
    with StoreReader(store.path) as reader:
        path = vectors_path(reader)
        for name in (ROWS, OWNERS):
            whole = (path / name).read_bytes()
            (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            with pytest.raises(IndexStaleError, match="damaged") as caught:
                open_vectors(reader)
            assert caught.value.hint == f"comem index {store.path} --dense {encoder.files.spec}"
            (path / name).write_bytes(whole)
        open_vectors(reader)
        meta = json.loads((path / "meta.json").read_text())
        for field, said in (("content", "older"), ("encoder", "another version")):
            (path / "meta.json").write_text(json.dumps(meta | {field: "other"}))
            with pytest.raises(IndexStaleError, match=said):
                open_vectors(reader)
        (path / "meta.json").write_text("{")
        with pytest.raises(IndexStaleError):
            open_vectors(reader)


def test_vectors_stay_through_a_rebuild_of_the_index_and_go_with_their_content(store):
    with StoreWriter.open(store.path) as writer:
        rebuild_index(writer, TOKENS)
    with StoreReader(store.path) as reader:
        assert vectors_path(reader).stat().st_mode & 0o777 == 0o700
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in vectors_path(reader).iterdir())
    IndexFolder(store.path, TOKENS).keep_only("other")
    assert list((store.path / INDEX_DIR).iterdir()) == []
    with StoreReader(store.path) as reader, pytest.raises(IndexStaleError, match="no vectors"):
        vectors_path(reader)
