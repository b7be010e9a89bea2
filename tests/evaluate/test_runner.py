from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.evaluate.arms import REPLAY, Arm, parse_arms
from comem_cli.evaluate.records import Record, RecordFile, read_records
from comem_cli.evaluate.runner import Runner, RunOptions
from comem_cli.evaluate.task import Cell, Document, Example, Span
from comem_cli.model import load
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import term_scheme
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from tests.tiny import save_tiny

WORDS = (
    "harbour",
    "basin",
    "lighthouse",
    "gate",
    "ledger",
    "pilots",
    "berth",
    "storm",
    "cargo",
    "draught",
    "vessel",
    "dusk",
)
ARMS = parse_arms(
    ["replay", "comem:j=2", "comem:j=2,overlap=8", "comem:j=2,mode=document", "comem:j=4,mode=document", "comem:j=6"]
)
OPTIONS = RunOptions(chunk=32, top_k=4, hop=2, rounds=2, device="cpu", dtype="fp32")


def text_of(topic: str, sentences: int = 9) -> str:
    return " ".join(f"Entry {n} about the {topic} and the {WORDS[n % 12]} at {n * 7}." for n in range(sentences))


def make_cell(*, shared: bool, count: int = 3, **values: Any) -> Cell:
    corpus = tuple(Document(f"{word}.txt", text_of(word)) for word in WORDS[:3])
    examples = []
    for number in range(count):
        topic = WORDS[number % 3]
        own = (Document("own.txt", text_of(topic, 12)),)
        documents = corpus if shared else own
        name = f"{topic}.txt" if shared else "own.txt"
        question = f"What about the {topic} at {number * 7}?"
        prompt = f"\n\nQuestion: {question}\nAnswer:"
        spans = (Span(name, 0, 20),)
        examples.append(Example(f"e{number}", documents, question, prompt, ("7", "e"), spans, group=topic))
    given = {"scorer": "string_match_all", "max_new_tokens": 5, **values}
    return Cell("made", "shared" if shared else "own", "test", examples=tuple(examples), **given)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> load.ModelFiles:
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model"), initializer_range=0.2)))


def silent(text: str) -> None:
    """Ignore a note."""


def run(
    files: load.ModelFiles, path: Path, cell: Cell, arms: Any = ARMS, options: RunOptions = OPTIONS
) -> list[Record]:
    with RecordFile(path) as records, Runner(files, arms, options, records, silent) as runner:
        return list(runner.run(cell))


def without_timing(records: list[Record]) -> list[Record]:
    return [replace(record, timing_ms={}) for record in records]


@pytest.mark.parametrize("shared", [True, False])
def test_every_example_and_arm_has_one_record_over_one_pack(
    files: load.ModelFiles, tmp_path: Path, shared: bool
) -> None:
    cell = make_cell(shared=shared)
    records = run(files, tmp_path / "r.jsonl", cell)
    assert [(r.example, r.arm) for r in records] == [(e.id, a.spec) for e in cell.examples for a in ARMS]
    assert list(read_records(tmp_path / "r.jsonl")) == records
    for example in cell.examples:
        mine = [r for r in records if r.example == example.id]
        assert len({(r.chunks, r.pack_tokens, r.hit, r.recall) for r in mine}) == 1
        assert 1 <= len(mine[0].chunks) <= 4
        assert all(r.group == example.group and r.cell == cell.name and r.cell_digest == cell.digest() for r in mine)
        for r in mine:
            gold = [a for a in example.answers if a.lower() in r.prediction.lower()]
            assert r.score == len(gold) / len(example.answers)
            assert {"select", "write", "query_write", "read", "decode"} == set(r.timing_ms)
            assert (r.arm == "replay") == (not r.extra)


@pytest.mark.parametrize(
    "arm", [*(a for a in ARMS if a.split < 6), Arm(2, residual_dtype="int8")], ids=lambda a: a.spec
)
def test_an_arm_answers_as_ask_does_over_a_store_written_in_its_mode(
    files: load.ModelFiles, tmp_path: Path, arm: Arm
) -> None:
    cell = make_cell(shared=True, count=2, max_new_tokens=6, scorer="exact_match")
    for document in cell.examples[0].documents:
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / document.name).write_text(document.text)
    mode = {"mode": None, "overlap": arm.overlap} if arm.overlap else {"mode": arm.mode, "overlap": None}
    mode["residual_dtype"] = "int8" if arm.residual_dtype == "int8" else None
    chosen = WriteOptions(split=arm.split, chunk=32, device="cpu", dtype="fp32", **mode)
    ingest = IngestRun(tmp_path / "store", files, chosen)
    ignored: dict[str, Any] = {n: lambda *a: None for n in ("on_plan", "on_event", "on_bytes", "on_load")}
    with ingest.open() as writer:
        ingest.ingest(writer, [tmp_path / "docs"], **ignored)
        rebuild_index(writer, term_scheme(OPTIONS.terms, load.tokenizer(files)))
    options = AskOptions(
        top_k=4, hop=2, rounds=2, max_new_tokens=6, stop=(), device="cpu", dtype="fp32",
        template="\n\nQuestion: {question}\nAnswer:",
    ).checked()  # fmt: skip
    records = run(files, tmp_path / "r.jsonl", cell, [arm])
    with Asker(tmp_path / "store", lambda: files, options, note=silent, warn=silent) as asker:
        for example, record in zip(cell.examples, records, strict=True):
            asked = asker.ask(example.question)
            assert record.prediction.strip() == asked.answers[0].text
            assert record.pack_tokens == asked.answers[0].pack_tokens
            keys = {source.key.removeprefix("c-") for source in asked.sources}
            assert len(keys) == len(record.chunks)


