"""Answer questions over one store with one loaded model.

Two arms over the identical pack: `comem` reads stored residuals through [j:L); `replay` is the matched j = 0 endpoint,
which runs the chunks' token ids through every layer. The paper's §4 and §5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from comem_cli.errors import UsageError
from comem_cli.model.adapter import Adapter
from comem_cli.model.load import ModelIdentity
from comem_cli.model.split import SplitModel
from comem_cli.read.buffer import RowBuffer
from comem_cli.read.cache import PackCache
from comem_cli.read.evidence import Evidence
from comem_cli.read.generate import Clock, Generation, Lane, Reader, Sampling, Started
from comem_cli.read.layout import FRESH, Layout, ReadVariant
from comem_cli.read.text import TextStream
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ChunkRow

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedModel

ARMS = ("comem", "replay")


@dataclass(frozen=True)
class Answer:
    """Hold one arm's answer: its text and ids, tokens of the pack, why it ended, ms by timing boundary."""

    arm: str
    text: str
    ids: tuple[int, ...]
    pack_tokens: int
    finish: str
    timing_ms: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the answer format."""
        timing = {name: round(ms, 3) for name, ms in self.timing_ms.items()}
        return {
            "answer": self.text,
            "finish": self.finish,
            "pack_tokens": self.pack_tokens,
            "new_tokens": len(self.ids),
            "timing_ms": timing,
        }


class Session:
    """Hold the model's two arms and one reused buffer for residuals."""

    def __init__(
        self,
        store: StoreReader,
        model: PreTrainedModel,
        identity: ModelIdentity,
        tokenizer: tokenizers.Tokenizer,
        adapter: Adapter | None = None,
        *,
        replay_adapter: bool = False,
        pack_cache: int = 0,
    ) -> None:
        """Build both arms; adapter: of the comem arm, merged into copies of the upper weights; the replay arm reads
        with the stock model, or with the same adapter where `replay_adapter`. pack_cache: bytes of keys and values of
        the packs read last; with any, every pack is read in two steps, the chunks and then the question.
        """
        self.model = model
        self._store = store
        self._tokenizer = tokenizer
        self._window = identity.window
        split = store.fingerprint.split
        read = model if adapter is None else _adapted(model, adapter)
        self._readers = {
            "comem": Reader(SplitModel(read, split), identity.bos_id),
            "replay": Reader(SplitModel(read if replay_adapter else model, 0), identity.bos_id),
        }
        self._packs = PackCache(pack_cache) if pack_cache else None
        self._buffer = RowBuffer(store.width, self._readers["comem"].split.device)

    def answer(
        self,
        evidence: Evidence,
        query: Sequence[int],
        arm: str,
        sampling: Sampling,
        stop: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
        variant: ReadVariant = FRESH.variant,
    ) -> Answer:
        """Read the pack with one arm and generate; on_text receives the text as it settles. Raises as `generate`."""
        stream = TextStream(self._tokenizer, stop)
        done = self.generate(evidence, query, arm, sampling, _until_stopped(stream, on_text), variant)
        rest = stream.finish()
        if on_text is not None and rest:
            on_text(rest)
        return _answer(arm, stream, evidence, done)

    def answer_together(
        self,
        asked: Sequence[tuple[Evidence, Sequence[int]]],
        arm: str,
        sampling: Sampling,
        stop: Sequence[str] = (),
        variant: ReadVariant = FRESH.variant,
    ) -> list[Answer]:
        """Read each pack (evidence, query) by itself, and decode all answers at once. Raises as `generate`.

        A model whose caches cannot be joined (`batch.can_join`) decodes one after another.
        """
        from comem_cli.read.batch import can_join, decode_together

        reader = self._readers[arm]
        streams = [TextStream(self._tokenizer, stop) for _ in asked]
        started = [self._start(evidence, query, arm, sampling, variant) for evidence, query in asked]
        watch = [_until_stopped(stream) for stream in streams]
        if can_join(reader, started):
            lanes = [Lane(one, on_token) for one, on_token in zip(started, watch, strict=True)]
            done = decode_together(reader, lanes, sampling)
        else:
            done = [reader.decode(one, sampling, on_token) for one, on_token in zip(started, watch, strict=True)]
        for stream in streams:
            stream.finish()
        packs = [evidence for evidence, _ in asked]
        return [_answer(arm, *each) for each in zip(streams, packs, done, strict=True)]

    def generate(
        self,
        evidence: Evidence,
        query: Sequence[int],
        arm: str,
        sampling: Sampling,
        on_token: Callable[[int], bool] | None = None,
        variant: ReadVariant = FRESH.variant,
    ) -> Generation:
        """Fetch and read the pack with one arm and generate ids; the timing gains the boundary `fetch`.

        Raises: CorruptStoreError (13) where a residual does not match the catalogue, UsageError (2) where origin
        positions leave the model's window.
        """
        started = self._start(evidence, query, arm, sampling, variant)
        return self._readers[arm].decode(started, sampling, on_token)

    def _start(
        self, evidence: Evidence, query: Sequence[int], arm: str, sampling: Sampling, variant: ReadVariant
    ) -> Started:
        """Fetch and read the pack, or take it from those that are kept, up to the first token."""
        reader = self._readers[arm]
        layout = self._layout(evidence, variant, len(query) + sampling.max_new_tokens)
        if self._packs is None or layout is not FRESH or reader.split.split == reader.split.n_layers:
            if not reader.split.split:
                return reader.start(lambda: self._rows(evidence, reader), query, sampling, layout)
            with ThreadPoolExecutor(1) as pool:  # the disk works while the query is written
                waiting = pool.submit(self._rows, evidence, reader)
                return reader.start(waiting.result, query, sampling, layout)
        key = (arm, *(chunk.key for chunk in evidence.pack))
        kept, fetch_ms, read_ms = self._packs.get(key), 0.0, 0.0
        clock = Clock(reader.split.device)
        if kept is None:
            rows = self._rows(evidence, reader)
            fetch_ms = clock.lap()
            kept = reader.prefill(rows)
            read_ms = clock.lap()
            self._packs.put(key, kept)
        started = reader.start_after(kept, query, sampling)
        read_ms += started.timing_ms["read"]
        started.timing_ms = {"fetch": fetch_ms, **started.timing_ms, "read": read_ms}
        return started

    def attention(self, chunks: Sequence[ChunkRow], query: Sequence[int]) -> list[float]:
        """Return how much the query attends to each of the chunks, packed in the order given, in the layers [j:L)."""
        from comem_cli.read.attention import attention_masses

        reader = self._readers["comem"]
        rows = self._rows(Evidence(tuple(chunks), (), 0.0), reader)
        return attention_masses(reader, rows, query, [chunk.n_tokens for chunk in chunks])

    def _layout(self, evidence: Evidence, variant: ReadVariant, after: int) -> Layout:
        """Place the pack's chunks; `after`: tokens of query and answer, which follow the largest position."""
        if variant == FRESH.variant:
            return FRESH
        places = self._store.places([chunk.id for chunk in evidence.pack])
        starts = tuple(places[chunk.id][0].number * self._store.fingerprint.chunk for chunk in evidence.pack)
        lengths = tuple(chunk.n_tokens for chunk in evidence.pack)
        needed = max(map(sum, zip(starts, lengths, strict=True))) + after + 1
        if variant.positions == "origin" and needed > self._window:
            raise UsageError(
                f"positions of the documents reach {needed}; the model's window is {self._window}",
                "pass --read-positions fresh",
            )
        return Layout(variant, lengths, starts)

    def _rows(self, evidence: Evidence, reader: Reader) -> torch.Tensor:
        """Get the pack's residuals (n, d): fetched where the arm has a split, embedded from ids at j = 0."""
        if reader.split.split == 0:
            ids = np.frombuffer(b"".join(chunk.ids for chunk in evidence.pack), dtype="<u4")
            with torch.inference_mode():
                return reader.rows_from_ids(ids.tolist())
        return self._buffer.fill(evidence.tokens, lambda out: self._store.fetch_rows(evidence.pack, out))


def _answer(arm: str, stream: TextStream, evidence: Evidence, done: Generation) -> Answer:
    timing = {"select": evidence.select_ms, **done.timing_ms}
    return Answer(arm, stream.text.strip(), tuple(done.ids), done.pack_tokens, done.finish, timing)


def _until_stopped(stream: TextStream, on_text: Callable[[str], None] | None = None) -> Callable[[int], bool]:
    def on_token(token: int) -> bool:
        piece = stream.push(token)
        if on_text is not None and piece:
            on_text(piece)
        return stream.stopped

    return on_token


def _adapted(model: PreTrainedModel, adapter: Adapter) -> PreTrainedModel:
    from comem_cli.model.lora import adapted  # brings peft, which a store without an adapter needs not

    return adapted(model, adapter)
