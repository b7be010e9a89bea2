"""The option --terms, and the scheme that a command builds an index with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from comem_cli.model.load import ModelFiles
    from comem_cli.select.terms import TermScheme
    from comem_cli.store.fingerprint import Fingerprint

Terms = Annotated[
    str | None,
    typer.Option(metavar="TERMS", help="folded (words) or tokens (ids, as in the paper). Default: as indexed, folded."),
]


def scheme_of(store: Path, wanted: str | None, model: Callable[[], ModelFiles]) -> TermScheme:
    """Return the scheme to build an index with: the wanted one, that of the index there is, or folded.

    Raises: NoStoreError (10), UsageError (2) for an unknown name, FingerprintError (12) for another tokenizer.
    """
    from comem_cli.select.store_index import built_terms
    from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
    from comem_cli.store.reader import StoreReader

    name = wanted or built_terms(store) or DEFAULT_TERMS
    if name != "folded":
        return term_scheme(name, None)
    with StoreReader(store) as reader:
        return term_scheme(name, tokenizer_of(reader.fingerprint, model()))


def tokenizer_of(stored: Fingerprint, files: ModelFiles) -> Tokenizer:
    """Load the tokenizer that made a store's ids; raises FingerprintError (12) where the model has another."""
    from comem_cli.model.load import tokenizer
    from comem_cli.store.identify import require_tokenizer

    require_tokenizer(stored, files)
    return tokenizer(files)
