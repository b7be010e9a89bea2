from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.evaluate.task import Document, Span
from comem_cli.evaluate.workspace import Workspace
from comem_cli.model import load
from comem_cli.select.bm25 import IterativeBm25
from tests.tiny import save_tiny

ACCENTED = "Überall är en ö, und jedes Wort zählt. " * 20
DOCUMENTS = (
    Document("a/first.txt", "The harbour master keeps a ledger of every vessel. " * 12),
    Document("b.txt", ACCENTED),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> load.ModelFiles:
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def workspace(files: load.ModelFiles) -> Iterator[Workspace]:
    with Workspace(DOCUMENTS, files, load.tokenizer(files), IterativeBm25(top_k=40, hop=40), 48) as opened:
        yield opened


def test_the_chunks_are_the_documents_own_tokens(workspace: Workspace, files: load.ModelFiles) -> None:
    tokenizer = load.tokenizer(files)
    for document in DOCUMENTS:
        row = next(r for r in workspace.reader.documents() if r.path == document.name.encode())
        stored = b"".join(chunk.ids for chunk in workspace.reader.document_chunks(row.id))
        ids = [int.from_bytes(stored[at : at + 4], "little") for at in range(0, len(stored), 4)]
        assert ids == tokenizer.encode(document.text, add_special_tokens=False).ids


def test_a_span_is_held_exactly_where_chunks_cover_its_bytes(workspace: Workspace) -> None:
    rows = {r.path: r.id for r in workspace.reader.documents()}
    chunks = workspace.reader.document_chunks(rows[b"b.txt"])
    raw = ACCENTED.encode()
    borders = [workspace.place(chunk) for chunk in chunks]
    for chosen in ([0], [1], [0, 1], [0, 2], [0, 1, 2, 3, 4]):
        pack = [chunks[n] for n in chosen]
        covered = {b for n in chosen for b in range(borders[n].byte_start, borders[n].byte_end)}
        for start in range(0, len(ACCENTED), 7):
            for length in (1, 5, 60):
                end = min(start + length, len(ACCENTED))
                first = len(ACCENTED[:start].encode())
                wanted = set(range(first, first + len(ACCENTED[start:end].encode()))) <= covered
                assert workspace.held([Span("b.txt", start, end)], pack) == [wanted], (chosen, start, end)
    assert max(b.byte_end for b in borders) == len(raw)
    assert workspace.held([Span("a/first.txt", 0, 3)], chunks) == [False]


def test_a_document_up_to_a_place_ends_with_that_chunk(workspace: Workspace) -> None:
    evidence = workspace.find("harbour ledger vessel", 10_000)
    for chunk in evidence.pack:
        place = workspace.place(chunk)
        before = workspace.document_up_to(place)
        assert len(before) == place.number + 1
        assert before[-1] == chunk.ids


def test_without_evidence_ask_s_own_error_is_raised(files: load.ModelFiles) -> None:
    documents = (Document("x.txt", "aaaa"),)
    with (
        Workspace(documents, files, load.tokenizer(files), IterativeBm25(), 48) as opened,
        pytest.raises(NoEvidenceError),
    ):
        opened.find("9", 100)


@pytest.mark.parametrize("name", ["/etc/x", "../x", ".hidden", "a/.git/x"])
def test_a_document_cannot_be_written_elsewhere(files: load.ModelFiles, name: str) -> None:
    with pytest.raises(UsageError, match="no name of a document"):
        Workspace((Document(name, "text"),), files, load.tokenizer(files), IterativeBm25(), 48)


def test_what_cannot_be_ingested_is_named(files: load.ModelFiles) -> None:
    tokenizer = load.tokenizer(files)
    with pytest.raises(UsageError, match=r"empty\.txt.*empty"):
        Workspace((Document("empty.txt", ""),), files, tokenizer, IterativeBm25(), 48)
    with pytest.raises(UsageError, match="two documents"):
        Workspace((Document("a.txt", "x"), Document("a.txt", "y")), files, tokenizer, IterativeBm25(), 48)
    for pair in (("a", "a/b"), ("a/b", "a")):
        with pytest.raises(UsageError, match="folder of the other"):
            Workspace(tuple(Document(name, "x") for name in pair), files, tokenizer, IterativeBm25(), 48)
    with pytest.raises(UsageError, match="too long"):
        Workspace((Document("x" * 300, "x"),), files, tokenizer, IterativeBm25(), 48)


def test_the_folder_is_gone_afterwards(files: load.ModelFiles) -> None:
    with Workspace(DOCUMENTS, files, load.tokenizer(files), IterativeBm25(), 48) as opened:
        folder: Path = opened.reader.path
        assert folder.is_dir()
    assert not folder.parent.exists()
