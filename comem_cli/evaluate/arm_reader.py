"""Answer one example with one arm: write the pack's chunks in memory as a store keeps them, read, decode, and stop.

Residuals are rounded to bf16 and come from the same batch shapes as those of `ingest`, so an arm's answer is the one
that a store written in its mode gives. Those of a corpus that many questions share are kept, up to a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from comem_cli.evaluate.arms import Arm
from comem_cli.evaluate.workspace import Workspace
from comem_cli.model.load import ModelIdentity
from comem_cli.model.modes import make_mode
from comem_cli.model.shapes import TOKENS_PER_BATCH, Pending, shapes_to_json
from comem_cli.model.split import SplitModel
from comem_cli.read.evidence import Evidence
from comem_cli.read.generate import Clock, Generation, Reader, Sampling
from comem_cli.read.text import TextStream
from comem_cli.store.fingerprint import Fingerprint, chunk_key
from comem_cli.store.identify import fingerprint_for

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedModel

KEPT_BYTES = 1 << 29  # residuals of one arm in memory


@dataclass(frozen=True)
class Reply:
    """Hold an arm's text and how it came about; first_logits: (vocab,) fp32, on the CPU."""

    text: str
    generation: Generation
    first_logits: torch.Tensor


class ArmReader:
    """Read packs with one arm of a loaded model."""

    def __init__(
        self, arm: Arm, model: PreTrainedModel, identity: ModelIdentity, tokenizer: tokenizers.Tokenizer, chunk: int
    ) -> None:
        self.arm = arm
        self._tokenizer = tokenizer
        self._reader = Reader(SplitModel(model, arm.split), identity.bos_id)
        self._mode = make_mode(arm.mode, arm.overlap, identity.window)
        split = self._reader.split
        tokens = TOKENS_PER_BATCH[split.device.type]
        self._shapes = self._mode.shapes(chunk, tokens, routed=identity.routed)
        shapes = shapes_to_json(self._shapes) if arm.split else "[]"
        self.fingerprint: Fingerprint = fingerprint_for(
            identity, split=arm.split, chunk=chunk, overlap=arm.overlap, mode=arm.mode, shapes=shapes
        )
        self._key = partial(chunk_key, self.fingerprint.digest())
        self._writer = self._mode.writer(split, self._shapes)
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def reply(
        self,
        workspace: Workspace,
        evidence: Evidence,
        query: Sequence[int],
        sampling: Sampling,
        stop: Sequence[str],
        settled: Callable[[str], bool],
    ) -> Reply:
        """Answer from the pack; decoding ends early where `settled` says that more text cannot change the score."""
        stream = TextStream(self._tokenizer, stop)
        first: list[torch.Tensor] = []

        def on_token(token: int) -> bool:
            stream.push(token)
            return stream.stopped or settled(stream.text)

        def on_logits(logits: torch.Tensor) -> None:
            first.append(logits[0, -1].float().cpu())

        clock = Clock(self._reader.split.device)
        rows = self._rows(workspace, evidence)
        write_ms = clock.lap()
        done = self._reader.generate(rows, query, sampling, on_token, on_logits=on_logits)
        stream.finish()
        done.timing_ms = {"write": write_ms, **done.timing_ms}
        return Reply(stream.text, done, first[0])

    def _rows(self, workspace: Workspace, evidence: Evidence) -> torch.Tensor:
        """Return the pack's rows (n, d): embedded at j = 0, else written in the arm's mode and rounded to bf16."""
        if not self.arm.split:
            ids = np.frombuffer(b"".join(chunk.ids for chunk in evidence.pack), dtype="<u4")
            with torch.inference_mode():
                return self._reader.rows_from_ids(ids.tolist())
        pending = []
        for chunk in evidence.pack:
            document = workspace.document_up_to(workspace.place(chunk))
            pending.append(self._mode.pending(document, self._key)[-1])
        missing = {one.key: one for one in pending if one.key not in self._kept}
        for one in missing.values():
            self._keep(self._writer.add(one))
        self._keep(self._writer.flush())
        data = bytearray(b"".join(self._kept[one.key] for one in pending))
        self._forget({one.key for one in pending})
        return torch.frombuffer(data, dtype=torch.bfloat16).view(-1, self._reader.split.width)

    def _keep(self, written: Iterable[tuple[Pending, bytes]]) -> None:
        for chunk, rows in written:
            self._kept[chunk.key] = rows
            self._size += len(rows)

    def _forget(self, wanted: set[str]) -> None:
        """Drop the residuals that were not used for longest, those of the present pack last."""
        for key in wanted:
            self._kept.move_to_end(key)
        while self._size > KEPT_BYTES and len(self._kept) > len(wanted):
            self._size -= len(self._kept.popitem(last=False)[1])
