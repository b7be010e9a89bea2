"""How much of evaluation documents stands word for word in a training corpus: containment of 13-grams.

The audit of the paper's A.4. Containment of a document: the share of its 13-grams (every place counts, repeats too)
that occur anywhere in the training texts. It finds near-verbatim overlap, not paraphrase. What counts as a word, and
how sure a match is: word_ngrams.py. The paper calls a book overlapping from 0.8, and by its strict rule a document is
clean only without any common 13-gram.

Memory follows from the evaluation documents: each word of theirs costs about 90 bytes. Training texts are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comem_cli.evaluate.task import Document
from comem_cli.evaluate.word_ngrams import Grams, Vocabulary, blocks, places

N = 13
OVERLAPPING = 0.8  # the paper's conservative threshold
BLOCK = 1 << 20  # characters in memory of a training text
_NOT_SEEN = -1


@dataclass(frozen=True)
class Overlap:
    """Say what of one document occurs in the training texts.

    grams, contained: its n-grams, and how many of them occur. longest: words of the longest stretch of which every
    n-gram occurs; text[start:end] is that stretch, source the training text in which its first n-gram was found first.
    0, 0, 0 and "" where there is none. A stretch is nearly always one passage; it could be pieced together from more.
    """

    document: str
    words: int
    grams: int
    contained: int
    longest: int = 0
    start: int = 0
    end: int = 0
    source: str = ""

    @property
    def share(self) -> float | None:
        """Return contained / grams; None for a document too short to have an n-gram."""
        return self.contained / self.grams if self.grams else None


@dataclass(frozen=True)
class Audit:
    """Hold the overlap of every document, in their order, and what it was measured against.

    training_words: words read. false_matches: the expected number of n-grams that count as contained by a chance
    collision alone is at most this (2**-64 for every pair of an evaluation and a training n-gram).
    """

    n: int
    documents: tuple[Overlap, ...]
    training_texts: int
    training_words: int
    false_matches: float

    @property
    def share(self) -> float | None:
        """Return the containment over all documents together, each n-gram weighing the same; None without one."""
        grams = sum(one.grams for one in self.documents)
        return sum(one.contained for one in self.documents) / grams if grams else None

    def flagged(self, threshold: float = OVERLAPPING) -> tuple[Overlap, ...]:
        """Return the documents whose share reaches the threshold."""
        return tuple(one for one in self.documents if one.share is not None and one.share >= threshold)

    def unclean(self) -> tuple[Overlap, ...]:
        """Return the documents with any common n-gram: what the strict filter removes."""
        return tuple(one for one in self.documents if one.contained)


@dataclass(frozen=True)
class _Evaluated:
    name: str
    grams: Grams  # (words - n + 1,)
    places: NDArray[np.uint32]  # (words, 2)


def audit(training: Iterable[Path | str], evaluation: Iterable[Document], n: int = N) -> Audit:
    """Measure how much of each evaluation document occurs in the training texts.

    training: files of UTF-8 text (what is none is replaced), or texts themselves (str; called "text 1" by its number).
    No n-gram spans two training texts. Give each evaluation document once.
    Raises ValueError for n < 1; OSError for a file that cannot be read.
    """
    if n < 1:
        raise ValueError("an n-gram has at least one word")
    vocabulary = Vocabulary(n)
    documents = [_evaluated(vocabulary, document) for document in evaluation]
    every = [document.grams for document in documents]
    known = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *every]))
    seen = np.full(len(known), _NOT_SEEN, dtype=np.int32)  # the training text that has an n-gram first
    names, total, tried = [], 0, 0
    for number, source in enumerate(training):
        names.append(str(source) if isinstance(source, Path) else f"text {number + 1}")
        read, grams = _mark(vocabulary, blocks(_read(source)), known, seen, number)
        total, tried = total + read, tried + grams
    return Audit(
        n=n,
        documents=tuple(_overlap(document, known, seen, names, n) for document in documents),
        training_texts=len(names),
        training_words=total,
        false_matches=sum(map(len, every)) * tried / 2**64,
    )


def rows(found: Audit) -> list[list[str]]:
    """Return a table: header, one row a document in falling order of share, and the total."""
    header = ["document", "words", "n-grams", "contained", "share", "longest", "start", "end", "source"]
    ranked = sorted(found.documents, key=lambda one: (-(one.share or 0.0), -one.longest))
    table = [
        [one.document, *map(str, (one.words, one.grams, one.contained)), _share(one.share)]
        + ([str(one.longest), str(one.start), str(one.end), one.source] if one.longest else [""] * 4)
        for one in ranked
    ]
    sums = (sum(getattr(one, name) for one in found.documents) for name in ("words", "grams", "contained"))
    return [header, *table, ["(all)", *map(str, sums), _share(found.share), "", "", "", ""]]


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"


def _read(source: Path | str) -> Iterator[str]:
    if isinstance(source, str):
        yield from (source[at : at + BLOCK] for at in range(0, len(source), BLOCK))
        return
    with source.open(encoding="utf-8", errors="replace") as file:
        while block := file.read(BLOCK):
            yield block


def _evaluated(vocabulary: Vocabulary, document: Document) -> _Evaluated:
    grams, _ = vocabulary.grams(vocabulary.learn(document.text))
    return _Evaluated(document.name, grams, places(document.text))


def _mark(
    vocabulary: Vocabulary, texts: Iterable[str], known: Grams, seen: NDArray[np.int32], number: int
) -> tuple[int, int]:
    """Mark the known n-grams that one training text holds; return how many words and n-grams it has."""
    read, before = 0, np.empty(0, dtype=np.int64)
    for text in texts:
        codes = vocabulary.codes(text)
        read += len(codes)
        codes = np.concatenate([before, codes])
        before = codes[len(codes) - min(len(codes), vocabulary.n - 1) :]
        grams = np.unique(vocabulary.grams(codes)[0])
        if len(grams) and len(known):
            at = np.minimum(np.searchsorted(known, grams), len(known) - 1)
            at = at[known[at] == grams]
            seen[at[seen[at] == _NOT_SEEN]] = number
    return read, max(0, read - vocabulary.n + 1)


def _overlap(document: _Evaluated, known: Grams, seen: NDArray[np.int32], names: list[str], n: int) -> Overlap:
    sources = seen[np.searchsorted(known, document.grams)]
    contained = sources != _NOT_SEEN
    base = Overlap(document.name, len(document.places), len(contained), int(contained.sum()))
    if not base.contained:
        return base
    edges = np.diff(np.concatenate([[0], contained.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    longest = int(np.argmax(ends - begins))
    first, last = int(begins[longest]), int(ends[longest]) + n - 2  # words
    return Overlap(
        base.document,
        base.words,
        base.grams,
        base.contained,
        longest=last - first + 1,
        start=int(document.places[first, 0]),
        end=int(document.places[last, 1]),
        source=names[sources[first]],
    )
