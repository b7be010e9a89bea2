"""How mode, overlap, chunk and split are settled, and what an existing store refuses."""

from __future__ import annotations

import pytest

from comem_cli.errors import CorruptStoreError, FingerprintError, ModelError, UsageError
from comem_cli.model import load
from comem_cli.model.modes import ChunkMode, DocumentMode, OverlapMode
from comem_cli.model.shapes import shapes_from_json
from comem_cli.store.reader import StoreReader
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.writer import StoreWriter
from tests.tiny import save_tiny
from tests.tiny_store import write_sources

WINDOW = 512


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model") / "tiny")))


@pytest.fixture(scope="module")
def stored(tmp_path_factory, files):
    """Stores in each mode, split 2, chunk 40, fp32."""
    folder = tmp_path_factory.mktemp("stores")
    sources = write_sources(folder / "docs", 1)
    hooks = {name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
    for name, options in {"chunk": {}, "overlap": {"overlap": 8}, "document": {"mode": "document"}}.items():
        run = IngestRun(folder / name, files, WriteOptions(split=2, chunk=40, device="cpu", dtype="fp32", **options))
        with run.open() as writer:
            run.ingest(writer, [sources], **hooks)
    return folder


def setup(store, files, **options) -> WriteSetup:
    return WriteSetup(store, files, WriteOptions(device="cpu", **options))


def test_a_new_store_is_written_at_a_sixth_in_chunks_of_512_without_context(tmp_path, files):
    new = setup(tmp_path / "s", files)
    assert (new.fingerprint.split, new.fingerprint.chunk) == (1, 512)
    assert (new.fingerprint.mode, new.fingerprint.overlap) == ("chunk", 0)
    assert new.mode == ChunkMode()


def test_an_overlap_implies_its_mode_and_makes_room_in_the_shapes(tmp_path, files):
    new = setup(tmp_path / "s", files, chunk=64, overlap=100)
    assert (new.fingerprint.mode, new.fingerprint.overlap) == ("overlap", 100)
    assert new.mode == OverlapMode(100)
    lengths = [shape.length for shape in shapes_from_json(new.fingerprint.shapes)]
    assert lengths[-1] == 164 and 64 in lengths


def test_mode_document_runs_one_chunk_a_step_in_the_models_window(tmp_path, files):
    new = setup(tmp_path / "s", files, chunk=64, mode="document")
    assert (new.fingerprint.mode, new.fingerprint.overlap) == ("document", 0)
    assert new.mode == DocumentMode(WINDOW)
    assert new.fingerprint.shapes == "[[1,64]]"


@pytest.mark.parametrize("name", ["chunk", "overlap", "document"])
def test_an_existing_store_gives_its_own_settings(stored, files, name):
    again = setup(stored / name, files)
    assert again.fingerprint == again.stored.fingerprint
    assert again.fingerprint.mode == name


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("chunk", {"overlap": 8}, "--overlap 8"),
        ("chunk", {"mode": "document"}, "--mode document"),
        ("overlap", {"overlap": 0}, "--mode chunk"),
        ("overlap", {"overlap": 9}, "--overlap 9"),
        ("document", {"mode": "chunk"}, "--mode chunk"),
    ],
)
def test_another_mode_is_refused_with_the_command_that_rewrites(stored, files, name, options, hint):
    with pytest.raises(FingerprintError, match=f"written with mode {name}") as caught:
        setup(stored / name, files, **options)
    assert f"comem overlap-write {stored / name} {hint}" in caught.value.hint
    rewritten = WriteSetup(stored / name, files, WriteOptions(device="cpu", **options), rewrite=True)
    assert rewritten.fingerprint != rewritten.stored.fingerprint


