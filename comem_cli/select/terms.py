"""Turn a chunk's or a question's token ids into the terms that BM25 counts. Nothing but the ids is ever stored.

    scheme.terms(ids) -> ["harbour", "ledger", ...]   one entry an occurrence, in order

Two schemes. `tokens` is the paper's: a term is a token id. `folded` decodes the ids and counts words, so that " Git",
"git" and a word that the tokenizer cut in pieces are one term: Unicode NFKC and case folding, runs of letters, digits
and marks, an English plural s taken off. Scripts that put no blanks between words give every character and every pair
of neighbours. The same scheme makes the index and the query; its name and version are part of what an index is.

A chunk's border may cut a word. The chunk that goes on with its rest counts the rest as a term of its own kind, and a
query asks for the rest of each of its words after every token, so that the whole word finds it.

Sources: Harman (1991), How effective is suffixing?, for the plural (its "S stemmer"); Unicode TR15 and TR44 for the
folding; Lucene's `CJKBigramFilter` with `outputUnigrams` for the pairs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import regex

from comem_cli.errors import UsageError

if TYPE_CHECKING:
    import tokenizers

DEFAULT_TERMS = "folded"
IDENTITIES = {
    "folded": "folded 2",
    "tokens": "tokens 1",
}  # what is built; the version goes up with every change that gives other terms
READABLE = {"folded 1": "folded", "folded 2": "folded", "tokens 1": "tokens"}  # identity -> name: what can be asked
CUT = "…"  # marks the rest of a word that was cut; folding leaves it in no word
LONGEST = 100  # characters of a term; Lucene would cut one in two above 255
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_DENSE = regex.compile(f"[{_UNSPACED}]")
_WORD = rf"[[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]]+"
_WORDS = regex.compile(_WORD, regex.VERSION1)
_WORD_END = regex.compile(f"{_WORD}$", regex.VERSION1)
_RUNS = regex.compile(rf"(?P<dense>[{_UNSPACED}]+)|{_WORD}", regex.VERSION1)
_CHARACTER = 4  # bytes, and so tokens, of one at most
_ASCII_WORDS = re.compile("[a-z0-9]+")  # what _WORDS finds in ASCII, several times as fast


class TermScheme(Protocol):
    """One way to make terms of token ids."""

    @property
    def identity(self) -> str:
        """Return name and version: indexes of different identities cannot stand for each other."""
        ...

    @property
    def name(self) -> str:
        """Return what `--terms` calls the scheme."""
        ...

    @property
    def common(self) -> float:
        """Return the share of the chunks above which a term that they hold says nothing, for iterative rounds."""
        ...

    @property
    def border(self) -> int:
        """Return how many tokens before a chunk it asks for beside its own, in iterative rounds."""
        ...

    def terms(self, ids: Iterable[int]) -> list[str]:
        """Return the terms of a chunk's ids in order, repeated as they occur; none holds white space."""
        ...

    def query_terms(self, ids: Iterable[int]) -> list[str]:
        """Return what a question, or a chunk whose neighbours are sought, asks for; in order, repeated."""
        ...

    def readable(self, term: str) -> str:
        """Return what a person should see for a term."""
        ...


@dataclass(frozen=True)
class TokenTerms:
    """Count token ids, as the paper does. The tokenizer only makes them readable; without one, ids are shown."""

    tokenizer: tokenizers.Tokenizer | None = None
    name: str = "tokens"
    common: float = 1.0  # the paper asks for every token,
    border: int = 0  # and for the chunk's own alone

    @property
    def identity(self) -> str:
        """Return name and version."""
        return IDENTITIES[self.name]

    def terms(self, ids: Iterable[int]) -> list[str]:
        """Return every id in decimal."""
        return [str(token) for token in ids]

    def query_terms(self, ids: Iterable[int]) -> list[str]:
        """Return every id in decimal."""
        return self.terms(ids)

    def readable(self, term: str) -> str:
        """Return the text of the id, quoted: its leading blank is part of it."""
        return term if self.tokenizer is None else repr(self.tokenizer.decode([int(term)], skip_special_tokens=False))


@dataclass(frozen=True)
class _Piece:
    """What a token adds to a text, or a few tokens that make whole characters only together.

    start: how it goes on with a word, if it does. whole: it is nothing else. open: the next may go on with its last
    word. broken: it ends within a character.
    """

    start: str
    whole: bool
    open: bool
    broken: bool


