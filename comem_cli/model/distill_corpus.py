"""The texts that a distillation learns from, with what identifies them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.corpus.extract import extract
from comem_cli.corpus.tokens import encode_pieces
from comem_cli.corpus.walk import Skip, walk
from comem_cli.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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
