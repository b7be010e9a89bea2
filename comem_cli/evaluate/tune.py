"""Measure splits and modes on the user's own documents: what each loses against replay, saves and costs.

Quality is scored pack by pack: replay reads it once, then every arm. Only timings depend on the machine; everything
else follows from documents, options and seed. Nothing is kept: a run that was interrupted begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comem_cli.errors import UsageError
from comem_cli.evaluate.arm_adapters import Forks, adapters_of
from comem_cli.evaluate.arm_reader import ArmReader
from comem_cli.evaluate.arms import REPLAY, Arm
from comem_cli.evaluate.needles import Needle, plant
from comem_cli.evaluate.pack_fidelity import FURTHEST, Documents, Pack, draw_packs
from comem_cli.evaluate.tune_choice import Budget, Recommendation, recommend
from comem_cli.evaluate.tune_options import TuneOptions
from comem_cli.evaluate.tune_quality import Seen, read_needle, read_pack
from comem_cli.evaluate.tune_row import TuneRow, WriteCost
from comem_cli.evaluate.tune_speed import ReadTimes, Timed, read_times, sample_documents, write_times
from comem_cli.measure.crossing import crossing
from comem_cli.measure.inference import Estimate
from comem_cli.measure.statistics import median, paired_interval, paired_ratio
from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.model.flops import lower_flops
from comem_cli.model.modes import WriteMode, make_mode
from comem_cli.model.split import SplitModel
from comem_cli.read.evidence import room_for_pack
from comem_cli.store.reader import StoreReader
from comem_cli.store.row_layout import RowLayout

if TYPE_CHECKING:
    import tokenizers

SCHEMA = 1
TIMED_PACKS = 2
WRITE_TOKENS = 8192  # about so many are written to time Write
KEPT_BYTES = 1 << 26  # residuals of an arm in memory: packs share few chunks
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tuning:
    """Hold everything that was measured, and the recommendation."""

    facts: dict[str, Any]
    rows: tuple[TuneRow, ...]
    budget: Budget
    recommendation: Recommendation


class Tuner:
    """Measure one corpus; what cannot be measured is said before the model is loaded."""

    def __init__(
        self,
        reader: StoreReader,
        files: load.ModelFiles,
        options: TuneOptions,
        note: Callable[[str], None],
        progress: Progress,
    ) -> None:
        """Draw packs and needles; progress receives (steps done, steps in all).

        Raises: UsageError (2) for a range, a mode or a corpus that is too small, FingerprintError (12) for an adapter
        of something else.
        """
        self.options, self._files, self._note, self._progress = options, files, note, progress
        self.identity = load.identity(files)
        self.tokenizer: tokenizers.Tokenizer = load.tokenizer(files)
        self.chunk = reader.fingerprint.chunk
        plain = options.arms(self.identity)
        self.arms = options.with_adapters(plain, self.identity, self.chunk)
        self._documents = Documents(reader)
        self._tokens, self._roots = reader.counts().tokens, sorted(reader.roots().values())
        furthest = FURTHEST if any(arm.mode == "document" for arm in plain) else None
        size = options.chunks
        drawn = draw_packs(self._documents, max(options.packs, options.needles), size, options.seed, furthest)
        self.packs = drawn[: options.packs]
        self.needles = [self._plant(drawn[n % len(drawn)], n) for n in range(options.needles)]
        self._query = self._plant(drawn[0], -1).question if options.needles else self._made_question()
        self._require_room(drawn)
        self._steps = self._done = 0

    def run(self) -> Tuning:
        """Measure every arm; raises ModelError."""
        options = self.options
        splits = sorted({arm.split for arm in self.arms})
        timed = self.packs[:TIMED_PACKS]
        modes = {split: self._modes(split) for split in splits}
        self._steps = (len(self.packs) + len(self.needles)) * (1 + len(self.arms))
        self._steps += len(timed) * (1 + options.repeat) * (1 + len(splits))
        self._steps += options.repeat * sum(map(len, modes.values()))
        self._note(f"loading {self._files.name} ...")
        forks = Forks(load.load(self._files, *pick(options.device, options.dtype)))
        readers = {arm: self._reader(arm, forks) for arm in (REPLAY, *self.arms)}
        self._note(f"reading {len(self.packs)} packs and {len(self.needles)} needles with {len(readers)} arms ...")
        seen = {arm: Seen() for arm in readers}
        for pack in self.packs:
            read_pack([self._documents.up_to(spot) for spot in pack], self.identity.bos_id, readers, seen, self._tick)
        for needle in self.needles:
            read_needle(needle, readers, seen, self._tick)
        self._note("timing Read and Write ...")
        plain = {split: self._reader(Arm(split), forks) for split in (0, *splits)}
        reads = read_times(
            {split: self._timed(reader, timed) for split, reader in plain.items()},
            options.generate,
            options.repeat,
            options.seed,
            self._tick,
        )
        writes = dict(self._writes(plain, modes))
        rows = tuple(self._row(arm, seen, reads, writes[arm.split, arm.mode, arm.overlap]) for arm in self.arms)
        replay_s = median(reads[0].whole)
        budget = Budget(options.loss, options.copy_loss, options.questions, self._tokens, replay_s)
        return Tuning(self._facts(forks, seen[REPLAY], replay_s), rows, budget, recommend(rows, budget))

    # what is read

    def _plant(self, pack: Pack, number: int) -> Needle:
        return plant(self._documents, pack, self.tokenizer, self.chunk, f"{self.options.seed}/needle/{number}")

    def _made_question(self) -> tuple[int, ...]:
        """Return ids that stand for a question where there is no needle: the beginning of a chunk."""
        import numpy as np

        first = self._documents.up_to(self.packs[0][0])[-1]
        return tuple(np.frombuffer(first, "<u4").tolist()[:24])

    def _require_room(self, drawn: Sequence[Pack]) -> None:
        longest = max((len(needle.query) for needle in self.needles), default=len(self._query))
        room = room_for_pack(self.identity, longest, self.options.generate)
        tokens = [sum(len(self._documents.up_to(spot)[-1]) // 4 for spot in pack) for pack in drawn]
        tokens += [sum(len(document[-1]) // 4 for document in needle.documents) for needle in self.needles]
        if max(tokens) > room:
            raise UsageError(
                f"packs of {max(tokens)} tokens do not fit into the {room} that the model's window leaves",
                "pass a smaller --chunks or --chunk",
            )

    def _reader(self, arm: Arm, forks: Forks) -> ArmReader:
        adapters = adapters_of(arm, self.identity, self.chunk)
        return ArmReader(arm, forks, self.identity, self.tokenizer, self.chunk, adapters, KEPT_BYTES)

    # what is timed

    def _modes(self, split: int) -> list[WriteMode]:
        """Return chunk mode, then the other modes of a split."""
        wanted = [("chunk", 0), *((arm.mode, arm.overlap) for arm in self.arms if arm.split == split)]
        return [make_mode(*one, self.identity.window) for one in dict.fromkeys(wanted)]

    def _timed(self, reader: ArmReader, packs: Sequence[Pack]) -> Timed:
        rows = tuple(reader.writer.rows([self._documents.up_to(spot) for spot in pack]) for pack in packs)
        return Timed(reader.reader, rows, (self._query,) * len(rows))

    def _writes(
        self, readers: dict[int, ArmReader], modes: dict[int, list[WriteMode]]
    ) -> Iterator[tuple[tuple[int, str, int], WriteCost]]:
        documents = sample_documents(self._documents, WRITE_TOKENS, self.options.seed)
        lengths = [[len(chunk) // 4 for chunk in document] for document in documents]
        tokens = sum(map(sum, lengths))
        for split, some in modes.items():
            model: SplitModel = readers[split].reader.split
            times = write_times(
                model,
                some,
                documents,
                self.chunk,
                routed=self.identity.routed,
                repeat=self.options.repeat,
                tick=self._tick,
            )
            flops = lower_flops(self._files.directory, split)
            costs = [sum(flops.forwards(mode.forwards(each)) for each in lengths) for mode in some]
            for mode, seconds, cost in zip(some, times, costs, strict=True):
                ratio, span = paired_ratio(seconds, times[0], seed=self.options.seed)
                held = Estimate(ratio, span.low, span.high, len(seconds))
                yield (split, mode.name, mode.overlap), WriteCost(median(seconds) / tokens, held, cost / costs[0])

    def _tick(self) -> None:
        self._done += 1
        self._progress(self._done, self._steps)

    # what comes out

    def _row(self, arm: Arm, seen: dict[Arm, Seen], reads: dict[int, ReadTimes], write: WriteCost) -> TuneRow:
        mine, seed = seen[arm], self.options.seed
        adapter = adapters_of(arm, self.identity, self.chunk).suffix
        whole, replay = reads[arm.split].whole, reads[0].whole
        saving = paired_interval(replay, whole, seed=seed)
        speedup, span = paired_ratio(reads[0].first, reads[arm.split].first, seed=seed)
        return TuneRow(
            arm=arm,
            adapter=adapter.name if adapter is not None else None,
            positions=mine.positions,
            lm_tax=mine.lm_tax(seed),
            agreement=mine.agreement(seed),
            kl=mine.kl(seed),
            first_kl=mine.first_kl(seed),
            copying=mine.copying(seen[REPLAY], seed),
            speedup=Estimate(speedup, span.low, span.high, len(whole)),
            question_s=median(whole),
            token_bytes=RowLayout(self.identity.width, arm.residual_dtype).row_bytes,
            write=write,
            crossing=crossing(self._tokens * write.token_s, median(replay) - median(whole), saving),
        )

    def _facts(self, forks: Forks, replay: Seen, replay_s: float) -> dict[str, Any]:
        options, model = self.options, self.identity
        kv = 4 * model.n_layers * model.kv_heads * model.head_dim if model.kv_heads and model.head_dim else None
        return {
            "model": model.name,
            "layers": model.n_layers,
            "device": str(forks.stock.device),
            "dtype": str(forks.stock.dtype).removeprefix("torch."),
            "roots": self._roots,
            "tokens": self._tokens,
            "chunk": self.chunk,
            "packs": len(self.packs),
            "packs_asked_for": options.packs,
            "chunks_a_pack": options.chunks,
            "needles": len(self.needles),
            "needles_copied_by_replay": sum(replay.copied),
            "repeat": options.repeat,
            "generate": options.generate,
            "replay_question_s": replay_s,
            "residual_dtypes": list(options.residual_dtypes),
            "full_kv_bytes_per_token": kv,
            "seed": options.seed,
        }
