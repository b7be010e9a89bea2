"""Check a store against its model and its index: contracts 7 and 8, as `comem verify` and the tests do.

Every function reads one store and writes nothing into it.
"""

from __future__ import annotations

import hashlib
import math
import random
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from comem_cli.errors import NoEvidenceError
from comem_cli.measure.contracts import stock_generate
from comem_cli.model.modes import make_mode
from comem_cli.model.shapes import Pending, shapes_from_json
from comem_cli.model.split import SplitModel
from comem_cli.read.evidence import Evidence
from comem_cli.read.generate import Sampling
from comem_cli.read.session import Session
from comem_cli.select.bm25 import K1, B
from comem_cli.select.choose import SelectorChoice
from comem_cli.select.index import Bm25Index, open_index
from comem_cli.select.index_write import build_index
from comem_cli.select.selector import Candidates, Query, ScoredIndex, Selected, decode_ids
from comem_cli.select.terms import TOKENS, TermScheme
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.format import ARRAY_NAME
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ChunkRow

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedModel

    from comem_cli.model.load import ModelIdentity

SHORT_QUERY = 12  # tokens, as in a question; the other queries are whole chunks, as in the later rounds
SQLITE_SIDE_FILES = ("-wal", "-shm")
HASHED_BYTES = 2**30  # above this the shards are compared by size, inode and times instead of their bytes


def sample_chunks(reader: StoreReader, count: int | None, seed: int = 0) -> list[ChunkRow]:
    """Draw `count` live chunks (None: all), in document order."""
    ids = reader.chunk_ids_in_order()
    if count is not None and count < len(ids):
        kept = set(random.Random(seed).sample(range(len(ids)), count))
        ids = [chunk_id for number, chunk_id in enumerate(ids) if number in kept]
    return reader.chunks(ids)


def rewritten_differently(reader: StoreReader, split: SplitModel, window: int, chunks: Sequence[ChunkRow]) -> list[str]:
    """Write chunks again, with their left context, and return the keys of those whose stored bits differ (contract 7).

    Of int8 residuals the records are compared: the fresh Write goes through the store's quantiser.
    split: the model at the store's split, in its dtype and on its device; window: of the model, in tokens.
    Raises: CorruptStoreError (13) where stored bytes do not match their checksums.
    """
    written = reader.fingerprint
    mode = make_mode(written.mode, written.overlap, window)
    writer = mode.writer(split, shapes_from_json(written.shapes))
    key = partial(chunk_key, written.digest())
    wanted = {chunk.id: chunk for chunk in chunks}
    by_key = {chunk.key: chunk for chunk in chunks}
    differing: list[str] = []

    def compare(done: Iterator[tuple[Pending, bytes]]) -> None:
        differing.extend(
            p.key for p, rows in done if reader.stored_rows(by_key[p.key].id) != reader.layout.encode(rows)
        )

    places = reader.places(wanted)
    for document_id in dict.fromkeys(places[chunk_id][0].document_id for chunk_id in wanted):
        held = reader.document_chunks(document_id)
        document = mode.pending([chunk.ids for chunk in held], key)
        for chunk, pending in zip(held, document, strict=True):
            if wanted.pop(chunk.id, None) is None:
                continue
            if pending.key == chunk.key:
                compare(writer.add(pending))
            else:
                differing.append(chunk.key)
    compare(writer.flush())
    return differing


def read_everything(reader: StoreReader) -> int:
    """Read every residual of the store against its checksums; return the number of chunks.

    Raises: CorruptStoreError (13) naming the first chunk that does not match.
    """
    count = 0
    for chunk in reader.iter_chunks():
        reader.stored_rows(chunk.id)
        count += 1
    return count


def replay_mismatches(
    reader: StoreReader,
    model: PreTrainedModel,
    identity: ModelIdentity,
    tokenizer: tokenizers.Tokenizer,
    chunks: Sequence[ChunkRow],
    query: Sequence[int],
    new_tokens: int,
) -> int:
    """Count tokens of the arm `replay` over stored chunks that differ from stock `generate` (contract 2).

    The stock model's prompt is [BOS; chunks; query].
    """
    session = Session(reader, model, identity, tokenizer)
    evidence = Evidence(tuple(chunks), (), 0.0)
    ours = session.generate(evidence, query, "replay", Sampling(max_new_tokens=new_tokens)).ids
    held = [token for chunk in chunks for token in decode_ids(chunk.ids)]
    prompt = [*([] if identity.bos_id is None else [identity.bos_id]), *held, *query]
    stock = stock_generate(model, torch.tensor([prompt], device=model.device), new_tokens)
    return sum(a != b for a, b in zip(ours, stock, strict=True))


