"""Sentences out of books, as many as fill a budget of tokens: what BABILong hides its facts among.

BABILong takes PG-19; here it is the *.txt files that lie in `books` of the data folder. A book and a character in it
are drawn, the text from there is split by an untrained Punkt, the first and the last piece are dropped, and so are
sentences below 10 tokens; where an excerpt is used up, another is drawn. A token count is that of the sentence with a
blank before it. The last sentence is cut to fit the budget.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks.data_files import read_text

if TYPE_CHECKING:
    import tokenizers

LICENCE = "books: public domain where you are, or the terms of your own"
SHORTEST = 10  # tokens
_LETTERS_A_TOKEN = 8  # how far an excerpt reaches, generously
_MARGIN = 4_000  # characters
_FRUITLESS = 1_000  # excerpts in a row without a sentence that is long enough


@dataclass(frozen=True)
class Library:
    """Hold books by file name, and one digest over all of them."""

    books: tuple[str, ...]
    digest: str

    def noise(self, rng: random.Random, budget: int, tokenizer: tokenizers.Tokenizer) -> list[str]:
        """Draw sentences that have `budget` tokens together; none where it is 0 or less.

        Raises: UsageError (2) where the books hold no sentences.
        """
        found: list[str] = []
        fruitless = 0
        while budget > 0:
            fruitless += 1
            if fruitless > _FRUITLESS:
                raise UsageError("the books hold no sentences of ten tokens", "put books of prose into DIR/books")
            for sentence in self._excerpt(rng, budget):
                encoded = tokenizer.encode(f" {sentence}", add_special_tokens=False)
                if len(encoded) < SHORTEST:
                    continue
                if len(encoded) > budget:
                    end = encoded.offsets[budget - 1][1]
                    found.append(f" {sentence}"[:end].strip())
                    return [one for one in found if one]
                found.append(sentence)
                budget -= len(encoded)
                fruitless = 0
                if not budget:
                    break
        return found

    def _excerpt(self, rng: random.Random, budget: int) -> Iterator[str]:
        """Yield the whole sentences after a random place; the place is drawn when the first is asked for."""
        book = rng.choice(self.books)
        start = rng.randrange(len(book))
        yield from _punkt().tokenize(book[start : start + budget * _LETTERS_A_TOKEN + _MARGIN])[1:-1]


def load_library(data: Path | None) -> Library:
    """Read every *.txt in `books` of the data folder; raises UsageError (2) where there is none."""
    paths = sorted((data / "books").glob("*.txt"), key=lambda path: path.name.encode()) if data else []
    if not paths:
        raise UsageError(
            f"the noise needs books/*.txt, and {data or 'no data folder'} has none",
            "put plain-text books, for example from https://www.gutenberg.org, into DIR/books and pass --data DIR",
        )
    texts = {path.name: read_text(path) for path in paths}
    state = hashlib.sha256()
    for name, text in texts.items():
        state.update(f"{name}\0{hashlib.sha256(text.encode()).hexdigest()}\0".encode())
    return Library(tuple(text or "\n" for text in texts.values()), state.hexdigest())


def punkt_version() -> str:
    """Return the version of nltk; raises UsageError (2) where it is not installed."""
    try:
        return metadata.version("nltk")
    except metadata.PackageNotFoundError as error:
        raise UsageError("splitting books into sentences needs nltk", "run: pip install nltk") from error


@functools.cache
def _punkt() -> Any:
    punkt_version()
    from nltk.tokenize.punkt import PunktSentenceTokenizer  # takes a second: only who needs noise pays

    return PunktSentenceTokenizer()
