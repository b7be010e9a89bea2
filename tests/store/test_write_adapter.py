"""A store written through a Write adapter: its bytes, its fingerprint, what finds the adapter again."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from comem_cli.errors import FingerprintError
from comem_cli.model import load, lora
from comem_cli.model.adapter import RECORD, Interface, read_adapter, record_of
from comem_cli.model.split import SplitModel
from comem_cli.store.reader import StoreReader
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.write_adapter import adapter_for_write, writing_model
from tests.tiny import save_tiny
from tests.tiny_store import CHUNK, SPLIT, make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a store written through an adapter with random weights, and the adapter."""
    folder = tmp_path_factory.mktemp("write_adapter")
    files = load.resolve(str(save_tiny(folder / "model", layers=6, initializer_range=0.2)))
    model = load.load(files, torch.device("cpu"), torch.float32)
    forked = lora.fork(model)
    config = lora.lora_config(model, 0, SPLIT, 2, 4)
    generator = torch.Generator().manual_seed(0)
    for _, weight in lora.inject(forked, config):
        weight.data.normal_(std=0.2, generator=generator)
    (folder / "adapter").mkdir()
    lora.save_weights(folder / "adapter", forked, config, "tiny")
    here = Interface.of(load.identity(files), split=SPLIT, chunk=CHUNK, mode="chunk", overlap=0)
    (folder / "adapter" / RECORD).write_text(json.dumps(record_of("write", here, 2, 4)))
    store = make_store(folder, model=folder / "model", write_adapter=str(folder / "adapter"))
    return store, read_adapter(folder / "adapter"), forked, model


def stored(reader, chunk):
    rows = bytearray(chunk.n_tokens * reader.width * 2)
    reader.fetch([chunk.id], memoryview(rows))
    return torch.frombuffer(rows, dtype=torch.bfloat16).view(-1, reader.width).float()


@torch.no_grad()
def test_chunks_are_those_of_the_unmerged_adapter_and_not_of_the_stock_model(made):
    store, adapter, forked, model = made
    with StoreReader(store.path) as reader:
        assert reader.fingerprint.write_adapter == adapter.digest
        for chunk in reader.iter_chunks():
            ids = torch.from_numpy(np.frombuffer(chunk.ids, "<u4").astype(np.int64))[None]
            wanted, stock = (SplitModel(m, SPLIT).lower(ids)[0] for m in (forked, model))
            rows = stored(reader, chunk)
            assert torch.allclose(rows, wanted, rtol=2**-8, atol=1e-4)
            assert not torch.allclose(rows, stock, rtol=0.05, atol=0.05)


def test_a_stored_adapter_is_found_in_the_cache_or_asked_for(made, tmp_path, monkeypatch):
    store, adapter, _, model = made
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path))
    open_again = partial(WriteSetup, store.path, store.files)
    with pytest.raises(FingerprintError, match="which is not in"):
        open_again(WriteOptions(device="cpu"))
    with pytest.raises(FingerprintError):
        writing_model(model, adapter.digest)
    shutil.copytree(adapter.directory, tmp_path / "adapters" / "w")
    assert open_again(WriteOptions(device="cpu")).fingerprint.write_adapter == adapter.digest
    assert writing_model(model, adapter.digest) is not model
    assert writing_model(model, "none") is model


def test_a_store_refuses_another_write_adapter_by_field(made):
    store, adapter, _, _ = made
    with pytest.raises(FingerprintError, match=f"write_adapter {adapter.digest}, not none"):
        WriteSetup(store.path, store.files, WriteOptions(device="cpu", write_adapter="none"))
    with pytest.raises(FingerprintError, match="split 2, not 3"):
        asked = WriteOptions(device="cpu", split=3, write_adapter=str(adapter.directory))
        WriteSetup(store.path.with_name("new"), store.files, asked)
    assert adapter_for_write(None, "none", adapter.interface) is None  # none is picked up by itself
