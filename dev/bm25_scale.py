"""Measure building and searching the BM25 index at 128k to 16M tokens, beside bm25s on the same terms in the same run.

    python dev/bm25_scale.py TEXTS... [--sizes 128k,1M,4M,16M] [--terms folded,tokens] [--questions 30]

TEXTS: folders of .txt files. They are cut into chunks of 512 tokens of the embedded model's tokenizer. A store smaller
than they are is a random sample of these chunks. A larger one holds all of them, and chunks put together of eight runs
of 64 tokens from random places: word frequencies are those of the texts, and the vocabulary grows no further. Questions
are the texts' own sentences that end in a question mark, of 5 to 24 words.

For every question one-shot (12) and iterative (12, 4) selection run in turn on both engines. Times are in ms,
medians: wall, and CPU of the calling thread, which is what an idle machine would show. The terms of the chunks that a
round adds are made anew each time, as `ask` does. bm25s is used where it can be imported; it is no dependency.

`update` takes one chunk of a hundred out and puts as many others in; its figure is CPU over that of a whole build.
"""

from __future__ import annotations

import argparse
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from comem_cli.model import load
from comem_cli.select.bm25 import K1, B, Bm25
from comem_cli.select.choose import SelectorChoice
from comem_cli.select.index import open_index
from comem_cli.select.index_write import build_index, update_index
from comem_cli.select.selector import Candidates, Query, Selector
from comem_cli.select.terms import TermScheme, term_scheme

CHUNK, RUN = 512, 64
UNITS = {"k": 1024, "M": 1024 * 1024}


@dataclass(frozen=True)
class Prepared:
    """Gives terms that were made before: a chunk's only id is its number. It shows what Lucene alone costs."""

    made: Sequence[Sequence[str]]
    identity: str

    def terms(self, ids: Iterable[int]) -> list[str]:
        """Return the terms of the chunk of that number."""
        (number,) = ids
        return list(self.made[number])


def read_ids(folders: Sequence[Path], tokenizer: Any) -> tuple[list[int], list[str]]:
    """Return the token ids of all texts, one after the other, and their questions."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.txt"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    ids = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]
    found = (" ".join(part.split()) for text in texts for part in re.findall(r"[A-Z][^.?!]{10,200}\?", text))
    return ids, sorted({one for one in found if 5 <= len(one.split()) <= 24})


def draw_chunks(ids: Sequence[int], count: int, rng: random.Random) -> list[list[int]]:
    """Return `count` chunks as the module says."""
    real = [list(ids[start : start + CHUNK]) for start in range(0, len(ids) - CHUNK + 1, CHUNK)]
    if count <= len(real):
        return rng.sample(real, count)
    while len(real) < count:
        starts = (rng.randrange(len(ids) - RUN) for _ in range(CHUNK // RUN))
        real.append([token for start in starts for token in ids[start : start + RUN]])
    return real


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what `work` returns, its wall time in s, and the CPU time in s of the whole process."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


class Bm25sIndex:
    """bm25s behind `ScoredIndex`: its Lucene variant, with exact lengths, over the same terms."""

    def __init__(self, made: Sequence[Sequence[str]]) -> None:
        import bm25s

        words: dict[str, int] = {}
        numbers = [[words.setdefault(term, len(words)) for term in terms] for terms in made]
        self.count, self._words = len(made), words
        self._holders = Counter(number for one in numbers for number in set(one))
        self._engine = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numpy")
        self._engine.index(bm25s.tokenization.Tokenized(ids=numbers, vocab=words), show_progress=False)

    def search(self, terms: Iterable[str], k: int, exclude: Any, k1: float, b: float, common: float = 1.0) -> list[Any]:
        """Return the k best by numpy's partition; ties are not completed."""
        import numpy as np

        from comem_cli.select.selector import Hit

        known = [self._words[term] for term in terms if term in self._words]
        known = [number for number in known if self._holders[number] <= common * self.count]
        if not known:
            return []
        scores = self._engine.get_scores_from_ids(known)
        scores[list(exclude)] = -1.0
        best = np.argpartition(scores, -k)[-k:]
        return [Hit(int(place), float(scores[place])) for place in best[np.argsort(-scores[best])]]


