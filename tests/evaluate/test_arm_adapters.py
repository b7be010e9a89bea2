"""Arms that read or write through an adapter: refused by field, read as `ask` reads, part of a record's identity."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from comem_cli.errors import FingerprintError, UsageError
from comem_cli.evaluate.arm_adapters import NO_ADAPTERS, Forks, adapters_of
from comem_cli.evaluate.arm_writer import ArmWriter
from comem_cli.evaluate.arms import REPLAY, Arm, parse_arm
from comem_cli.model import load, lora
from comem_cli.model.adapter import RECORD, Interface, read_adapter, record_of
from comem_cli.model.split import SplitModel
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import term_scheme
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from tests.evaluate.test_runner import OPTIONS, make_cell, run, silent
from tests.tiny import save_tiny

LAYERS, SPLIT, CHUNK = 6, 2, 32


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> load.ModelFiles:
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model"), initializer_range=0.2)))


def make_adapter(folder: Path, files: load.ModelFiles, kind: str = "suffix", seed: int = 3, **values: Any) -> Path:
    """Write an adapter with random weights for chunk mode at split 2."""
    folder.mkdir(parents=True)
    forked = lora.fork(load.load(files, torch.device("cpu"), torch.float32))
    first, last = (SPLIT, LAYERS) if kind == "suffix" else (0, SPLIT)
    config = lora.lora_config(forked, first, last, 4, 8)
    generator = torch.Generator().manual_seed(seed)
    for _, weight in lora.inject(forked, config):
        weight.data.normal_(std=0.2, generator=generator)
    lora.save_weights(folder, forked, config, "tiny")
    given = {"split": SPLIT, "chunk": CHUNK, "mode": "chunk", "overlap": 0, **values}
    interface = Interface.of(load.identity(files), **given)
    (folder / RECORD).write_text(json.dumps(record_of(kind, interface, 4, 8)))
    return folder


@pytest.fixture(scope="module")
def suffix(files: load.ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("suffix") / "a", files)


@pytest.fixture(scope="module")
def write(files: load.ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("write") / "w", files, "write")


def test_a_spec_with_both_adapters_is_read_and_named(suffix: Path, write: Path) -> None:
    spec = f"comem:j=2,mode=chunk,adapter={suffix},write_adapter={write}"
    assert parse_arm(spec) == Arm(2, adapter=suffix, write_adapter=write)
    assert parse_arm(spec).spec == spec
    with pytest.raises(UsageError):
        parse_arm(f"replay:write_adapter={write}")


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (Arm(3), "split 2, not 3"),
        (Arm(2, "document"), "mode chunk, not document"),
        (Arm(2, "overlap", 8), "overlap 0, not 8"),
    ],
)
def test_an_adapter_of_another_interface_is_refused_by_field(
    files: load.ModelFiles, suffix: Path, arm: Arm, said: str
) -> None:
    with pytest.raises(FingerprintError) as refused:
        adapters_of(replace(arm, adapter=suffix), load.identity(files), CHUNK)
    assert said in refused.value.message


def test_other_chunks_kinds_and_models_are_refused(files: load.ModelFiles, suffix: Path, write: Path) -> None:
    identity = load.identity(files)
    with pytest.raises(FingerprintError, match="chunk 32, not 48"):
        adapters_of(Arm(2, adapter=suffix), identity, 48)
    with pytest.raises(FingerprintError, match="kind write, not suffix"):
        adapters_of(Arm(2, adapter=write), identity, CHUNK)
    with pytest.raises(FingerprintError, match="kind suffix, not write"):
        adapters_of(Arm(2, write_adapter=suffix), identity, CHUNK)
    with pytest.raises(FingerprintError, match=r"weights .*, not other"):
        adapters_of(Arm(adapter=suffix), replace(identity, weights="other"), CHUNK)
    with pytest.raises(UsageError, match="is no adapter"):
        adapters_of(Arm(2, adapter=Path("none")), identity, CHUNK)
    assert adapters_of(Arm(adapter=suffix), identity, 48).suffix is not None  # replay has no interface to miss


def test_a_wrong_adapter_ends_a_run_before_it_begins(files: load.ModelFiles, suffix: Path, tmp_path: Path) -> None:
    with pytest.raises(FingerprintError, match="split 2, not 4"):
        run(files, tmp_path / "r.jsonl", make_cell(shared=True), [Arm(4, adapter=suffix)])


def test_an_adapted_arm_answers_as_ask_does_with_the_adapter(
    files: load.ModelFiles, suffix: Path, write: Path, tmp_path: Path
) -> None:
    cell = make_cell(shared=True, count=2, max_new_tokens=6, scorer="exact_match")
    (tmp_path / "docs").mkdir()
    for document in cell.examples[0].documents:
        (tmp_path / "docs" / document.name).write_text(document.text)
    arms = [Arm(2), Arm(2, adapter=suffix), Arm(adapter=suffix), Arm(2, adapter=suffix, write_adapter=write)]
    records = run(files, tmp_path / "r.jsonl", cell, [REPLAY, *arms])
    said = {(r.arm, r.example): r.prediction.strip() for r in records}
    for write_adapter, comem in ((None, arms[1]), (str(write), arms[3])):
        store = tmp_path / f"store-{write_adapter is not None}"
        chosen = WriteOptions(split=2, chunk=CHUNK, device="cpu", dtype="fp32", write_adapter=write_adapter)
        ingest = IngestRun(store, files, chosen)
        ignored: dict[str, Any] = {n: lambda *a: None for n in ("on_plan", "on_event", "on_bytes", "on_load")}
        with ingest.open() as writer:
            ingest.ingest(writer, [tmp_path / "docs"], **ignored)
            rebuild_index(writer, term_scheme(OPTIONS.terms, load.tokenizer(files)))
        options = AskOptions(
            top_k=4, hop=2, rounds=2, max_new_tokens=6, stop=(), device="cpu", dtype="fp32", arm="both",
            template="\n\nQuestion: {question}\nAnswer:", adapter=str(suffix), replay_adapter="on",
        ).checked()  # fmt: skip
        with Asker(store, lambda: files, options, note=silent, warn=silent) as asker:
            for example in cell.examples:
                asked = {answer.arm: answer.text for answer in asker.ask(example.question).answers}
                assert said[comem.spec, example.id] == asked["comem"]
                assert said[arms[2].spec, example.id] == asked["replay"]
    texts = [[said[arm.spec, example.id] for example in cell.examples] for arm in arms]
    assert len({tuple(some) for some in texts}) == len(arms)  # the adapters do something


def test_the_weights_of_an_adapter_are_part_of_a_records_identity(files: load.ModelFiles, tmp_path: Path) -> None:
    cell = make_cell(shared=True, count=1)
    folder = make_adapter(tmp_path / "a", files)
    arm = Arm(2, adapter=folder)
    first = run(files, tmp_path / "r.jsonl", cell, [REPLAY, Arm(2), arm])
    assert run(files, tmp_path / "r.jsonl", cell, [REPLAY, Arm(2), arm]) == first
    other = make_adapter(tmp_path / "other", files, seed=4)
    for path in other.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    assert run(files, tmp_path / "r.jsonl", cell, [REPLAY, Arm(2)]) == first[:2]
    with pytest.raises(UsageError, match="other settings"):
        run(files, tmp_path / "r.jsonl", cell, [REPLAY, arm])


def test_identities_of_arms_without_adapter_stay_those_of_earlier_runs(files: load.ModelFiles, tmp_path: Path) -> None:
    """Recompute the digest as it was before arms could carry an adapter: their records must stay valid."""
    import hashlib

    from comem_cli.select.terms import IDENTITIES

    records = run(files, tmp_path / "r.jsonl", make_cell(shared=True, count=1), [REPLAY, Arm(2, "overlap", 8)])
    model = load.identity(files)
    for record in records:
        head = [model.weights, model.config, model.tokenizer, model.bos_id]
        rest = [record.arm, "bm25-iterative", 4, 2, 2, IDENTITIES[OPTIONS.terms], 32, None, "torch.float32", "cpu"]
        assert record.identity == hashlib.blake2b(json.dumps([*head, *rest]).encode(), digest_size=8).hexdigest()


def test_a_fork_is_merged_once_and_the_stock_model_stays(files: load.ModelFiles, suffix: Path) -> None:
    model = load.load(files, torch.device("cpu"), torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    forks, adapter = Forks(model), read_adapter(suffix)
    assert forks.of(adapter) is forks.of(adapter)
    assert forks.of(None) is model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@torch.no_grad()
def test_rows_are_those_of_a_plain_forward_through_the_write_adapter(files: load.ModelFiles, write: Path) -> None:
    model, identity = load.load(files, torch.device("cpu"), torch.float32), load.identity(files)
    ids = torch.arange(3, 35, dtype=torch.int32)
    document = [ids.numpy().tobytes()]
    arm = Arm(2, write_adapter=write)
    found = ArmWriter(arm, Forks(model), identity, CHUNK, adapters_of(arm, identity, CHUNK)).rows([document])
    plain = ArmWriter(Arm(2), Forks(model), identity, CHUNK, NO_ADAPTERS).rows([document])
    wanted = SplitModel(lora.adapted(model, read_adapter(write)), SPLIT).lower(ids.long()[None])[0]
    assert torch.allclose(found.float(), wanted, rtol=2**-7, atol=1e-3)
    assert not torch.allclose(found.float(), plain.float(), rtol=2**-7, atol=1e-3)
