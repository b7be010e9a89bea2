"""Read: run [j:L) over a pack and decode an answer with two KV caches.

Pack: [BOS; chunk residuals in document order; h_j(query)], positions fresh and contiguous, full causal attention (the
paper's §4), or as a `Layout` places it. The lower half caches the query and the generated prefix at query-local
positions from 0; the upper half caches the whole pack, which is never rerun for an output token. At j = 0 the residuals
are token embeddings and this is the matched replay of the same pack through every layer. This module knows nothing of
stores or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from comem_cli.errors import UsageError
from comem_cli.model.split import SplitModel
from comem_cli.read.cache import Kept, fork, reserve
from comem_cli.read.layout import FRESH, Layout


@dataclass(frozen=True)
class Sampling:
    """Choose how tokens are drawn: temperature 0 is greedy; an end-of-sequence id stops."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    eos_ids: tuple[int, ...] = ()


@dataclass
class Generation:
    """Hold what one Read produced.

    ids: the new token ids, without the end-of-sequence id. timing_ms: boundary -> ms of `query_write` (lower half over
    the query), `fetch` (what was left to wait for the rows then), `read` (upper half over the pack, first logits),
    `decode` (every further token).
    """

    ids: list[int]
    pack_tokens: int
    finish: str  # "eos" | "length" | "stop"
    timing_ms: dict[str, float] = field(default_factory=dict)


class Sampler:
    """Draw one id from the last position's logits."""

    def __init__(self, sampling: Sampling) -> None:
        self._greedy = sampling.temperature == 0.0
        if not self._greedy:
            self._temperature = TemperatureLogitsWarper(float(sampling.temperature))
            self._top_p = TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1.0 else None
            self._generator = torch.Generator().manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """Draw from the logits (1, t, vocab) of the last of t tokens."""
        last = logits[:, -1].float()  # (1, vocab)
        if self._greedy:
            return int(last.argmax(-1).item())
        last = self._temperature(None, last)
        if self._top_p is not None:
            last = self._top_p(None, last)
        weights = torch.softmax(last, -1).cpu()
        return int(torch.multinomial(weights, 1, generator=self._generator).item())


@dataclass
class Started:
    """Hold a Read up to its first token.

    caches: of the lower and the upper half. places: position of the token after the first in each. fresh: whether
    positions just go on. logits: (1, 1, vocab) of the first token. timing_ms: all but `decode`.
    """

    caches: tuple[DynamicCache, DynamicCache]
    places: tuple[int, int]
    fresh: bool
    pack_tokens: int
    logits: torch.Tensor
    draw: Sampler
    token: int
    timing_ms: dict[str, float]


@dataclass
class Lane:
    """Hold one answer as it is decoded: its Read, up to the first token, and what has become of it."""

    started: Started
    on_token: Callable[[int], bool] | None = None
    ids: list[int] = field(default_factory=list)
    finish: str = ""
    decode_ms: float = 0.0

    def take(self, token: int, sampling: Sampling) -> bool:
        """Take a token that was drawn; return whether the answer goes on."""
        if token in sampling.eos_ids:
            self.finish = "eos"
            return False
        self.ids.append(token)
        if self.on_token is not None and self.on_token(token):
            self.finish = "stop"
        elif len(self.ids) >= sampling.max_new_tokens:
            self.finish = "length"
        return not self.finish

    def done(self) -> Generation:
        """Return what the answer has become."""
        timing = {**self.started.timing_ms, "decode": self.decode_ms}
        return Generation(self.ids, self.started.pack_tokens, self.finish, timing)