def lookup(selector: Selector, query: Query, seen: Candidates) -> tuple[float, float, tuple[int, ...]]:
    """Return wall and the thread's CPU time in ms, and what was selected."""
    wall, cpu = time.perf_counter(), time.thread_time()
    chosen = selector.select(query, seen)
    passed = (time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3
    return *passed, tuple(one.chunk_id for one in chosen)


def measure(chunks: Sequence[Sequence[int]], scheme: TermScheme, questions: Sequence[str], tokenizer: Any) -> None:
    """Print the rows of one store and scheme."""
    where = f"{len(chunks) * CHUNK}\t{scheme.name}"
    made, _, cpu = timed(lambda: [scheme.terms(ids) for ids in chunks])
    print(f"{where}\tterms\t-\t{cpu / len(chunks) * 1e3:.3f} ms CPU a chunk\t{len({t for m in made for t in m})} terms")
    engines: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        stored = ((number, struct.pack("<I", number)) for number in range(len(chunks)))
        prepared: Any = Prepared(made, scheme.identity)
        build_index(path, [(number, struct.pack("<I", number)) for number in range(min(500, len(chunks)))], prepared)
        _, wall, lucene = timed(lambda: build_index(path, stored, prepared))
        total = len(chunks) * CHUNK
        size = sum(file.stat().st_size for file in path.iterdir())
        print(f"{where}\tlucene\tbuild\t{total / (lucene + cpu):.0f} tokens/s of CPU with terms\t", end="")
        print(f"{total / lucene:.0f} without, {total / wall:.0f} of wall, {size / len(chunks):.0f} bytes a chunk")
        changed = max(len(chunks) // 100, 1)
        live = range(changed, len(chunks) + changed)

        def read(ids: Sequence[int]) -> list[tuple[int, bytes]]:
            """Return new chunks: tokens of those that go, in another order."""
            return [(key, struct.pack(f"<{CHUNK}I", *chunks[key - len(chunks)][::-1])) for key in ids]

        _, wall, cost = timed(lambda: update_index(Path(folder) / "new", path, live, read, scheme))
        print(
            f"{where}\tlucene\tupdate\t{cost / (lucene + cpu):.3f} of a build\t{cost:.2f} s CPU, {wall:.2f} s wall, ",
            end="",
        )
        print(f"{changed} chunks changed")
        with open_index(path) as index:
            engines["lucene"] = index
            try:
                engines["bm25s"], wall, cpu = timed(lambda: Bm25sIndex(made))
                rates = f"{total / cpu:.0f} tokens/s of CPU without terms\t{total / wall:.0f} of wall"
            except ImportError:
                rates = "not installed\t-"
            print(f"{where}\tbm25s\tbuild\t{rates}")
            made.clear()
            _lookups(where, engines, chunks, scheme, questions, tokenizer)


def _lookups(
    where: str,
    engines: dict[str, Any],
    chunks: Sequence[Sequence[int]],
    scheme: TermScheme,
    questions: Sequence[str],
    tokenizer: Any,
) -> None:
    """Print the rows of the lookups in one store."""
    packed = [struct.pack(f"<{len(ids)}I", *ids) for ids in chunks]
    selectors: dict[str, Selector] = {"one-shot": Bm25(12), "iterative": SelectorChoice().build()}
    before = [b"", *packed]
    seen = {
        name: Candidates.over(engine, scheme, range(len(chunks)), packed.__getitem__, before.__getitem__)
        for name, engine in engines.items()
    }
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    same: dict[str, list[float]] = {name: [] for name in selectors}
    warm = len(questions) // 2
    for number, question in enumerate([*questions[:warm], *questions]):
        ids = tokenizer.encode(question, add_special_tokens=False).ids
        query = Query(question, tuple(dict.fromkeys(scheme.query_terms(ids))))
        for kind, selector in selectors.items():
            chosen = []
            for name in engines:
                wall, cpu, taken = lookup(selector, query, seen[name])
                chosen.append(set(taken))
                if number >= warm:  # before that Java compiles
                    times.setdefault((name, kind), []).append((wall, cpu))
            same[kind].append(len(set.intersection(*chosen)) / len(set.union(*chosen)))
    for (name, kind), found in times.items():
        walls, cpus = zip(*found, strict=True)
        shared = f"same {sum(same[kind]) / len(same[kind]):.3f}" if len(engines) > 1 else "-"
        print(f"{where}\t{name}\t{kind}\t{median(cpus):.2f} ms CPU\t{median(walls):.2f} ms wall, {shared}", flush=True)


def main() -> None:
    """Print a line a store, scheme, engine and kind of selection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--sizes", default="128k,1M,4M,16M")
    parser.add_argument("--terms", default="folded,tokens")
    parser.add_argument("--questions", type=int, default=30)
    given = parser.parse_args()
    tokenizer = load.tokenizer(load.resolve(None))
    ids, asked = read_ids(given.texts, tokenizer)
    rng = random.Random(42)
    questions = rng.sample(asked, given.questions)
    print(f"texts: {len(ids)} tokens, {len(asked)} questions, of which {len(questions)} are asked")
    print("tokens\tterms\tengine\twhat\tfigure\tbeside it")
    for size in given.sizes.split(","):
        chunks = draw_chunks(ids, int(size[:-1]) * UNITS[size[-1]] // CHUNK, rng)
        for name in given.terms.split(","):
            measure(chunks, term_scheme(name, tokenizer), questions, tokenizer)


if __name__ == "__main__":
    main()
