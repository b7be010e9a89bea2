"""Ask a store: checks in the order in which they cost, the model loaded once and only for a question with evidence."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comem_cli.errors import ComemError, IndexStaleError, UsageError
from comem_cli.model import load
from comem_cli.model.adapter import SAFE, Interface, choose_adapter
from comem_cli.read.evidence import Evidence, EvidenceFinder, Extent, Source, room_for_pack
from comem_cli.read.layout import ReadVariant
from comem_cli.read.text import STOP, TEMPLATE, question_object, render
from comem_cli.select.attention import Scorer
from comem_cli.select.choose import DEFAULT_SELECTOR, HOP, WITH_VECTORS, SelectorChoice
from comem_cli.select.selector import Selector
from comem_cli.select.store_index import index_path, opening_index
from comem_cli.select.terms import IDENTITIES
from comem_cli.select.vectors import open_vectors, vectors_path
from comem_cli.store.identify import require_model
from comem_cli.store.reader import StoreReader
from comem_cli.store.writer import COMPUTE_DTYPE

if TYPE_CHECKING:
    from comem_cli.read.generate import Sampling
    from comem_cli.read.session import Answer, Session

SCHEMA = 1
OPENINGS = 3  # of a store whose index is replaced between opening the catalogue and opening the index
REPLACED_SECONDS = 0.05
LEAST_TEMPERATURE = 1e-3  # below it, and above its inverse, the softmax of fp32 logits over- or underflows
BOUNDARY = "selected-pack read"  # what `read` times: [j:L) over the pack, up to the first logits
RESERVED = ("line", "answer", "sources", "error", "exit_code")  # fields of an answer line that a question cannot set
ARMS = {"comem": ("comem",), "replay": ("replay",), "both": ("comem", "replay")}


@dataclass(frozen=True)
class AskOptions:
    """Hold what the user asked for; `stop` None means the defaults that go with the default template."""

    top_k: int = 12
    hop: int = HOP
    rounds: int | None = None  # as many as top_k needs
    arm: str = "comem"
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    template: str | None = None
    stop: Sequence[str] | None = None
    device: str = "auto"
    dtype: str = "auto"
    read_positions: str = "fresh"
    attention: str = "full"
    adapter: str | None = None  # a directory, "none", or None for one that fits
    replay_adapter: str = "off"
    selector: str = DEFAULT_SELECTOR
    terms: str | None = None
    budget: int | None = None
    neighbours: int = 0
    explain: bool = False
    pack_cache: int = 0  # megabytes
    batch: int = 1  # questions decoded at once

    def checked(self) -> AskOptions:
        """Return the options with their defaults filled in; raises UsageError (2) for a value out of range."""
        if self.arm not in ARMS:
            raise UsageError(f"unknown arm '{self.arm}'", f"pass --arm {', '.join(ARMS)}")
        if self.max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens {self.max_new_tokens} is below 1", "pass --max-new-tokens 64")
        if self.temperature and not LEAST_TEMPERATURE <= self.temperature <= 1 / LEAST_TEMPERATURE:
            raise UsageError(
                f"--temperature {self.temperature} is neither 0 nor within {LEAST_TEMPERATURE} and its inverse",
                "pass --temperature 0 for greedy answers",
            )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is outside 0..2^63 - 1", "pass --seed 0")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p} is outside (0, 1]", "pass --top-p 1")
        ReadVariant(self.read_positions, self.attention)
        if self.replay_adapter not in ("on", "off"):
            raise UsageError(f"unknown --replay-adapter '{self.replay_adapter}'", "pass --replay-adapter on or off")
        if self.batch < 1:
            raise UsageError(f"--batch {self.batch} is below 1", "pass --batch 8")
        if self.pack_cache < 0:
            raise UsageError(f"--pack-cache {self.pack_cache} is below 0", "pass --pack-cache 1000, or 0 for none")
        self.choice()
        self.extent()
        if self.terms is not None and self.terms not in IDENTITIES:
            raise UsageError(f"unknown terms '{self.terms}'", f"pass --terms {' or '.join(IDENTITIES)}")
        stop = self.stop if self.stop is not None else STOP if self.template is None else ()
        return replace(self, stop=tuple(stop))

    def choice(self) -> SelectorChoice:
        """Return the selector's name and parameters; raises UsageError (2)."""
        return SelectorChoice(self.selector, self.top_k, self.hop, self.rounds)

    def extent(self) -> Extent:
        """Return the caps on the pack; raises UsageError (2)."""
        return Extent(self.budget, self.neighbours)

    def prompt(self, question: str) -> str:
        """Put a question into the template; raises UsageError (2) for an empty one, or a template without a place."""
        return render(TEMPLATE if self.template is None else self.template, question)