class Clock:
    """Measure wall time in ms between marks, waiting for the accelerator first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def lap(self) -> float:
        """Return the ms since the last lap."""
        now = self._now()
        passed, self._last = (now - self._last) * 1e3, now
        return passed

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()


class Reader:
    """Answer questions over packs with one split model."""

    def __init__(self, split: SplitModel, bos_id: int | None) -> None:
        self.split = split
        self._bos = bos_id
        self._sink: torch.Tensor | None = None  # h_j of BOS alone, the same for every pack

    def rows_from_ids(self, ids: Sequence[int]) -> torch.Tensor:
        """Embed token ids for a replay pack: (n,) -> (n, d); only meaningful at j = 0."""
        return self.split.lower(self._tensor(ids))[0]

    def generate(
        self,
        rows: torch.Tensor,
        query: Sequence[int],
        sampling: Sampling,
        on_token: Callable[[int], bool] | None = None,
        layout: Layout = FRESH,
        on_logits: Callable[[torch.Tensor], None] | None = None,
    ) -> Generation:
        """Read one pack and decode: rows (n, d) on any device, query ids -> a Generation.

        on_token receives each new id as it is drawn and returns True to stop there; on_logits the logits (1, 1, vocab)
        of the first. layout: of the n rows; the default needs none of their bounds. Raises UsageError for an empty
        question, ModelError as `Layout` does.
        """
        started = self.start(lambda: rows, query, sampling, layout)
        if on_logits is not None:
            on_logits(started.logits)
        return self.decode(started, sampling, on_token)

    @torch.inference_mode()
    def start(
        self,
        rows: Callable[[], torch.Tensor],
        query: Sequence[int],
        sampling: Sampling,
        layout: Layout = FRESH,
    ) -> Started:
        """Read one pack up to its first token; errors as of `generate`, and those of `rows`.

        rows: gives the pack's rows (n, d); it is called when the query is written, and may still be waiting for them.
        """
        _require_tokens(query)
        clock = Clock(self.split.device)
        more = len(query) + sampling.max_new_tokens
        lower_cache = reserve(self.split.lower_cache(), more)
        h = self.split.lower(self._tensor(query), lower_cache)
        query_ms = clock.lap()
        packed = rows()
        timing = {"fetch": clock.lap(), "query_write": query_ms}
        upper_cache = reserve(self.split.upper_cache(), 1 + len(packed) + more)
        pack = torch.cat([self._with_sink(packed), h], dim=1)
        logits, last = self.read(pack, len(query), upper_cache, layout)
        draw = Sampler(sampling)
        token = draw(logits)
        timing["read"] = clock.lap()
        places = (len(query), pack.shape[1] if last is None else int(last) + 1)
        return Started((lower_cache, upper_cache), places, last is None, pack.shape[1], logits, draw, token, timing)

    @torch.inference_mode()
    def prefill(self, rows: torch.Tensor) -> Kept:
        """Read [BOS; rows], rows (n, d), alone: what `start_after` goes on from."""
        pack = self._with_sink(rows)
        cache = reserve(self.split.upper_cache(), pack.shape[1])
        self.split.upper_keys(pack, cache)
        return Kept(cache, pack.shape[1])

    @torch.inference_mode()
    def start_after(self, kept: Kept, query: Sequence[int], sampling: Sampling) -> Started:
        """Read a question after a pack that `prefill` read, up to the first token; `kept` stays as it is.

        Raises: UsageError (2) for an empty question.
        """
        _require_tokens(query)
        clock = Clock(self.split.device)
        more = len(query) + sampling.max_new_tokens
        lower_cache, upper_cache = reserve(self.split.lower_cache(), more), fork(kept.cache, kept.tokens + more)
        h = self.split.lower(self._tensor(query), lower_cache)
        timing = {"query_write": clock.lap()}
        logits = self.split.upper(h, upper_cache)
        draw = Sampler(sampling)
        token = draw(logits)
        timing["read"] = clock.lap()
        whole = kept.tokens + len(query)
        return Started((lower_cache, upper_cache), (len(query), whole), True, whole, logits, draw, token, timing)

    @torch.inference_mode()
    def decode(self, started: Started, sampling: Sampling, on_token: Callable[[int], bool] | None = None) -> Generation:
        """Go on from a first token to the end of the answer; on_token as of `generate`."""
        clock = Clock(self.split.device)
        lower_cache, upper_cache = started.caches
        lane = Lane(started, on_token)
        goes_on = lane.take(started.token, sampling)
        while goes_on:
            h = self.split.lower(self._tensor([lane.ids[-1]]), lower_cache)
            at = None if started.fresh else self._tensor([started.places[1] + len(lane.ids) - 1])
            goes_on = lane.take(started.draw(self.split.upper(h, upper_cache, positions=at)), sampling)
        lane.decode_ms = clock.lap()
        return lane.done()

    def read(
        self, pack: torch.Tensor, query_tokens: int, cache: DynamicCache, layout: Layout = FRESH
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run [j:L) over an assembled pack (1, t, d) and fill the upper cache.

        The cache is not optional: without one, Transformers takes a jump in the positions for a packed batch.
        Returns the logits (1, 1, vocab) of the last token and its position (1, 1), None where positions are fresh.
        """
        split = self.split
        bos = int(self._bos is not None)
        positions = layout.position_ids(bos, query_tokens)
        mask = layout.attention_mask(bos, query_tokens, split.model.config)
        if positions is not None:
            positions = positions.to(split.device)
        if isinstance(mask, dict):
            mask = {kind: part.to(split.device) for kind, part in mask.items()}
        elif mask is not None:
            mask = mask.to(split.device)
        logits = split.upper_last(pack, cache, positions=positions, mask=mask)
        return logits, None if positions is None else positions[:, -1:]

    def pack(self, rows: torch.Tensor, query: Sequence[int], lower_cache: DynamicCache) -> torch.Tensor:
        """Assemble [BOS; rows; h_j(query)]: (1, n + 1 + q, d) in the compute dtype; fills the lower cache."""
        h = self.split.lower(self._tensor(query), lower_cache)
        return torch.cat([self._with_sink(rows), h], dim=1)

    def _with_sink(self, rows: torch.Tensor) -> torch.Tensor:
        """Put the residual of BOS, written once and alone, before rows (n, d): (1, n + 1, d), (1, n, d) without BOS."""
        packed = rows.to(self.split.device, self.split.dtype)[None]
        if self._bos is None:
            return packed
        if self._sink is None:
            self._sink = self.split.lower(self._tensor([self._bos]))
        return torch.cat([self._sink, packed], dim=1)

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(ids)], dtype=torch.int64, device=self.split.device)


def _require_tokens(query: Sequence[int]) -> None:
    if not query:
        raise UsageError("the question has no tokens", "ask a question in words")
