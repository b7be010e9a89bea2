"""Answer one example with one arm: write the pack's chunks in memory as a store keeps them, read, decode, and stop.

An arm's answer is the one that `ask` gives over a store written in its mode, read through its adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from comem_cli.evaluate.arm_adapters import NO_ADAPTERS, ArmAdapters, Forks
from comem_cli.evaluate.arm_writer import KEPT_BYTES, ArmWriter
from comem_cli.evaluate.arms import Arm
from comem_cli.evaluate.workspace import Workspace
from comem_cli.model.load import ModelIdentity
from comem_cli.model.split import SplitModel
from comem_cli.read.evidence import Evidence
from comem_cli.read.generate import Clock, Generation, Reader, Sampling
from comem_cli.read.text import TextStream

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Reply:
    """Hold an arm's text and how it came about; first_logits: (vocab,) fp32, on the CPU."""

    text: str
    generation: Generation
    first_logits: torch.Tensor


class ArmReader:
    """Read packs with one arm of a loaded model; `writer` makes the rows, `reader` reads them."""

    def __init__(
        self,
        arm: Arm,
        forks: Forks,
        identity: ModelIdentity,
        tokenizer: tokenizers.Tokenizer,
        chunk: int,
        adapters: ArmAdapters = NO_ADAPTERS,
        keep: int = KEPT_BYTES,
    ) -> None:
        """Build both halves; adapters: those that the arm names. Raises ModelError where their weights do not fit."""
        self.arm = arm
        self._tokenizer = tokenizer
        self.reader = Reader(SplitModel(forks.of(adapters.suffix), arm.split), identity.bos_id)
        self.writer = ArmWriter(arm, forks, identity, chunk, adapters, keep)

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

        clock = Clock(self.reader.split.device)
        rows = self.writer.rows(
            [[row.ids] for row in evidence.pack]
            if not self.arm.split
            else [workspace.document_up_to(workspace.place(chunk)) for chunk in evidence.pack]
        )
        write_ms = clock.lap()
        done = self.reader.generate(rows, query, sampling, on_token, on_logits=on_logits)
        stream.finish()
        del done.timing_ms["fetch"]  # the rows were at hand
        done.timing_ms = {"write": write_ms, **done.timing_ms}
        return Reply(stream.text, done, first[0])
