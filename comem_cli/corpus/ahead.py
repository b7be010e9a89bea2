"""Prepare the next source files in one thread while the caller works on the present one, in order and bounded.

What each file gives, and what it raises, comes in its turn, as if it were prepared there. The file in work and those
that are ready or being prepared are at most AHEAD_FILES files of AHEAD_BYTES bytes together; a file above LARGEST waits
for its turn, where the caller's own thread prepares it. Closing the iterator begins no other file and waits for the
thread, which has one file of at most LARGEST bytes to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from comem_cli.corpus.walk import SourceFile

AHEAD_FILES = 256
AHEAD_BYTES = 4 << 20
LARGEST = 1 << 20

T = TypeVar("T")


def in_order(
    sources: Sequence[SourceFile], prepare: Callable[[SourceFile], T]
) -> Generator[tuple[SourceFile, Callable[[], T]], None, None]:
    """Yield each file with the function that gives what `prepare` makes of it; call that before the next one.

    Close the iterator on every way out (`contextlib.closing`). Sizes, in bytes, are those of the walk.
    """
    begun: deque[Callable[[], T]] = deque()
    held = at = 0  # bytes of the file in work and of those begun; the next file to begin
    pool = ThreadPoolExecutor(1, "comem-read")
    try:
        for number, source in enumerate(sources):
            while at < len(sources) and (at == number or _fits(at - number, held + sources[at].size)):
                small = sources[at].size <= LARGEST
                begun.append(pool.submit(prepare, sources[at]).result if small else partial(prepare, sources[at]))
                held, at = held + sources[at].size, at + 1
            yield source, begun.popleft()
            held -= source.size
    finally:
        pool.shutdown(cancel_futures=True)


def _fits(files: int, size: int) -> bool:
    return files < AHEAD_FILES and size <= AHEAD_BYTES
