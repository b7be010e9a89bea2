"""Compare a store's write mode with another one on questions of the user's own, before anything is rewritten.

Every question is answered three times from the same pack: from the stored residuals (`stored`), from residuals that are
written on the fly in the new mode, rounded as a store keeps them (`new`), and by replay of all layers (`replay`, the
reference). Reported: does the first token equal replay's, are all token ids equal, and is a given answer in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.model import load
from comem_cli.read.evidence import Evidence, EvidenceFinder, room_for_pack
from comem_cli.read.text import STOP, TEMPLATE, TextStream, question_object, render
from comem_cli.select.choose import SelectorChoice
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.reader import StoreReader
from comem_cli.store.rewrite_run import RewriteRun

if TYPE_CHECKING:
    import torch

    from comem_cli.model.modes import ChunkWriter
    from comem_cli.read.generate import Generation, Reader, Sampling
    from comem_cli.read.session import Session

ARMS = ("stored", "new", "replay")


@dataclass(frozen=True)
class Question:
    """Hold one line of the questions file: the question, and answers of which one should be in the text."""

    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """Hold the three arms' texts and token ids for one question; `error` where nothing could be selected."""

    question: Question
    texts: dict[str, str] = field(default_factory=dict)
    ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    error: str = ""

    def first_token(self, arm: str) -> bool:
        """Tell whether an arm begins with the token that replay begins with."""
        return self.ids[arm][:1] == self.ids["replay"][:1]

    def identical(self, arm: str) -> bool:
        """Tell whether an arm's token ids are those of replay."""
        return self.ids[arm] == self.ids["replay"]

    def contains(self, arm: str) -> bool:
        """Tell whether one of the given answers is in an arm's text, in any letter case."""
        return any(answer.casefold() in self.texts[arm].casefold() for answer in self.question.answers)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a report line."""
        if self.error:
            return {"question": self.question.text, "error": self.error}
        found = {"answer_contained": {arm: self.contains(arm) for arm in ARMS}} if self.question.answers else {}
        agreement = {
            "first_token_equal": {arm: self.first_token(arm) for arm in ARMS[:2]},
            "identical": {arm: self.identical(arm) for arm in ARMS[:2]},
        }
        return {"question": self.question.text, "answers": self.texts, **agreement, **found}


def summarise(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return the shares over all answered questions; `answer_contained` over those that name an answer."""
    answered = [one for one in compared if not one.error]
    named = [one for one in answered if one.question.answers]

    def share(some: Sequence[Compared], test: Callable[[Compared, str], bool], arms: Iterable[str]) -> dict[str, float]:
        return {arm: sum(test(one, arm) for one in some) / len(some) for arm in arms} if some else {}

    return {
        "questions": len(compared),
        "without_evidence": len(compared) - len(answered),
        "first_token_equal": share(answered, Compared.first_token, ARMS[:2]),
        "identical": share(answered, Compared.identical, ARMS[:2]),
        "with_answers": len(named),
        "answer_contained": share(named, Compared.contains, ARMS),
        "new_better": sum(one.contains("new") > one.contains("stored") for one in named),
        "new_worse": sum(one.contains("new") < one.contains("stored") for one in named),
    }


def read_questions(path: Path) -> list[Question]:
    """Read JSON lines {"question": ..., "answers": [...]}; raises UsageError (2) naming the line that is not one."""
    if not path.is_file():
        raise UsageError(f"no questions file {path}", 'write lines of {"question": "...", "answers": ["..."]}')
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            found.append(_question(line, f"{path}:{number}"))
    if not found:
        raise UsageError(f"{path} holds no question", 'write lines of {"question": "...", "answers": ["..."]}')
    return found


def _question(line: str, where: str) -> Question:
    given = question_object(line)
    if given is None:
        raise UsageError(f"{where} is no JSON object with a question", 'write {"question": "..."}')
    answers = given.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise UsageError(f"{where}: answers is no list of texts", 'write {"question": "...", "answers": ["..."]}')
    return Question(given["question"], tuple(answer for answer in answers if answer))


