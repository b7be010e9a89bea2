"""Run arms over cells: the same pack, the same order, the same examples for every arm; resumable at any moment.

For each example the pack is selected once, by `ask`'s own code; each arm that has no record yet answers from it, and
its record is on disk before the next arm begins. A run that was killed goes on where it was, and ends with the same
records as an undisturbed one, timings apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.evaluate.arm_adapters import Forks, adapters_of
from comem_cli.evaluate.arms import REPLAY, Arm
from comem_cli.evaluate.records import Record, RecordFile
from comem_cli.evaluate.score import scorer
from comem_cli.evaluate.task import Cell, Example
from comem_cli.evaluate.workspace import Workspace
from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.read.evidence import Evidence, room_for_pack
from comem_cli.select.choose import DEFAULT_SELECTOR, HOP, SelectorChoice
from comem_cli.select.selector import Selector
from comem_cli.select.terms import DEFAULT_TERMS, IDENTITIES
from comem_cli.store.setup import CHUNK

if TYPE_CHECKING:
    import torch

    from comem_cli.evaluate.arm_reader import ArmReader, Reply


@dataclass(frozen=True)
class RunOptions:
    """Hold what decides an answer besides arm and example; max_new_tokens None means the benchmark's own."""

    chunk: int = CHUNK
    top_k: int = 12
    hop: int = HOP
    rounds: int | None = None
    selector: str = DEFAULT_SELECTOR
    terms: str = DEFAULT_TERMS
    max_new_tokens: int | None = None
    device: str = "auto"
    dtype: str = "auto"

    def checked(self) -> RunOptions:
        """Return the options; raises UsageError (2) for a value out of range."""
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens {self.max_new_tokens} is below 1", "pass --max-new-tokens 32")
        if self.chunk < 1:
            raise UsageError(f"--chunk {self.chunk} is below 1", f"pass --chunk {CHUNK}")
        if self.terms not in IDENTITIES:
            raise UsageError(f"unknown terms '{self.terms}'", f"pass --terms {' or '.join(IDENTITIES)}")
        self.choice().build()
        return self

    def choice(self) -> SelectorChoice:
        """Name the selector; raises UsageError (2) for a value out of range."""
        return SelectorChoice(self.selector, self.top_k, self.hop, self.rounds)


