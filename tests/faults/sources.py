"""The documents of the faults, before and after a change, and what a store of them must hold: computed from the files.

The oracle shares two things with comem: the tokenizer, and the decoder stub of `jobs`, whose residual is a hash of what
the lower layers may see. It cuts, hashes and counts by itself.
"""

from __future__ import annotations

import hashlib
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

from tests.commands.cli import WORDS

CHUNK = 32  # tokens
WIDTH = 16
LEFT = 8  # tokens of left context in mode overlap
State = dict[str, tuple[str, tuple[tuple[str, str, int, int], ...]]]
"""path -> (sha256 of the file, (sha256 of ids, sha256 of residual, first byte, last byte + 1) of each chunk)."""


def text(seed: object, words: int) -> str:
    """Return a text of random words, ten a line."""
    rng = random.Random(f"text {seed}")
    drawn = rng.choices(WORDS, k=words)
    return "".join(" ".join(drawn[at : at + 10]) + "\n" for at in range(0, words, 10))


def before() -> dict[str, str]:
    """Return the documents of the base store: duplicates, one of a single chunk, one long."""
    files = {f"d{number}.txt": text(number, 20 + 25 * (number % 3)) for number in range(8)}
    return {**files, "long.txt": text("long", 160), "sub/copy.txt": files["d4.txt"], "tiny.txt": "berth 7\n"}


def after() -> dict[str, str]:
    """Return them after an edit of one line, a move, a new duplicate, new files, and three that vanished."""
    files = before()
    lines = files["long.txt"].splitlines(keepends=True)
    lines[5] = "the gate was closed at dusk, and nobody said why\n"
    files["long.txt"] = "".join(lines)
    files["moved/d1.txt"] = files.pop("d1.txt")
    files["twin.txt"] = files["d2.txt"]
    files["new.txt"] = text("new", 70)
    for name in ("d0.txt", "d5.txt", "d7.txt"):
        del files[name]
    return files


def write(folder: Path, files: dict[str, str]) -> Path:
    """Make a folder hold exactly these files; times follow from the text, so that a changed file is seen as one."""
    for path in sorted(folder.rglob("*"), reverse=True) if folder.exists() else ():
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        stamp = int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "little")
        os.utime(path, ns=(stamp * 10**9, stamp * 10**9))
    return folder


def residual(left: bytes, ids: bytes) -> bytes:
    """Return the stub's residual of a chunk: (n, WIDTH) 16-bit values, a hash of its left context and its ids."""
    return hashlib.shake_128(left + b"|" + ids).digest(len(ids) // 4 * WIDTH * 2)


def state_of(files: dict[str, str], tokenizer: Any, mode: str = "chunk") -> State:
    """Return what a store of these files must hold in a mode."""
    return {name: _document(content, tokenizer, mode) for name, content in files.items()}


def _document(content: str, tokenizer: Any, mode: str) -> tuple[str, tuple[tuple[str, str, int, int], ...]]:
    ids = _ids(content, tokenizer)
    chunks, end = [], 0
    for at in range(0, len(ids), CHUNK):
        own = _pack(ids[at : at + CHUNK])
        seen = {"chunk": at, "overlap": max(0, at - LEFT), "document": 0}[mode]
        start, end = end, end + len(tokenizer.decode(list(ids[at : at + CHUNK])).encode())
        rows = residual(_pack(ids[seen:at]), own)
        chunks.append((hashlib.sha256(own).hexdigest(), hashlib.sha256(rows).hexdigest(), start, end))
    return hashlib.sha256(content.encode()).hexdigest(), tuple(chunks)


@cache
def _ids(content: str, tokenizer: Any) -> tuple[int, ...]:
    return tuple(tokenizer.encode(content, add_special_tokens=False).ids)


def _pack(ids: tuple[int, ...]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in ids)