def test_a_rewrite_may_change_nothing_but_the_mode(stored, files):
    with pytest.raises(FingerprintError, match="split 2, not 3"):
        WriteSetup(stored / "chunk", files, WriteOptions(split=3, mode="document"), rewrite=True)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "document", "overlap": 8},
        {"mode": "chunk", "overlap": 8},
        {"mode": "overlap"},
        {"mode": "words"},
        {"overlap": -1},
        {"chunk": 500, "overlap": 13},
        {"chunk": 0},
        {"chunk": 513},
        {"split": 7},
        {"split": 0, "overlap": 8},
        {"split": 0, "mode": "document"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_usage_errors(tmp_path, files, options):
    with pytest.raises(UsageError) as caught:
        setup(tmp_path / "s", files, **options)
    assert caught.value.hint


def test_the_store_keeps_its_dtype_unless_another_is_asked_for(stored, files):
    import torch

    assert setup(stored / "chunk", files).pick()[1] == torch.float32
    assert setup(stored / "chunk", files, dtype="bf16").pick()[1] == torch.bfloat16


def run(store, files, sources, **options):
    hooks = {name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
    job = IngestRun(store, files, WriteOptions(device="cpu", dtype="fp32", **{"split": 2, "chunk": 40, **options}))
    with job.open() as writer:
        return job.ingest(writer, [sources], **hooks)


def test_a_store_that_never_held_a_chunk_takes_another_model_and_other_settings(tmp_path, files):
    sources = write_sources(tmp_path / "docs", 1)
    other = load.resolve(str(save_tiny(tmp_path / "other", seed=1)))
    with pytest.raises(ModelError):
        run(tmp_path / "s", _damaged(tmp_path / "damaged"), sources)
    assert run(tmp_path / "s", other, sources, split=3, chunk=24).written_chunks > 0
    with pytest.raises(FingerprintError, match="weights"):
        run(tmp_path / "s", files, sources, split=3, chunk=24)


def _damaged(directory):
    weights = save_tiny(directory, seed=2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return load.resolve(str(directory))


def test_documents_whose_files_were_emptied_need_consent_like_those_that_vanished(tmp_path, files):
    sources = write_sources(tmp_path / "docs", 1)
    run(tmp_path / "s", files, sources)
    for file in sources.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(UsageError, match="would be removed"):
        run(tmp_path / "s", files, sources)
    with StoreReader(tmp_path / "s") as reader:
        before = reader.counts().documents
    assert before > 0
    assert run(tmp_path / "s", files, sources, yes=True).removed == before


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_unchanged_is_not_said_of_a_store_whose_residuals_are_gone(tmp_path, files, damage):
    sources = write_sources(tmp_path / "docs", 1)
    run(tmp_path / "s", files, sources)
    shard = tmp_path / "s" / "residuals" / "c" / "0" / "0"
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptStoreError, match="c/0/0 is missing or not"):
        run(tmp_path / "s", files, sources)


def test_stray_files_of_other_programs_stop_no_ingest(tmp_path, files):
    sources = write_sources(tmp_path / "docs", 1)
    run(tmp_path / "s", files, sources)
    (tmp_path / "s" / "residuals" / "c" / ".DS_Store").write_bytes(b"x")
    assert run(tmp_path / "s", files, sources).unchanged > 0


def test_a_store_that_lost_all_its_documents_keeps_its_settings_and_takes_others_if_asked(tmp_path, files):
    hooks = {name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
    sources = write_sources(tmp_path / "docs", 1)

    def ingest(**options) -> StoreReader:
        run = IngestRun(tmp_path / "s", files, WriteOptions(device="cpu", yes=True, **options))
        with run.open() as writer:
            run.ingest(writer, [sources], **hooks)
        return StoreReader(tmp_path / "s")

    def emptied() -> None:
        with StoreWriter.open(tmp_path / "s") as writer:
            writer.remove_documents([row.id for row in writer.documents()])
            writer.drop_unplaced()

    with ingest(split=2, chunk=40, dtype="fp32", overlap=8) as reader:
        first = reader.fingerprint
    emptied()
    with ingest() as reader:
        assert reader.fingerprint == first
    emptied()
    with ingest(split=3, chunk=32, mode="chunk") as reader:
        assert (reader.fingerprint.split, reader.fingerprint.chunk, reader.fingerprint.mode) == (3, 32, "chunk")
        assert reader.counts().chunks > 0