class Runner:
    """Answer every example of a cell with every arm; a context manager.

    records: where answers go, and those that are there already. note receives one line before the model is loaded.
    """

    def __init__(
        self,
        files: load.ModelFiles,
        arms: Sequence[Arm],
        options: RunOptions,
        records: RecordFile,
        note: Callable[[str], None],
    ) -> None:
        """Settle the settings.

        Raises: UsageError (2) for a value out of range and for what is no adapter, FingerprintError (12) for an adapter
        of something else, ModelError.
        """
        self.tokenizer = load.tokenizer(files)
        self.identity = load.identity(files)
        self._files, self._options, self._records, self._note = files, options, records, note
        self._arms = sorted(arms, key=lambda arm: arm != REPLAY)  # replay first: others are held against it
        self._selector: Selector = options.choice().build()
        room = max(0, self.identity.window - options.chunk)
        for arm in self._arms:
            if arm.split > self.identity.n_layers:
                raise UsageError(f"arm '{arm.spec}': the model has {self.identity.n_layers} layers", "pass another j")
            if arm.overlap > room:
                raise UsageError(f"arm '{arm.spec}': overlap is outside 0..{room} tokens", "pass overlap=32")
        self._picked = pick(options.device, options.dtype)
        self._adapters = {arm: adapters_of(arm, self.identity, options.chunk) for arm in self._arms}
        self._identities = {arm: self._digest(arm) for arm in self._arms}
        self._forks: Forks | None = None
        self._readers: dict[Arm, ArmReader] = {}
        self._workspace: tuple[Example, Workspace] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_workspace()

    def require_fit(self, cells: Sequence[Cell]) -> None:
        """Refuse, before hours of work, records that no report could show beside those of `cells`.

        Raises: UsageError (2) where the records of a cell are about other examples (another n, seed or data), or an
        arm's records of a cohort were made with other settings.
        """
        digests = {(cell.cohort, cell.name): cell.digest() for cell in cells}
        cohorts = {cell.cohort for cell in cells}
        identities = {arm.spec: identity for arm, identity in self._identities.items()}
        for record in self._records.done.values():
            if digests.get((record.cohort, record.cell), record.cell_digest) != record.cell_digest:
                raise UsageError(
                    f"{self._records.path} holds answers to other examples of '{record.cell}'",
                    "repeat the --n, --seed and data of that run, or pass another --out FILE",
                )
            if record.cohort in cohorts and identities.get(record.arm, record.identity) != record.identity:
                raise self._other_settings(record.arm)

    def _other_settings(self, arm: str) -> UsageError:
        return UsageError(
            f"{self._records.path} holds answers of '{arm}' that were made with other settings",
            "repeat the settings of that run, or pass another --out FILE",
        )

    def run(self, cell: Cell) -> Iterator[Record]:
        """Yield the record of every (example, arm), those that were there already included.

        Raises: UsageError (2) where a record that is there was made with other settings, and what `ask` raises but for
        "no evidence", which is a record with an error and score 0.
        """
        digest = cell.digest()
        for example in cell.examples:
            done = {arm: self._known(digest, example, arm) for arm in self._arms}
            missing = [arm for arm, record in done.items() if record is None]
            yield from (record for record in done.values() if record is not None)
            if missing:
                yield from self._answer(cell, digest, example, missing)

    def _known(self, digest: str, example: Example, arm: Arm) -> Record | None:
        record = self._records.done.get((digest, example.id, arm.spec))
        if record is not None and record.identity != self._identities[arm]:
            raise self._other_settings(arm.spec)
        return record

    def _answer(self, cell: Cell, digest: str, example: Example, missing: Sequence[Arm]) -> Iterator[Record]:
        """Answer one example with the missing arms, from one pack."""
        workspace = self._open(example)
        query = self.tokenizer.encode(example.prompt, add_special_tokens=False).ids
        limit = self._options.max_new_tokens or cell.max_new_tokens
        room = room_for_pack(self.identity, len(query), limit)
        try:
            evidence = workspace.find(example.question, room)
        except NoEvidenceError as error:
            for arm in missing:
                yield self._add(_without_evidence(cell, digest, example, arm.spec, self._identities[arm], str(error)))
            return
        held = workspace.held(example.evidence, evidence.pack)
        replay: torch.Tensor | None = None
        if REPLAY in self._arms and REPLAY not in missing:
            replay = self._reply(cell, example, REPLAY, evidence, query, 1).first_logits
        for arm in missing:
            reply = self._reply(cell, example, arm, evidence, query, limit)
            if arm == REPLAY:
                replay = reply.first_logits
            extra = _first_token(reply.first_logits, replay) if replay is not None and arm != REPLAY else {}
            yield self._add(self._record(cell, digest, example, arm, evidence, held, reply, extra))

    def _reply(
        self, cell: Cell, example: Example, arm: Arm, evidence: Evidence, query: Sequence[int], limit: int
    ) -> Reply:
        from comem_cli.read.generate import Sampling

        rule = scorer(cell.scorer)
        sampling = Sampling(max_new_tokens=limit, eos_ids=self.identity.eos_ids)

        def settled(text: str) -> bool:
            return rule.settled(text, example)

        assert self._workspace is not None
        return self._reader(arm).reply(self._workspace[1], evidence, query, sampling, cell.stop, settled)

    def _record(
        self,
        cell: Cell,
        digest: str,
        example: Example,
        arm: Arm,
        evidence: Evidence,
        held: Sequence[bool],
        reply: Reply,
        extra: dict[str, float],
    ) -> Record:
        done = reply.generation
        timing = {"select": evidence.select_ms, **done.timing_ms}
        return Record(
            **_head(cell, digest, example, arm.spec, self._identities[arm]),
            prediction=reply.text,
            score=scorer(cell.scorer).score(reply.text, example),
            hit=all(held) if held else None,
            recall=sum(held) / len(held) if held else None,
            chunks=tuple(chunk.key for chunk in evidence.pack),
            pack_tokens=done.pack_tokens,
            new_tokens=len(done.ids),
            finish=done.finish,
            timing_ms={name: round(ms, 3) for name, ms in timing.items()},
            extra=extra,
        )

    def _add(self, record: Record) -> Record:
        self._records.add(record)
        return record

    def _open(self, example: Example) -> Workspace:
        """Return the workspace of an example's corpus; that of the corpus before is removed."""
        if self._workspace is None or self._workspace[0].documents is not example.documents:
            self._close_workspace()
            options = self._options
            opened = Workspace(
                example.documents, self._files, self.tokenizer, self._selector, options.chunk, options.terms
            )
            self._workspace = (example, opened)
        return self._workspace[1]

    def _close_workspace(self) -> None:
        if self._workspace is not None:
            self._workspace[1].__exit__(None, None, None)
            self._workspace = None

    def _reader(self, arm: Arm) -> ArmReader:
        """Return the arm's reader; the model is loaded for the first, and all share it."""
        from comem_cli.evaluate.arm_reader import ArmReader

        if self._forks is None:
            self._note(f"loading {self._files.name} ...")
            self._forks = Forks(load.load(self._files, *self._picked))
        if arm not in self._readers:
            self._readers[arm] = ArmReader(
                arm, self._forks, self.identity, self.tokenizer, self._options.chunk, self._adapters[arm]
            )
        return self._readers[arm]

    def _digest(self, arm: Arm) -> str:
        """Digest what decides an answer besides cell and example."""
        model = [self.identity.weights, self.identity.config, self.identity.tokenizer, self.identity.bos_id]
        options = self._options
        rest = [arm.spec, *astuple(options.choice()), IDENTITIES[options.terms], options.chunk, options.max_new_tokens]
        adapters = self._adapters[arm].digests()
        text = json.dumps([*model, *rest, str(self._picked[1]), self._picked[0].type, *adapters])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _head(cell: Cell, digest: str, example: Example, arm: str, identity: str) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "cell_digest": digest,
        "cohort": cell.cohort,
        "example": example.id,
        "group": example.group,
        "category": example.category,
        "arm": arm,
        "identity": identity,
    }


def _without_evidence(cell: Cell, digest: str, example: Example, arm: str, identity: str, error: str) -> Record:
    known = bool(example.evidence)
    head = _head(cell, digest, example, arm, identity)
    hit, recall = (False, 0.0) if known else (None, None)
    return Record(**head, prediction="", score=0.0, hit=hit, recall=recall, error=error)


def _first_token(logits: torch.Tensor, replay: torch.Tensor) -> dict[str, float]:
    """Compare an arm's first-token logits (vocab,) with replay's: KL(replay || arm) in nats, and equal first choice."""
    import torch

    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), replay.log_softmax(-1), reduction="sum", log_target=True)
    equal = float(logits.argmax() == replay.argmax())
    return {"first_token_kl": round(float(kl), 6), "first_token_equal": equal}
