"""BABILong qa1, qa2 and qa5: bAbI's facts in order, hidden among sentences of books.

A sample of L tokens has L - 300 for facts and noise together, since BABILong keeps 300 for its prompt; L = 0 is the
facts alone. Facts stay in their order and fall into gaps between noise sentences that are drawn with replacement and
sorted. Samples with more than (L - 300) // 8 facts are left out and counted. BABILong counts GPT-2's tokens, this
counts the model's. Facts, questions and targets are BABILong's own; the noise is not: its books are not PG-19, and its
draws cannot be repeated. Source: BABILong, https://github.com/booydar/babilong.

The document is the context; `babilong_prompt` says what comes after it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks import babi
from comem_cli.evaluate.tasks.babilong_prompt import WORDINGS
from comem_cli.evaluate.tasks.book_noise import LICENCE, Library, load_library, punkt_version
from comem_cli.evaluate.tasks.data_files import Source, draw, read_json, read_text
from comem_cli.evaluate.tasks.spec import Builder, Options

if TYPE_CHECKING:
    import tokenizers

OFFICIAL = Source(
    "BABILong's choice of 100 questions",
    ("babilong/test_100_idxs.json", "test_100_idxs.json"),
    "data/test_100_idxs.json of https://github.com/booydar/babilong",
    "Apache-2.0: keep the notice",
)
SAMPLES = ("official", "all")
RESERVED = 300  # tokens for the prompt
_FACT_TOKENS = 8
_NEW_TOKENS = 20
_DOCUMENT = "context.txt"


@dataclass(frozen=True)
class BabiLong:
    """Make samples of `tokens` tokens of "qa1", "qa2" or "qa5"; samples: the "official" hundred, or "all"."""

    task: str
    tokens: int
    samples: str = SAMPLES[0]

    def cell(self, context: TaskContext) -> Cell:
        """Mix the samples; raises UsageError (2) where bAbI, the books or nltk are missing."""
        source = babi.source(self.task)
        path = source.find(context)
        with source.reading(path):
            samples = babi.parse(read_text(path))
        chosen = self._choose(samples, context)
        fitting = {number: one for number, one in chosen.items() if self._fits(one)}
        library = self._library(context)
        # Drawn before they are mixed: mixing is what takes time.
        drawn = [int(one) for one in draw((_id(number) for number in fitting), context.n, context.seed)]
        examples = tuple(self._mixed(number, fitting[number], library, context) for number in drawn)
        return Cell(
            task=f"babilong_{self.task}",
            label=str(self.tokens),
            cohort=f"babilong/comem-1 noise={library.digest[:12] or 'none'} prompt=comem-1-after",
            scorer=f"babilong_{self.task}",
            max_new_tokens=_NEW_TOKENS,
            examples=examples,
            provenance={
                **self.inputs(context),
                "samples with too many facts left out": str(len(chosen) - len(fitting)),
                "tokenizer": context.tokenizer_hash,
                "seed": str(context.seed),
            },
        )

    def inputs(self, context: TaskContext) -> dict[str, str]:
        """Name what decides the texts beside the context; raises UsageError (2) as `cell` does."""
        source = babi.source(self.task)
        named = {"generator": "comem-1", "samples": self.samples, **source.provenance(source.find(context))}
        if self.samples == "official":
            kept = OFFICIAL.provenance(OFFICIAL.find(context))
            named |= {"choice": kept.pop("data"), "licence of the choice": kept.pop("licence")}
            named |= {name: digest for name, digest in kept.items() if name.startswith("sha256")}
        if self.tokens:
            library = self._library(context)
            named |= {
                "noise": f"sha256 {library.digest} over {len(library.books)} {LICENCE}",
                "sentence splitter": f"untrained Punkt of nltk {punkt_version()}",
            }
        return named

    def _library(self, context: TaskContext) -> Library:
        return load_library(context.data) if self.tokens else Library((), "")

    def _choose(self, samples: Sequence[babi.Sample], context: TaskContext) -> dict[int, babi.Sample]:
        """Return the samples by their number in bAbI's file."""
        if self.samples == "all":
            return dict(enumerate(samples))
        path = OFFICIAL.find(context)
        numbers = read_json(path)
        with OFFICIAL.reading(path):
            return {int(number): samples[number] for number in numbers[self.task]}

    def _fits(self, sample: babi.Sample) -> bool:
        return not self.tokens or len(sample.facts) <= (self.tokens - RESERVED) // _FACT_TOKENS

    def _mixed(self, number: int, sample: babi.Sample, library: Library, context: TaskContext) -> Example:
        rng = random.Random(f"babilong {self.task} {self.tokens} {context.seed} {number}")
        budget = self.tokens - RESERVED - count_tokens(sample.facts, context.tokenizer)
        text, spans = mix(sample.facts, library.noise(rng, budget, context.tokenizer), rng)
        return Example(
            id=_id(number),
            documents=(Document(_DOCUMENT, text),),
            question=sample.question,
            prompt=WORDINGS[self.task].prompt(sample.question),
            answers=(sample.answer,),
            evidence=tuple(Span(_DOCUMENT, *spans[at]) for at in sorted(set(sample.supporting))),
        )


def _id(number: int) -> str:
    return f"{number:04d}"


def count_tokens(sentences: Sequence[str], tokenizer: tokenizers.Tokenizer) -> int:
    """Count the tokens of sentences, each with a blank before it."""
    return sum(len(tokenizer.encode(f" {one}", add_special_tokens=False)) for one in sentences)


def mix(facts: Sequence[str], noise: Sequence[str], rng: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """Join facts, in their order, and noise with blanks; return the text and where each fact stands in it.

    A fact falls into one of the len(noise) + 1 gaps, drawn with replacement, then sorted.
    """
    gaps = sorted(rng.randrange(len(noise) + 1) for _ in facts)
    pieces: list[str] = []
    places = []  # of the facts among the pieces
    used = 0
    for fact, gap in zip(facts, gaps, strict=True):
        pieces += noise[used:gap]
        used = gap
        places.append(len(pieces))
        pieces.append(fact)
    pieces += noise[used:]
    starts = list(accumulate((len(piece) + 1 for piece in pieces), initial=0))
    return " ".join(pieces), [(starts[at], starts[at] + len(pieces[at])) for at in places]


def _builder(task: str) -> Builder:
    def build(options: Options) -> BabiLong:
        tokens = options.whole_size(4096, low=0)
        if 0 < tokens <= RESERVED:
            raise UsageError(f"BABILong keeps {RESERVED} tokens for its prompt", f"pass babilong_{task}:4096, or 0")
        return BabiLong(task, tokens, options.choice("samples", SAMPLES))

    return build


BABILONG_TASKS: dict[str, Builder] = {f"babilong_{task}": _builder(task) for task in babi.TASKS}
