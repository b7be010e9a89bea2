"""Needles: where facts are planted, what is asked, and copying against a greedy decode of the stock model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.evaluate.arm_adapters import Forks
from comem_cli.evaluate.arm_reader import ArmReader
from comem_cli.evaluate.arms import REPLAY, Arm
from comem_cli.evaluate.needles import Needle, copy_value, plant
from comem_cli.evaluate.pack_fidelity import Documents, Pack, Spot, draw_packs
from comem_cli.evaluate.tune_source import open_source
from comem_cli.model import distill_phrases as phrases
from comem_cli.model import load
from comem_cli.read.generate import Sampling
from tests.commands.cli import write_documents
from tests.tiny import save_tiny

CHUNK = 128


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> load.ModelFiles:
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model"), initializer_range=0.2)))


@pytest.fixture(scope="module")
def documents(files: load.ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documents]:
    sources = write_documents(tmp_path_factory.mktemp("docs"), 3, lines=24)
    with open_source([sources], files, CHUNK, pytest.fail) as reader:
        assert all(len(reader.document_chunks(row.id)) > 2 for row in reader.documents())
        yield Documents(reader)


@pytest.fixture
def pack(documents: Documents) -> Pack:
    return draw_packs(documents, 1, 2, seed=0)[0]


def needles(files: load.ModelFiles, documents: Documents, pack: Pack, count: int = 12) -> list[Needle]:
    tokenizer = load.tokenizer(files)
    return [plant(documents, pack, tokenizer, CHUNK, f"0/{n}") for n in range(count)]


def ids(chunk: bytes) -> list[int]:
    return list(np.frombuffer(chunk, "<u4").tolist())


def test_the_asked_value_stands_in_one_chunk_and_every_chunk_has_a_fact(
    files: load.ModelFiles, documents: Documents, pack: Pack
) -> None:
    tokenizer = load.tokenizer(files)
    for needle in needles(files, documents, pack):
        first, last = needle.answer
        value = tokenizer.decode(list(needle.query[first:last])).strip()
        texts = [tokenizer.decode(ids(document[-1])) for document in needle.documents]
        assert sum(value in text for text in texts) == 1
        constant = [[part for part in re.split(r"{\w+}", one) if part] for one in phrases.HELD_STATEMENTS]
        assert any(all(part.lower() in text.lower() for text in texts for part in parts) for parts in constant)
        for spot, document in zip(pack, needle.documents, strict=True):
            stored = documents.up_to(spot)
            assert len(document) == len(stored)
            assert len(document[-1]) // 4 <= CHUNK
            planted, plain = ids(document[-1]), ids(stored[-1])
            kept = next((n for n, (a, b) in enumerate(zip(planted, plain, strict=False)) if a != b), len(plain))
            assert planted[:kept] == plain[:kept]
            added = len(planted) - kept - (len(plain) - kept)
            assert planted != plain and (len(planted) == CHUNK or added > 0)


def test_a_needle_follows_from_its_seed(files: load.ModelFiles, documents: Documents, pack: Pack) -> None:
    assert needles(files, documents, pack) == needles(files, documents, pack)
    assert len({needle.query for needle in needles(files, documents, pack)}) == 12


def test_a_planted_chunk_is_what_a_later_chunk_of_its_document_sees(
    files: load.ModelFiles, documents: Documents
) -> None:
    document = next(documents.reader.documents()).id
    pack = (Spot(document, 0), Spot(document, 1))
    for needle in needles(files, documents, pack, 3):
        earlier, later = needle.documents
        assert later[pack[0].number] == earlier[-1] != documents.up_to(pack[0])[-1]


def test_short_chunks_are_refused(files: load.ModelFiles, documents: Documents, pack: Pack) -> None:
    with pytest.raises(UsageError, match="too short for planted facts"):
        plant(documents, pack, load.tokenizer(files), 8, "0")


@pytest.mark.parametrize("arm", [REPLAY, Arm(2), Arm(2, "document"), Arm(6)], ids=lambda arm: arm.spec)
def test_a_value_is_copied_where_greedy_decoding_writes_it(
    files: load.ModelFiles, documents: Documents, pack: Pack, arm: Arm
) -> None:
    model = load.load(files, torch.device("cpu"), torch.float32)
    tokenizer, identity = load.tokenizer(files), load.identity(files)
    reader = ArmReader(arm, Forks(model), identity, tokenizer, CHUNK)
    verdicts = set()
    for number, needle in enumerate(needles(files, documents, pack, 4)):
        rows = reader.writer.rows(needle.documents)
        logits: list[torch.Tensor] = []
        sampling = Sampling(max_new_tokens=2)
        done = reader.reader.generate(rows, needle.question, sampling, on_logits=logits.append)
        found = copy_value(reader.reader, rows, needle)
        assert torch.allclose(found.first, logits[0][0, -1], atol=1e-4)
        assert found.copied == (done.ids == list(needle.query[slice(*needle.answer)]))
        first = needle.answer[0]
        said = Needle(needle.documents, (*needle.question, *done.ids), (first, first + 2))  # what it would say
        assert copy_value(reader.reader, rows, said).copied
        wrong = (done.ids[0], random.Random(number).choice([n for n in range(3, 500) if n != done.ids[1]]))
        changed = Needle(needle.documents, (*needle.question, *wrong), (first, first + 2))
        assert not copy_value(reader.reader, rows, changed).copied
        verdicts.add(found.copied)
    assert verdicts == {False}  # a random model copies nothing