@dataclass(frozen=True)
class FoldedTerms:
    """Count the words of the decoded text, folded. A word that a chunk's border cuts is two terms, its rest a third.

    version: 1 has no rests; indexes of it can still be asked.
    """

    tokenizer: tokenizers.Tokenizer
    name: str = "folded"
    version: int = 2
    common: float = 0.5  # where the idf of Robertson and Zaragoza (2009), (3.2), turns negative
    border: int = 16  # a border may cut a sentence between the name and what is said of it
    _pieces: dict[tuple[int, ...], _Piece] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """Return name and version."""
        return f"{self.name} {self.version}"

    def terms(self, ids: Iterable[int]) -> list[str]:
        """Return the folded words; of unspaced scripts, every character and every pair of neighbours.

        Last comes the first word once more, as a rest, where the ids begin without a blank before it.
        """
        text = self._continued(ids)
        found = folded_words(text)
        if found and self.version > 1 and _WORDS.match(text):
            found.append(CUT + found[0])
        return found

    def query_terms(self, ids: Iterable[int]) -> list[str]:
        """Return the folded words, then the rest of each word after each of its tokens but the last."""
        ids = tuple(ids)
        words = folded_words(self._continued(ids))
        return words if self.version == 1 else [*words, *(CUT + rest for rest in folded_words(self._rests(ids)))]

    def _continued(self, ids: Iterable[int]) -> str:
        """Return the text of ids as it goes on after a letter: at their start, some tokenizers would drop a blank."""
        before = self.tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        skipped = len(self.tokenizer.decode(before, skip_special_tokens=False))
        return self.tokenizer.decode([*before, *ids], skip_special_tokens=False)[skipped:]

    def _rests(self, ids: tuple[int, ...]) -> str:
        """Return what follows, in its word, on each token that its word goes beyond; with blanks between."""
        pieces = self._split(ids)
        rests, rest = [], ""
        for before, piece in zip(pieces[-2::-1], pieces[:0:-1], strict=True):
            rest = piece.start + rest if piece.whole else piece.start
            if rest and before.open:
                rests.append(rest)
        return " ".join(rests)

    def _split(self, ids: tuple[int, ...]) -> list[_Piece]:
        pieces, first = [], 0
        for end in range(1, len(ids) + 1):
            piece = self._piece(ids[first:end])
            if not piece.broken or end - first == _CHARACTER or end == len(ids):
                pieces.append(piece)
                first = end
        return pieces

    def _piece(self, ids: tuple[int, ...]) -> _Piece:
        if ids not in self._pieces:
            text = self._continued(ids)
            start = _WORDS.match(text)
            word = start.group() if start else ""
            self._pieces[ids] = _Piece(word, word == text, bool(_WORD_END.search(text)), text.endswith("\ufffd"))
        return self._pieces[ids]

    def readable(self, term: str) -> str:
        """Return the word itself."""
        return term


TOKENS = TokenTerms()


def term_scheme(name: str, tokenizer: tokenizers.Tokenizer | None) -> TermScheme:
    """Return the scheme of that name; raises UsageError (2) for an unknown one. `folded` needs a tokenizer."""
    if name == "tokens":
        return TokenTerms(tokenizer)
    if name == "folded" and tokenizer is not None:
        return FoldedTerms(tokenizer)
    raise UsageError(f"unknown terms '{name}'", f"pass --terms {' or '.join(IDENTITIES)}")


def recorded_scheme(identity: str, tokenizer: tokenizers.Tokenizer | None) -> TermScheme:
    """Return the scheme that made an index of a `READABLE` identity; raises UsageError (2) for another."""
    scheme = term_scheme(READABLE.get(identity, identity), tokenizer)
    return replace(scheme, version=1) if isinstance(scheme, FoldedTerms) and identity == "folded 1" else scheme


def folded_words(text: str) -> list[str]:
    """Return the folded words of a text, in order."""
    text = _fold(text)
    if text.isascii():
        return _singulars(_ASCII_WORDS.findall(text))
    if not _DENSE.search(text):
        return _singulars(_WORDS.findall(text))
    found: list[str] = []
    for run in _RUNS.finditer(text):
        word = run.group()
        if run["dense"]:
            found += word
            found += map("".join, pairwise(word))
        else:
            found += _singulars([word])
    return found


def _singulars(words: Iterable[str]) -> list[str]:
    """Cut words to `LONGEST` characters and take plurals off."""
    return [_singular(word[:LONGEST]) if word[-1] == "s" or len(word) > LONGEST else word for word in words]


def _fold(text: str) -> str:
    """Apply NFKC and case folding so that a second time changes nothing."""
    if text.isascii():
        return text.lower()  # the same, at once
    normal = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", normal)


def _singular(word: str) -> str:
    """Take an English plural off: -ies to -y (not -eies, -aies), -es to -e (not -aes, -ees, -oes), -s (not -us, -ss).

    As the first rule does, the others leave words of three letters and less alone.
    """
    if len(word) < 4 or not word.endswith("s"):
        return word
    if word.endswith("ies"):
        return word if word.endswith(("eies", "aies")) else word[:-3] + "y"
    if word.endswith("es"):
        return word if word.endswith(("aes", "ees", "oes")) else word[:-1]
    return word if word.endswith(("us", "ss")) else word[:-1]