@dataclass(frozen=True)
class Asked:
    """Hold a question's answers (one an arm) and sources, with what is needed to report them."""

    question: str
    answers: tuple[Answer, ...]
    sources: tuple[Source, ...]
    facts: dict[str, Any]

    @property
    def agree(self) -> bool:
        """Tell whether all arms produced the same token ids."""
        return len({answer.ids for answer in self.answers}) == 1

    def to_json(self) -> dict[str, Any]:
        """Return the answer format: one arm flat, two arms under their names with `agree`."""
        head: dict[str, Any] = {"schema": SCHEMA, "question": self.question}
        if len(self.answers) == 1:
            head |= {**self.answers[0].to_json(), "arm": self.answers[0].arm}
        else:
            head |= {answer.arm: answer.to_json() for answer in self.answers} | {"agree": self.agree}
        return head | {"sources": [source.to_json() for source in self.sources], **self.facts}


class Asker:
    """Answer questions over one snapshot of a store; a context manager.

    Opening checks store (10), model (12) and index (15); a question is refused before the model is loaded where it is
    empty or too long (2) or no chunk matches (4). note and warn receive one line each.
    """

    def __init__(
        self,
        store: Path,
        resolve: Callable[[], load.ModelFiles],
        options: AskOptions,
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._options = options
        self._note, self._warn = note, warn
        self._session: Session | None = None
        for left in reversed(range(OPENINGS)):
            try:
                self._open = self._opened(store, resolve)
                return
            except IndexStaleError:
                if not left or not self._reader.index()[1]:
                    raise
                time.sleep(REPLACED_SECONDS)  # a writer replaced the index of this snapshot just now

    def _opened(self, store: Path, resolve: Callable[[], load.ModelFiles]) -> ExitStack:
        options = self._options
        with ExitStack() as stack:
            self._reader = stack.enter_context(StoreReader(store))
            self._files = resolve()
            self._identity = load.identity(self._files)
            require_model(self._reader.fingerprint, self._identity)
            self._adapter = choose_adapter(options.adapter, "suffix", self._interface())
            index_path(self._reader, options.terms)
            if options.selector in WITH_VECTORS:
                vectors_path(self._reader)
            self._tokenizer = load.tokenizer(self._files)
            index = opening_index(self._reader, self._tokenizer)
            import_session()
            finder = EvidenceFinder(self._reader, self._tokenizer, self._selector(), options.extent(), index.result())
            self._finder = stack.enter_context(finder)
            return stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def ask(self, question: str, on_text: Callable[[str], None] | None = None) -> Asked:
        """Select, read and answer; on_text receives the text of a single arm as it settles."""
        query, evidence = self.prepare(question)
        variant, stop = self._variant(), self._options.stop or ()
        answers = tuple(
            self.session.answer(evidence, query, arm, self._sampling(), stop, on_text, variant)
            for arm in ARMS[self._options.arm]
        )
        return self._asked(question, evidence, answers)

    def ask_together(self, prepared: Sequence[tuple[str, list[int], Evidence]]) -> list[Asked]:
        """Answer questions that `prepare` prepared, (question, query, evidence), decoding them at once."""
        packs = [(evidence, query) for _, query, evidence in prepared]
        variant, stop = self._variant(), self._options.stop or ()
        by_arm = [
            self.session.answer_together(packs, arm, self._sampling(), stop, variant) for arm in ARMS[self._options.arm]
        ]
        return [
            self._asked(question, evidence, answers)
            for (question, _, evidence), *answers in zip(prepared, *by_arm, strict=True)
        ]

    def _asked(self, question: str, evidence: Evidence, answers: Sequence[Answer]) -> Asked:
        why = {"selection": {"selector": self._options.selector, **evidence.why}} if evidence.why else {}
        return Asked(question, tuple(answers), evidence.sources, self._facts() | why)

    def prepare(self, question: str) -> tuple[list[int], Evidence]:
        """Return the ids of the rendered question and the chunks selected for it; no model is loaded."""
        options = self._options
        query = self._encode(options.prompt(question))
        room = room_for_pack(self._identity, len(query), options.max_new_tokens)
        return query, self._finder.find(question, room, why=options.explain)

    @property
    def store(self) -> StoreReader:
        """Return the snapshot that is asked."""
        return self._reader

    @property
    def session(self) -> Session:
        """Return the session, loading the model the first time."""
        return self._session or self._load()

    @property
    def attention(self) -> tuple[Scorer, int]:
        """Return what scores the store's chunks by the reader's attention, and how many of them its window holds."""
        chunk = self._reader.fingerprint.chunk
        return self._masses, max(1, self._identity.window * 7 // 8 // chunk)  # an eighth is left to the question

    def ask_lines(self, lines: Sequence[tuple[int, str | bytes]]) -> list[dict[str, Any]]:
        """Answer numbered JSON lines, decoding their answers at once.

        Other fields are passed through, and an error becomes fields of its own. A store that turns out damaged is
        raised, as for a single question.
        """
        answers: dict[int, dict[str, Any]] = {}
        prepared: dict[int, tuple[dict[str, Any], tuple[str, list[int], Evidence]]] = {}
        for number, line in lines:
            given = question_object(line)
            if given is None or not _is_json(given):
                hint = '{"question": "..."}'
                error = f"not a JSON object with a question, as {hint}"
                answers[number] = {"line": number, "error": error, "exit_code": 2}
                continue
            given = {key: value for key, value in given.items() if key not in RESERVED}
            try:
                prepared[number] = given, (given["question"], *self.prepare(given["question"]))
            except ComemError as error:
                answers[number] = _failed(given, error)
        answers |= self._answered(prepared)
        return [answers[number] for number, _ in lines]

    def _answered(
        self, prepared: Mapping[int, tuple[dict[str, Any], tuple[str, list[int], Evidence]]]
    ) -> dict[int, dict[str, Any]]:
        """Answer what is prepared: together, and one by one where one of them is refused."""
        try:
            asked = self.ask_together([one for _, one in prepared.values()]) if prepared else []
        except ComemError as error:
            if len(prepared) == 1:
                return {number: _failed(given, error) for number, (given, _) in prepared.items()}
            return {number: self._answered({number: one})[number] for number, one in prepared.items()}
        return {
            number: {**given, **done.to_json()}
            for (number, (given, _)), done in zip(prepared.items(), asked, strict=True)
        }

    def _sampling(self) -> Sampling:
        from comem_cli.read.generate import Sampling

        options = self._options
        return Sampling(
            options.max_new_tokens, options.temperature, options.top_p, options.seed, self._identity.eos_ids
        )

    def _variant(self) -> ReadVariant:
        return ReadVariant(self._options.read_positions, self._options.attention)

    def _selector(self) -> Selector:
        """Build the selector; that of attention loads the model when it is first used."""
        return self._options.choice().build(lambda: open_vectors(self._reader), *self.attention)

    def _masses(self, question: str, chunk_ids: Sequence[int]) -> Sequence[float]:
        """Score chunks by the attention of the loaded reader."""
        query = self._encode(self._options.prompt(question))
        return self.session.attention(self._reader.chunks(chunk_ids), query)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _load(self) -> Session:
        self._note(f"loading {self._files.name} ...")
        from comem_cli.model.device import DTYPES, pick
        from comem_cli.read.session import Session

        stored = self._reader.recorded.get(COMPUTE_DTYPE, "none")
        wanted = self._options.dtype
        if wanted == "auto" and stored in DTYPES:
            wanted = stored
        elif stored not in ("none", wanted):
            self._warn(f"the store was written in {stored}, this answer is computed in {wanted}")
        split, layers = self._reader.fingerprint.split, self._identity.n_layers
        if (
            self._options.arm != "replay"
            and split * SAFE > layers
            and not (self._adapter and self._adapter.near_replay)
        ):
            how = "with an adapter that was not measured near replay" if self._adapter else "without an adapter"
            self._warn(f"split {split} of {layers} layers {how}: expect worse answers than replay; compare --arm both")
        model = load.load(self._files, *pick(self._options.device, wanted))
        on = self._options.replay_adapter == "on"
        tokenizer, adapter = self._tokenizer, self._adapter if self._options.arm != "replay" or on else None
        kept = self._options.pack_cache * 10**6
        self._session = Session(
            self._reader, model, self._identity, tokenizer, adapter, replay_adapter=on, pack_cache=kept
        )
        return self._session

    def _interface(self) -> Interface:
        """Say what an adapter must have been trained for."""
        stored = self._reader.fingerprint
        return Interface.of(
            self._identity, split=stored.split, chunk=stored.chunk, mode=stored.mode, overlap=stored.overlap
        )

    def _facts(self) -> dict[str, Any]:
        reader = self._reader
        return {
            "boundary": BOUNDARY,
            "read_positions": self._options.read_positions,
            "attention": self._options.attention,
            "adapter": None if self._adapter is None else self._adapter.to_json(),
            "replay_adapter": self._options.replay_adapter,
            "split": reader.fingerprint.split,
            "model": self._identity.name,
            "store_id": reader.store_id,
            "generation": reader.generation,
        }


def import_session() -> None:
    """Import what loads and runs the model, torch among it: seconds, in which Java starts and opens the index."""
    importlib.import_module("comem_cli.read.session")


def _failed(given: dict[str, Any], error: ComemError) -> dict[str, Any]:
    """Turn what is wrong with one question into fields; raises the error again where the store is at fault."""
    if error.exit_code not in (2, 4):
        raise error
    return {**given, "error": error.message, "exit_code": error.exit_code}


def _is_json(given: dict[str, Any]) -> bool:
    """Tell whether an object can be passed through: Python reads NaN and Infinity, which are no JSON."""
    try:
        json.dumps(given, allow_nan=False)
    except ValueError:
        return False
    return True
