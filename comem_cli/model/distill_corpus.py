"""The texts that a distillation learns from and those that it is measured on, with what identifies them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.corpus.extract import extract
from comem_cli.corpus.tokens import encode_pieces
from comem_cli.corpus.walk import Skip, walk
from comem_cli.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ENDS = "the last tenth of each document"


@dataclass(frozen=True)
class Text:
    """Hold one document: its path below the root, the sha256 of its bytes in hex, its text."""

    name: str
    sha256: str
    text: str = field(repr=False)


def read_corpus(paths: Sequence[Path]) -> list[Text]:
    """Read every document below `paths`, in the order of ingest.

    Raises: UsageError (2) for a path that is not there, for a file that cannot be read, and where there is no text.
    """
    found = []
    for item in walk(paths):
        read = item if isinstance(item, Skip) else extract(item)
        if isinstance(read, Skip):
            if read.failed:
                raise UsageError(
                    f"cannot read {read.path}: {read.detail}", "mend it, or name the other files one by one"
                )
            continue
        if not isinstance(item, Skip) and read.text.strip():
            found.append(Text(item.path, read.sha256, read.text))
    if not found:
        raise UsageError(f"no text below {', '.join(map(str, paths))}", "name a folder or files with text")
    return found


@dataclass(frozen=True)
class Corpus:
    """Hold the texts to train on and the texts to measure on; `how` says in words how they were told apart."""

    train: tuple[Text, ...]
    held: tuple[Text, ...]
    how: str

    def texts(self) -> tuple[list[str], list[str]]:
        """Return what samples are drawn from, to train and to measure; ends of documents are put together."""
        held = [text.text for text in self.held]
        return [text.text for text in self.train], ["\n".join(held)] if self.how == _ENDS else held


def read_split(paths: Sequence[Path], held_out: Sequence[Path] = ()) -> Corpus:
    """Read a corpus and set apart what is measured on.

    held_out: documents never to train on, in the corpus or not; without them every tenth document, or the last tenth of
    each where there are fewer than ten. Raises: UsageError (2) as `read_corpus`, and where nothing is left to train on.
    """
    texts = read_corpus(paths)
    if held_out:
        held = read_corpus(held_out)
        apart = {text.sha256 for text in held}
        train = [text for text in texts if text.sha256 not in apart]
        if not train:
            raise UsageError("every document of the corpus is held out", "name more documents than --held-out does")
        return Corpus(tuple(train), tuple(held), "named")
    if len(texts) >= 10:
        kept = [text for number, text in enumerate(texts) if number % 10 != 9]
        return Corpus(tuple(kept), tuple(texts[9::10]), "every tenth document")
    cuts = [len(text.text) * 9 // 10 for text in texts]
    kept = [replace(text, text=text.text[:cut]) for text, cut in zip(texts, cuts, strict=True)]
    ends = [replace(text, text=text.text[cut:]) for text, cut in zip(texts, cuts, strict=True)]
    return Corpus(tuple(kept), tuple(ends), _ENDS)


def digest(texts: Iterable[Text]) -> str:
    """Hash a corpus: sha256 over `sha256 name` lines, in hex."""
    lines = [f"{text.sha256} {text.name}\n" for text in texts]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def facts(texts: Sequence[Text], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """List name, hash, characters and tokens of each document, for the adapter's record."""
    return [
        {
            "name": text.name.encode("utf-8", "replace").decode(),
            "sha256": text.sha256,
            "characters": len(text.text),
            "tokens": sum(len(piece.encoding.ids) for piece in encode_pieces(tokenizer, text.text)),
        }
        for text in texts
    ]