def test_replay_answers_first_and_every_other_arm_is_held_against_it(files: load.ModelFiles, tmp_path: Path) -> None:
    records = run(files, tmp_path / "r.jsonl", make_cell(shared=False))
    kls = [r.extra["first_token_kl"] for r in records if r.arm == "comem:j=4,mode=document"]
    assert all(kl >= 0 for kl in kls)
    again = run(files, tmp_path / "other.jsonl", make_cell(shared=False), [Arm(2), REPLAY])
    assert [r.arm for r in again[:2]] == ["replay", "comem:j=2,mode=chunk"]
    assert again[1].extra == next(r.extra for r in records if r.arm == "comem:j=2,mode=chunk")


@pytest.mark.parametrize("kept", [0, 1, 2, 7, 11, 17])
def test_a_run_that_was_killed_ends_as_an_undisturbed_one(files: load.ModelFiles, tmp_path: Path, kept: int) -> None:
    cell = make_cell(shared=True)
    whole = run(files, tmp_path / "whole.jsonl", cell)
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:kept]) + lines[kept][:40])
    resumed = run(files, tmp_path / "cut.jsonl", cell)
    assert without_timing(resumed) == without_timing(whole)
    assert (tmp_path / "cut.jsonl").read_text().splitlines(keepends=True)[:kept] == lines[:kept]


def test_a_finished_run_loads_no_model(files: load.ModelFiles, tmp_path: Path, monkeypatch: Any) -> None:
    cell = make_cell(shared=True, count=1)
    whole = run(files, tmp_path / "r.jsonl", cell)
    monkeypatch.setattr(load, "load", None)
    assert run(files, tmp_path / "r.jsonl", cell) == whole


@pytest.mark.parametrize(
    "change",
    [{"chunk": 16}, {"top_k": 3}, {"max_new_tokens": 2}, {"dtype": "bf16"}, {"terms": "tokens"}, {"selector": "bm25"}],
)
def test_answers_made_with_other_settings_are_not_taken(
    files: load.ModelFiles, tmp_path: Path, change: dict[str, Any]
) -> None:
    cell = make_cell(shared=True, count=1)
    run(files, tmp_path / "r.jsonl", cell, [REPLAY])
    with pytest.raises(UsageError, match="other settings"):
        run(files, tmp_path / "r.jsonl", cell, [REPLAY], replace(OPTIONS, **change))


def test_a_question_without_evidence_is_a_record_of_its_own(files: load.ModelFiles, tmp_path: Path) -> None:
    documents = (Document("x.txt", "aaaa"),)
    example = Example("e", documents, "9", "9 is", ("a",), (Span("x.txt", 0, 4),))
    cell = Cell("made", "", "test", "string_match_all", 3, (example,))
    records = run(files, tmp_path / "r.jsonl", cell, [REPLAY, Arm(2)])
    assert [(r.score, r.hit, r.recall, r.pack_tokens) for r in records] == [(0.0, False, 0.0, 0)] * 2
    assert all("no chunk" in r.error for r in records)


def test_decoding_ends_as_soon_as_the_score_is_settled(files: load.ModelFiles, tmp_path: Path) -> None:
    cell = make_cell(shared=True, count=3, max_new_tokens=40)
    full = run(files, tmp_path / "a.jsonl", replace(cell, scorer="exact_match"), [REPLAY])
    words = [next((c for c in r.prediction if c.isalnum()), "") for r in full]
    assert any(words)
    examples = tuple(replace(e, answers=(w or "\x00",)) for e, w in zip(cell.examples, words, strict=True))
    short = run(files, tmp_path / "b.jsonl", replace(cell, examples=examples), [REPLAY])
    for r, before, word in zip(short, full, words, strict=True):
        assert before.prediction.startswith(r.prediction)
        if word:
            assert r.score == 1.0
            assert r.new_tokens <= before.new_tokens
            assert r.finish == "stop"


def test_a_split_that_the_model_does_not_have_is_refused(files: load.ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="6 layers"), RecordFile(tmp_path / "r") as records:
        Runner(files, [Arm(7)], OPTIONS, records, silent)


def test_an_overlap_that_ingest_would_refuse_is_refused(files: load.ModelFiles, tmp_path: Path) -> None:
    room = load.identity(files).window - OPTIONS.chunk
    with RecordFile(tmp_path / "r") as records:
        Runner(files, [Arm(2, "overlap", room)], OPTIONS, records, silent)
        with pytest.raises(UsageError, match=f"outside 0..{room}"):
            Runner(files, [Arm(2, "overlap", room + 1)], OPTIONS, records, silent)


def test_first_token_kl_is_that_of_torch_distributions() -> None:
    from comem_cli.evaluate.runner import _first_token

    torch.manual_seed(0)
    arm, replay = torch.randn(50), torch.randn(50)
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=replay), torch.distributions.Categorical(logits=arm)
    )
    found = _first_token(arm, replay)
    assert found["first_token_kl"] == pytest.approx(float(wanted), abs=1e-5)
    assert found["first_token_equal"] == float(arm.argmax() == replay.argmax())
    assert _first_token(replay, replay) == {"first_token_kl": 0.0, "first_token_equal": 1.0}


def test_records_are_plain_json_lines(files: load.ModelFiles, tmp_path: Path) -> None:
    run(files, tmp_path / "r.jsonl", make_cell(shared=False, count=1), [REPLAY, Arm(2)])
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [line["arm"] for line in lines] == ["replay", "comem:j=2,mode=chunk"]
