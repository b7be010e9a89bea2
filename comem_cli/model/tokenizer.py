"""Read a tokenizer file once a process: it takes a quarter of a second, and the model's identity wants it as well."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers


@functools.lru_cache(maxsize=2)
def read_tokenizer(path: Path, changed: int) -> tokenizers.Tokenizer:
    """Read a tokenizer.json that encodes a text as it stands; changed: its time of change, in ns.

    Whoever sets truncation or padding must take a copy. Raises: Exception, as the library does, for an unreadable file.
    """
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(path))
    loaded.no_truncation()
    loaded.no_padding()
    loaded.encode_special_tokens = True  # a document that writes out a special token means its text
    return loaded