def answer_ids(
    store: Path,
    model: PreTrainedModel,
    identity: ModelIdentity,
    tokenizer: tokenizers.Tokenizer,
    chunks: Sequence[ChunkRow],
    query: Sequence[int],
    new_tokens: int,
) -> list[int]:
    """Open the store anew, read `chunks` as a pack and return the greedy answer (contract 7 compares two of them)."""
    with StoreReader(store) as reader:
        session = Session(reader, model, identity, tokenizer)
        evidence = Evidence(tuple(chunks), (), 0.0)
        return session.generate(evidence, query, "comem", Sampling(max_new_tokens=new_tokens)).ids


def file_states(store: Path, *, whole: bool) -> dict[str, str]:
    """Describe every file of a store but SQLite's side files, so that any change shows (contract 7).

    By sha256 of the bytes; the shards of a store above 1 GiB by size, inode and times, unless `whole`.
    """
    files = [path for path in store.rglob("*") if path.is_file() and not path.name.endswith(SQLITE_SIDE_FILES)]
    hash_all = whole or sum(path.stat().st_size for path in files) <= HASHED_BYTES
    states: dict[str, str] = {}
    for path in sorted(files):
        name = path.relative_to(store).as_posix()
        if hash_all or not name.startswith(f"{ARRAY_NAME}/"):
            with path.open("rb") as file:
                states[name] = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            status = path.stat()
            states[name] = f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
    return states


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of files that came, went or differ."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def made_queries(chunks: Sequence[ChunkRow], seed: int = 0) -> list[tuple[int, ...]]:
    """Make two queries a chunk: a span of it, as a question would be, and its distinct ids, as in a later round."""
    draw = random.Random(seed)
    queries: list[tuple[int, ...]] = []
    for chunk in chunks:
        ids = decode_ids(chunk.ids)
        start = draw.randrange(max(1, len(ids) - SHORT_QUERY + 1))
        queries += [ids[start : start + SHORT_QUERY], tuple(dict.fromkeys(ids))]
    return queries


def score_error(
    index: ScoredIndex,
    query: Collection[int],
    formula: Mapping[int, float],
    most: int,
    scheme: TermScheme = TOKENS,
) -> float:
    """Return the largest relative difference between an index's scores and the formula's (contract 8).

    Looks at the `most` best chunks; infinite where the index gives another chunk, or misses one that belongs there.
    """
    hits = index.search(set(scheme.query_terms(query)), most, (), K1, B)
    found = {hit.chunk_id: hit.score for hit in hits}
    if len(found) != len(hits) or not found.keys() <= formula.keys() or len(hits) < min(most, len(formula)):
        return math.inf
    worst = max((abs(score / formula[chunk_id] - 1) for chunk_id, score in found.items()), default=0.0)
    missed = max((score for chunk_id, score in formula.items() if chunk_id not in found), default=0.0)
    lowest = min(found.values(), default=0.0)
    return max(worst, missed / lowest - 1 if missed > lowest else 0.0)


def selections(
    reader: StoreReader, index: ScoredIndex, queries: Sequence[Collection[int]], scheme: TermScheme = TOKENS
) -> list[tuple[Selected, ...]]:
    """Select the default pack for each query's token ids: chunks, scores and rounds; none where no chunk matches.

    A span of a finely cut chunk may hold nothing but the middle of a word, which is no term of any chunk.
    """
    order = reader.chunk_ids_in_order()
    candidates = Candidates.over(index, scheme, order, reader.token_ids, reader.ids_before)
    selector = SelectorChoice().build()

    def select(query: Collection[int]) -> tuple[Selected, ...]:
        try:
            return selector.select(Query("", tuple(scheme.query_terms(query))), candidates)
        except NoEvidenceError:
            return ()

    return [select(query) for query in queries]


@contextmanager
def rebuilt_index(reader: StoreReader, scheme: TermScheme = TOKENS) -> Iterator[Bm25Index]:
    """Build the index of the store's live chunks again, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="comem-verify-") as folder:
        path = Path(folder) / "index"
        build_index(path, ((chunk.id, chunk.ids) for chunk in reader.iter_chunks()), scheme)
        with open_index(path) as index:
            yield index
