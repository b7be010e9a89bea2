"""Train an adapter by self-distillation: one command that goes on where it was stopped.

AdamW on fp32 LoRA weights; linear warm-up, then a cosine to zero; gradients added up over the samples of a step (and
over processes) and clipped. Step s takes the samples at places s * batch .. s * batch + batch - 1, each a function of
the seed and its number, so a run killed at any moment and resumed ends with the weights of an undisturbed one. The
paper's §4, Self-distillation, and Table 28.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from comem_cli.errors import UsageError
from comem_cli.model import distill_corpus, load, lora
from comem_cli.model.adapter import RECORD, Adapter, Interface, read_adapter, record_of
from comem_cli.model.device import pick
from comem_cli.model.distill_checkpoint import RunFolder, write_whole
from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_held import HeldOut
from comem_cli.model.distill_lesson import Lesson
from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.distill_sample import RECIPE
from comem_cli.model.distill_state import restore, snapshot
from comem_cli.model.ranks import Ranks

LIBRARIES = ("torch", "transformers", "peft", "tokenizers", "safetensors")
_FIGURES = ("loss", "kl_pack", "kl_query", "kl_copied", "error")
OnEvent = Callable[[dict[str, Any]], None]


class Distillation:
    """Hold one run. Opening reads the corpus and checks the options; `run` loads the model and trains."""

    def __init__(
        self,
        sources: Sequence[Path],
        files: load.ModelFiles,
        out: Path,
        options: DistillOptions,
        held_out: Sequence[Path] = (),
        init: Path | None = None,
    ) -> None:
        """Open a run; held_out: what not to train on; init: an adapter to begin with, of the same layers and rank.

        Raises: UsageError (2) for a value out of range, a corpus without text, and what is no adapter, or of another
        rank; FingerprintError (12) for an adapter of other layers.
        """
        self.identity = load.identity(files)
        self.options = options.checked(self.identity)
        self._init = self._beginning(init) if init else None
        self.folder = RunFolder(out)
        self._files = files
        self._tokenizer = load.tokenizer(files)
        self._corpus = distill_corpus.read_split(sources, held_out)
        train, held = self._corpus.texts()
        self._sampler = Sampler(train, self._tokenizer, self.options.recipe())
        self._held = Sampler(held, self._tokenizer, self.options.recipe(held=True))

    @property
    def done(self) -> bool:
        """Tell whether this very run is finished; raises FingerprintError (12) where another one is in its place."""
        finished = (self.folder.out / RECORD).is_file()
        if finished:
            self.folder.claim(self._run())
        return finished

    def run(self, on_event: OnEvent, on_step: Callable[[int], None], on_load: Callable[[], None]) -> dict[str, Any]:
        """Train to the end and write the adapter; return its record.

        on_event: a dict for each step and measurement; on_step: the steps done so far, at the start and after each.
        Raises: LockedError (11), FingerprintError (12) for another run's options in the same directory.
        """
        device, dtype = pick(self.options.device, self.options.dtype)
        ranks = Ranks(device)
        if not ranks.first:
            return self._train(ranks, dtype, lambda event: None, lambda step: None, on_load)
        with self.folder.locked():
            self.folder.claim(self._run())
            return self._train(ranks, dtype, on_event, on_step, on_load)

    def _train(
        self,
        ranks: Ranks,
        dtype: torch.dtype,
        on_event: OnEvent,
        on_step: Callable[[int], None],
        on_load: Callable[[], None],
    ) -> dict[str, Any]:
        options = self.options
        on_load()
        lesson = Lesson(load.load(self._files, ranks.device, dtype), self.identity, options)
        weights = [parameter for _, parameter in lesson.parameters]
        optimiser = torch.optim.AdamW(weights, lr=options.lr, weight_decay=options.weight_decay, foreach=False)
        start, history = self._resume(lesson, optimiser)
        held = HeldOut(lesson, self._held, options.recipe(held=True), options.eval_packs)
        on_step(start)
        if start == 0 and not history:
            history.append({"step": 0, **held.measure()})
            on_event({"event": "held-out", **history[-1]})
        for step in range(start, options.steps):
            on_event({"event": "step", **self._step(step, lesson, optimiser, ranks)})
            done = step + 1
            on_step(done)
            if done % options.eval_every == 0 or done == options.steps:
                history.append({"step": done, **held.measure()})
                on_event({"event": "held-out", **history[-1]})
            if ranks.first and (done % options.checkpoint_every == 0 or done == options.steps):
                self.folder.save(snapshot(done, lesson.parameters, optimiser, history))
        if not ranks.first:
            ranks.wait()
            return {}
        record = self._finish(lesson, history, ranks, str(dtype).removeprefix("torch."))
        ranks.wait()
        return record

    def _step(self, step: int, lesson: Lesson, optimiser: torch.optim.Optimizer, ranks: Ranks) -> dict[str, Any]:
        """Take one optimiser step over this process's share of the samples."""
        options, began = self.options, time.perf_counter()
        rate = options.lr * schedule(step, options.warmup, options.steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        numbers = [options.sample_at(step * options.batch + at) for at in ranks.share(options.batch)]
        sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in _FIGURES}
        for at in range(0, len(numbers), options.micro):
            part = [(number, self._sampler.sample(options.seed, number)) for number in numbers[at : at + options.micro]]
            loss, figures = lesson.loss(part)
            (loss / options.batch).backward()  # type: ignore[no-untyped-call]
            for name, (value, count) in {"loss": (float(loss.detach()), len(part)), **figures}.items():
                sums[name][0] += value
                sums[name][1] += count
        weights = [parameter for _, parameter in lesson.parameters]
        ranks.sum_gradients(weights)
        norm = float(torch.nn.utils.clip_grad_norm_(weights, options.clip))
        optimiser.step()
        added = ranks.sum_numbers([number for pair in sums.values() for number in pair])
        facts = {name: value / count for name, value, count in zip(sums, added[::2], added[1::2], strict=True) if count}
        seconds = time.perf_counter() - began
        return {"step": step + 1, **facts, "lr": rate, "grad_norm": norm, "seconds": round(seconds, 3)}

    def _resume(self, lesson: Lesson, optimiser: torch.optim.Optimizer) -> tuple[int, list[dict[str, Any]]]:
        """Set weights and moments from the last checkpoint; return the steps done and what was measured.

        Without one the weights are those of the adapter to begin with, if there is one.
        """
        found = self.folder.latest()
        if found is None:
            if self._init:
                lora.load_weights(lesson.forked, lora.read_weights(self._init)[1])
            return 0, []
        restore(found, lesson.parameters, optimiser)
        return found.step, list(found.facts["history"])

    def _run(self) -> dict[str, Any]:
        """Say which run this is: every option, the model, the corpus."""
        model = {"weights": self.identity.weights, "config": self.identity.config, "tokenizer": self.identity.tokenizer}
        begun = {"init": self._init.digest} if self._init else {}
        return {**self.options.to_dict(), "recipe": RECIPE, **model, **self._digests(), **begun}

    def _beginning(self, init: Path) -> Adapter:
        """Read the adapter to begin with; chunks, mode and left context may have been others."""
        adapter, options = read_adapter(init), self.options
        old = adapter.interface
        wanted = Interface.of(self.identity, split=options.split, chunk=old.chunk, mode=old.mode, overlap=old.overlap)
        adapter.require(options.kind, wanted)
        if (adapter.rank, adapter.alpha) != (options.rank, options.alpha):
            raise UsageError(
                f"--init {init} has rank {adapter.rank} and alpha {adapter.alpha}",
                f"pass --rank {adapter.rank} --alpha {adapter.alpha}",
            )
        return adapter

    def _data(self) -> list[dict[str, Any]]:
        """List the documents that the weights come from, those of the adapter that they began with too."""
        own = distill_corpus.facts(self._corpus.train, self._tokenizer)
        earlier = self._init.record.get("data", []) if self._init else []
        known = {text["sha256"] for text in own}
        return own + [text for text in earlier if text["sha256"] not in known]

    def _digests(self) -> dict[str, str]:
        found = {"corpus": self._corpus.train, "held_out": self._corpus.held}
        return {name: distill_corpus.digest(texts) for name, texts in found.items()}

    def _finish(self, lesson: Lesson, history: list[dict[str, Any]], ranks: Ranks, dtype: str) -> dict[str, Any]:
        """Write the adapter; its record comes last, so that a directory with a record is whole."""
        options, out = self.options, self.folder.out
        lora.save_weights(out, lesson.forked, lesson.config, self.identity.name)
        interface = Interface.of(
            self.identity, split=options.split, chunk=options.chunk, mode=options.mode, overlap=options.overlap
        )
        record = record_of(
            options.kind,
            interface,
            options.rank,
            options.alpha,
            model=self.identity.name,
            steps=options.steps,
            seed=options.seed,
            options=options.to_dict(),
            recipe=RECIPE,
            data=self._data(),
            corpus=self._digests()["corpus"],
            held_out={"how": self._corpus.how, "documents": distill_corpus.facts(self._corpus.held, self._tokenizer)},
            metrics={"before": history[0], "after": history[-1]},
            history=history,
            computed={"device": ranks.device.type, "dtype": dtype, "processes": ranks.size},
            versions={name: version(name) for name in LIBRARIES},
            **({"init": dict(self._init.record) | {"sha256": self._init.digest}} if self._init else {}),
        )
        write_whole(out / RECORD, json.dumps(record, indent=1).encode())
        self.folder.clear()
        return record


def schedule(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the learning rate at `step`, counted from 0: up over `warmup` steps, then half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