class Comparison:
    """Answer questions with all arms over one snapshot of a store; a context manager. Nothing is written.

    run: the rewrite that is being weighed. Raises what `ask` raises on opening a store.
    """

    def __init__(self, run: RewriteRun, *, top_k: int, max_new_tokens: int, note: Callable[[str], None]) -> None:
        if run.done:
            raise UsageError(f"{run.store} is in this mode already", "pass another --overlap or --mode")
        if max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens {max_new_tokens} is below 1", "pass --max-new-tokens 32")
        self._run, self._note = run, note
        self._max_new_tokens = max_new_tokens
        self._arms: _Arms | None = None
        self._tokenizer = load.tokenizer(run.setup.files)
        selector = SelectorChoice(top_k=top_k).build()
        with ExitStack() as stack:
            self._reader = stack.enter_context(StoreReader(run.store))
            self._finder = stack.enter_context(EvidenceFinder(self._reader, self._tokenizer, selector))
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def ask(self, question: Question) -> Compared:
        """Select once and answer with every arm."""
        query = self._tokenizer.encode(render(TEMPLATE, question.text), add_special_tokens=False).ids
        room = room_for_pack(self._run.setup.identity, len(query), self._max_new_tokens)
        try:
            evidence = self._finder.find(question.text, room)
        except NoEvidenceError as error:
            return Compared(question, error=error.message)
        if self._arms is None:
            self._note(f"loading {self._run.setup.files.name} ...")
            self._arms = _Arms(self._run, self._reader, self._tokenizer, self._max_new_tokens)
        texts: dict[str, str] = {}
        ids: dict[str, tuple[int, ...]] = {}
        for arm in ARMS:
            texts[arm], ids[arm] = self._arms.answer(arm, evidence, query)
        return Compared(question, texts, ids)


class _Arms:
    """The loaded model, ready to answer with each arm."""

    def __init__(self, run: RewriteRun, store: StoreReader, tokenizer: Any, max_new_tokens: int) -> None:
        from comem_cli.model.split import SplitModel
        from comem_cli.read.generate import Reader, Sampling
        from comem_cli.read.session import Session

        setup = run.setup
        model = load.load(setup.files, *setup.pick())
        self._store, self._tokenizer, self._mode = store, tokenizer, setup.mode
        self._session: Session = Session(store, model, setup.identity, tokenizer)
        self._reader: Reader = Reader(SplitModel(model, run.fingerprint.split), setup.identity.bos_id)
        self._writer: ChunkWriter = setup.writer_of(model)
        self._sampling: Sampling = Sampling(max_new_tokens, eos_ids=setup.identity.eos_ids)
        self._key = partial(chunk_key, run.fingerprint.digest())

    def answer(self, arm: str, evidence: Evidence, query: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Return one arm's text and token ids, greedy."""
        stream = TextStream(self._tokenizer, STOP)

        def on_token(token: int) -> bool:
            stream.push(token)
            return stream.stopped

        done: Generation
        if arm == "new":
            done = self._reader.generate(self._fresh_rows(evidence), query, self._sampling, on_token)
        else:
            name = "replay" if arm == "replay" else "comem"
            done = self._session.generate(evidence, query, name, self._sampling, on_token)
        stream.finish()
        return stream.text.strip(), tuple(done.ids)

    def _fresh_rows(self, evidence: Evidence) -> torch.Tensor:
        """Write the pack's chunks in the new mode, each at the first of its places: (n, d) bf16, as fetched."""
        import torch

        places = self._store.places([chunk.id for chunk in evidence.pack])
        written: dict[str, bytes] = {}
        keys = []
        for chunk in evidence.pack:
            place = places[chunk.id][0]
            document = [row.ids for row in self._store.document_chunks(place.document_id)[: place.number + 1]]
            pending = self._mode.pending(document, self._key)[-1]
            keys.append(pending.key)
            written.update((done.key, rows) for done, rows in self._writer.add(pending))
        written.update((done.key, rows) for done, rows in self._writer.flush())
        data = bytearray(self._store.layout.round_trip(b"".join(written[key] for key in keys)))
        return torch.frombuffer(data, dtype=torch.bfloat16).view(-1, self._store.width)
