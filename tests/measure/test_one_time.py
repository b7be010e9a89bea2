from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comem_cli.errors import ComemError, UsageError
from comem_cli.measure.one_time import raw_time, write_time
from comem_cli.measure.questions import SPAN, made_questions, read_cases
from comem_cli.model import load
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import LedgerRow
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from comem_cli.store.writer import StoreWriter

FINGERPRINT = Fingerprint(1, "w", "c", "t", "none", 2, 64, 0, "chunk", "[[8,64]]")


def ledger(tokens: int, wall_ms: float, **detail: str) -> LedgerRow:
    return LedgerRow(1.0, "write:chunk", 1, tokens, wall_ms, 1.0, 0.0, "cpu", "bf16", json.dumps(detail))


def store_with(path: Path, *rows: LedgerRow, live: int = 1) -> Path:
    """Make a store that commits one chunk of 10 tokens with each ledger row and places the first `live` of them."""
    from comem_cli.store.edits import Placement

    with StoreWriter.create_or_open(path, FINGERPRINT, 8, {"compute_dtype": "bf16"}) as writer:
        root = writer.add_root(Path("/src"))
        for number, row in enumerate(rows):
            key = f"{number:032x}"
            writer.add(key, bytes([number]) * 40, bytes(10 * 8 * 2))
            if number < live:
                place = Placement(key, 0, 10, 1, 1)
                writer.put_document(root, f"d{number}", 10, 1, "ab" * 32, "utf-8", "text", [place])
            writer.commit(row)
    return path


def test_w_is_the_cost_a_written_token_times_the_tokens_that_are_there(tmp_path):
    rows = (ledger(10, 3000.0), ledger(10, 1000.0))
    with StoreReader(store_with(tmp_path / "s", *rows, live=1)) as reader:
        io = sum(row.io_ms for row in reader.ledger()) / 1e3
        found = write_time(reader)
    assert (found.wall_s, found.ledger_tokens, found.stored_tokens) == (4.0, 20, 10)
    assert found.io_s == pytest.approx(io) and io > 0
    assert found.seconds == pytest.approx((4.0 + io) / 2)


def test_w_leaves_out_what_was_written_under_another_fingerprint(tmp_path):
    other = replace(FINGERPRINT, overlap=32).digest()
    mine = FINGERPRINT.digest()
    rows = (ledger(10, 5000.0, fingerprint=other), ledger(10, 1000.0, fingerprint=mine))
    with StoreReader(store_with(tmp_path / "s", *rows, live=2)) as reader:
        assert (write_time(reader).wall_s, write_time(reader).ledger_tokens) == (1.0, 10)
    with (
        StoreReader(store_with(tmp_path / "t", rows[0])) as reader,
        pytest.raises(ComemError, match="no measured Write"),
    ):
        write_time(reader)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory, tiny_model):
    """A store of split 0 over two documents, with its model's files."""
    folder = tmp_path_factory.mktemp("raw")
    docs = folder / "docs"
    docs.mkdir()
    for name in "ab":
        lines = [f"The harbour master keeps ledger {name}{number} of every vessel.\n" for number in range(40)]
        (docs / f"{name}.md").write_text("".join(lines))
    files = load.resolve(str(tiny_model))
    run = IngestRun(folder / "s", files, WriteOptions(split=0, chunk=64))
    with run.open() as writer:
        ignore = dict.fromkeys(("on_plan", "on_event", "on_bytes"), lambda value: None)
        run.ingest(writer, [docs], **ignore, on_load=lambda: None)
    return folder, files


def test_i0_reads_tokenises_and_stores_the_sources(ingested):
    folder, files = ingested
    with StoreReader(folder / "s") as reader:
        found = raw_time(reader, files)
        assert found.measured_tokens == found.stored_tokens == reader.counts().tokens
    assert found.method == "sources" and found.seconds == found.measured_s > 0


def test_i0_is_scaled_where_a_source_changed_and_falls_back_to_the_ids(ingested):
    folder, files = ingested
    with StoreReader(folder / "s") as reader:
        (folder / "docs" / "a.md").write_text("changed")
        half = raw_time(reader, files)
        (folder / "docs" / "b.md").unlink()
        none = raw_time(reader, files)
        tokens = reader.counts().tokens
    assert half.method == "sources" and 0 < half.measured_tokens < half.stored_tokens
    assert half.seconds == pytest.approx(half.measured_s * half.stored_tokens / half.measured_tokens)
    assert (none.method, none.measured_tokens, none.stored_tokens) == ("token ids", tokens, tokens)


def test_made_questions_are_spans_of_different_chunks_and_a_seed_fixes_them(ingested):
    folder, files = ingested
    tokenizer = load.tokenizer(files)
    with StoreReader(folder / "s") as reader:
        found = made_questions(reader, tokenizer, 4, seed=1)
        assert found == made_questions(reader, tokenizer, 4, seed=1) != made_questions(reader, tokenizer, 4, seed=2)
        chunks = list(reader.iter_chunks())
        texts = [" ".join(tokenizer.decode(np.frombuffer(chunk.ids, "<u4").tolist()).split()) for chunk in chunks]
        assert len(made_questions(reader, tokenizer, 1000, seed=1)) == len(chunks)
    assert len(found) == 4
    for question in found:
        assert any(question in text for text in texts)
        assert len(question) <= SPAN * 20


def test_cases_name_the_line_that_is_no_question(tmp_path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"question": "one"}\n\n{"question": "two", "answers": []}\n')
    assert read_cases(cases) == ["one", "two"]
    for bad in ("{", "[]", '{"question": 1}', '{"question": " "}', "3"):
        cases.write_text(f'{{"question": "one"}}\n{bad}\n')
        with pytest.raises(UsageError, match="line 2"):
            read_cases(cases)
    cases.write_text("\n")
    with pytest.raises(UsageError, match="holds no question"):
        read_cases(cases)
