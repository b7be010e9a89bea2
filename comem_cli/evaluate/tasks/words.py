"""The English words that RULER and LongEval draw keys from: the lists of the package wonderwords (MIT).

Keys and vocabularies depend on the version, so it goes into every cohort that uses it.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

from comem_cli.errors import UsageError

RELEASE = "3.0.1"


@dataclass(frozen=True)
class Words:
    """Hold sorted, distinct words by kind, and the version of the package that they come from."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]
    version: str

    def pair(self, rng: random.Random) -> str:
        """Draw `adjective-noun`, uniform over all pairs."""
        return f"{rng.choice(self.adjectives)}-{rng.choice(self.nouns)}"

    @functools.cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Return the sorted distinct words of all kinds."""
        return tuple(sorted({*self.nouns, *self.adjectives, *self.verbs}))


@functools.cache
def load_words() -> Words:
    """Read the lists of the installed wonderwords; raises UsageError (2) where it is not installed."""
    from importlib import metadata, resources

    try:
        version = metadata.version("wonderwords")
    except metadata.PackageNotFoundError as error:
        raise UsageError(
            "this task needs the word lists of wonderwords", f"run: pip install wonderwords=={RELEASE}"
        ) from error
    folder = resources.files("wonderwords") / "assets"
    lists = [(folder / f"{kind}list.txt").read_text(encoding="utf-8") for kind in ("noun", "adjective", "verb")]
    # One a line: a few are two words.
    nouns, adjectives, verbs = (tuple(sorted({line.strip() for line in text.splitlines()})) for text in lists)
    return Words(nouns, adjectives, verbs, version)
