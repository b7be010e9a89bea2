"""What a kind of adapter learns from a pack: the layers with LoRA, and the loss.

suffix: LoRA on [j:L), loss = KL of the teacher's distributions to those read from written residuals.
write: LoRA on [0:j) for chunks alone (BOS and query stay with the stock layers), loss = error of a chunk's residuals
against the same chunk's in document context, ||h - h_doc||^2 / max(||h||^2, ||h_doc||^2) averaged over tokens, plus
that KL through the stock upper half (the paper's Table 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from comem_cli.model import distill_step as step
from comem_cli.model import lora
from comem_cli.model.distill_options import POOL, DistillOptions
from comem_cli.model.distill_pack import Pack, PackMaker, Parts
from comem_cli.model.distill_read import say
from comem_cli.model.distill_sample import Sample
from comem_cli.model.load import ModelIdentity
from comem_cli.model.modes import DocumentMode, make_mode
from comem_cli.model.split import SplitModel

Figures = dict[str, tuple[float, int]]  # name -> sum and count


@dataclass(frozen=True)
class Taught:
    """Hold samples as the student reads them, and what the teacher says at their weighted places."""

    packs: list[Pack]
    parts: list[Parts]
    in_packs: step.Target
    in_parts: step.Target


class Lesson:
    """Hold teacher and student of one run; the stock model is never changed."""

    def __init__(self, model: PreTrainedModel, identity: ModelIdentity, options: DistillOptions) -> None:
        """Fork the model and inject LoRA; raises UsageError (2) where the layers hold nothing to adapt."""
        self.options = options
        writes = options.kind == "write"
        layers = (0, options.split) if writes else (options.split, identity.n_layers)
        self.forked = lora.fork(model)
        self.config = lora.lora_config(model, *layers, options.rank, options.alpha)
        self.parameters: list[tuple[str, nn.Parameter]] = lora.inject(self.forked, self.config, options.seed)
        self.teacher = SplitModel(model, 0)
        self.frozen = SplitModel(model, options.split)
        self.student = SplitModel(self.forked, options.split)
        self._memory: dict[tuple[int, ...], Taught] = {}
        self._mode = make_mode(options.mode, options.overlap, identity.window)
        writer = self.student if writes else self.frozen
        self.maker = PackMaker(writer, self.frozen, self._mode, options, identity.bos_id)
        wide = DocumentMode(identity.window)
        self._oracle = PackMaker(self.frozen, self.frozen, wide, options, identity.bos_id)

    def loss(self, samples: Sequence[tuple[int, Sample]]) -> tuple[torch.Tensor, Figures]:
        """Return the summed loss of (number, sample) pairs, with gradients, and sums and counts for the log."""
        taught, figures = self._prepared(samples), Figures()
        packs, parts = taught.packs, taught.parts
        with step.mixed_precision(self.forked):
            total = torch.zeros((), device=self.student.device)
            if self.options.kind == "write":
                packs, total = self._rewritten(packs)
                figures["error"] = (float(total.detach()), len(packs))
            ours, state = step.pack_logits(self.student, packs)
            in_pack = step.divergence(taught.in_packs, ours)
            said = step.part_logits(self.student, state, parts)
            in_parts = step.divergence(taught.in_parts, said)
        tokens = step.true_tokens(parts)
        mixed = step.with_gold(in_parts, said, tokens, self.options.gold)
        total = total + (in_pack * step.weights_of(packs)).sum() + (mixed * step.weights_of(parts)).sum()
        copied = in_parts.detach()[tokens >= 0]
        for name, each in (("kl_pack", in_pack), ("kl_query", in_parts), ("kl_copied", copied)):
            figures[name] = (float(each.detach().sum()), len(each))
        return total, figures

    def _prepared(self, samples: Sequence[tuple[int, Sample]]) -> Taught:
        """Write samples and let the teacher read them, or remember it from an earlier visit in this process."""
        numbers = tuple(number for number, _ in samples)
        if numbers in self._memory:
            return self._memory[numbers]
        packs = self.packs(samples)
        seen, parts, answered = self.taught(packs)
        outcomes = self.options.outcomes
        taught = Taught(packs, parts, step.target_of(seen, outcomes), step.target_of(answered, outcomes))
        if self.options.visits > 1:
            block = numbers[0] // POOL
            self._memory = {key: held for key, held in self._memory.items() if key[0] // POOL == block}
            self._memory[numbers] = taught
        return taught

    def packs(self, samples: Sequence[tuple[int, Sample]], *, every: bool = False) -> list[Pack]:
        """Write the packs of samples as `PackMaker.packs` does: the writer may carry the LoRA weights."""
        with step.mixed_precision(self.forked):
            return self.maker.packs(samples, every=every)

    @torch.no_grad()
    def taught(self, packs: Sequence[Pack]) -> tuple[torch.Tensor, list[Parts], torch.Tensor]:
        """Let the teacher read packs, answer questions and read the parts: -> its logits on packs, parts, on parts."""
        seen, state = step.pack_logits(self.teacher, packs, stock=True)
        with step.mixed_precision(self.forked):
            parts = self.maker.parts(packs, partial(say, self.teacher, state))
        return seen, parts, step.part_logits(self.teacher, state, parts, stock=True)

    @torch.no_grad()
    def read(self, packs: Sequence[Pack], parts: Sequence[Parts]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the student's logits (n, vocab) at the weighted places of packs that its maker wrote, and of parts."""
        with step.mixed_precision(self.forked):
            seen, state = step.pack_logits(self.student, packs)
            return seen, step.part_logits(self.student, state, parts)

    def _rewritten(self, packs: Sequence[Pack]) -> tuple[list[Pack], torch.Tensor]:
        """Write the chunks again, with gradients; return the packs and the summed error against document context."""
        done: list[Pack] = []
        total = torch.zeros((), device=self.student.device)
        for pack, wanted in zip(packs, self._oracle.write([pack.sample for pack in packs]), strict=True):
            chunks = self._chunks(pack.sample)
            ours, theirs = chunks.float(), wanted.float()
            # The first token of a chunk may become an attention sink, hundreds of times as long as in its document.
            scale = torch.maximum(ours.detach().square().sum(-1), theirs.square().sum(-1)).clamp(min=1e-6)
            error = (ours - theirs).square().sum(-1) / scale
            total = total + error.mean()
            done.append(replace(pack, rows=torch.cat([pack.rows[: pack.begin], chunks])))
        return done, total

    def _chunks(self, sample: Sample) -> torch.Tensor:
        """Run the picked chunks one by one through [0:j) with LoRA: -> (n, d)."""
        rows = []
        for stretch in sample.stretches:
            document = [chunk.tobytes() for chunk in stretch.chunks]
            pending = self._mode.pending(document, lambda left, ids: "")
            for number in stretch.picked:
                left = len(pending[number].left) // 4
                ids = np.frombuffer(pending[number].left + pending[number].ids, "<u4").astype(np.int64)
                h = self.student.lower(torch.from_numpy(ids)[None].to(self.student.device))
                rows.append(h[0, left:])
        return torch.cat(rows)
