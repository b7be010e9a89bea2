"""One writer and several askers: every answer is of one generation, with its index, its chunks and its residuals.

    run(folder, asks=200, readers=4) -> Outcome

The writer turns the store over between two write modes, which catalogue and index follow in one commit. An asker
is a process of its own (`python -m tests.faults.loop_asks FOLDER N`): it opens the store for every question and
compares the answer with that of an undisturbed store in the same mode.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from comem_cli.model import load
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.select.store_index import IndexFolder
from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
from comem_cli.store.rewrite_run import RewriteRun
from comem_cli.store.setup import WriteOptions
from tests.tiny_store import make_store

QUESTIONS = (
    "Where is the ledger of the basin?",
    "Which pilots keep entry 3 at dusk?",
    "What is at the lighthouse gate?",
)
MODES = ({"overlap": 8}, {"mode": "chunk"})


@dataclass(frozen=True)
class Outcome:
    """Answers that were given, what failed, how many generations were asked, and how often the mode turned over."""

    asks: int
    errors: tuple[str, ...]
    generations: int
    turns: int


def run(folder: Path, asks: int = 200, readers: int = 4) -> Outcome:
    """Let the askers ask `asks` questions together while the writer goes on."""
    store = make_store(folder)
    for name, options in zip(("overlap", "chunk"), MODES, strict=True):  # both indexes are built in the same way
        _rewrite(store.path, store.files, options)
        shutil.copytree(store.path, folder / name)
    line = [sys.executable, "-m", "tests.faults.loop_asks", str(folder), str(asks // readers)]
    root = Path(__file__).parents[2]
    running = [subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(readers)]
    turns, errors = 0, list[str]()
    while any(process.poll() is None for process in running) and not errors:
        try:
            _rewrite(store.path, store.files, MODES[turns % 2])
            turns += 1
        except Exception as error:
            errors.append(f"writer, turn {turns}: {error!r}")
    found = [json.loads(process.communicate()[0] or '{"errors": ["died"], "generations": []}') for process in running]
    errors += [error for one in found for error in one["errors"]]
    generations = [at for one in found for at in one["generations"]]
    return Outcome(len(generations), tuple(errors), len(set(generations)), turns)


def _rewrite(path: Path, files: load.ModelFiles, options: dict[str, object]) -> None:
    ignored = dict.fromkeys(("on_event", "on_tokens"), lambda value: None)
    quiet = dict.fromkeys(("on_load", "on_index"), lambda: None)
    indexes = IndexFolder(path, term_scheme(DEFAULT_TERMS, load.tokenizer(files)))
    RewriteRun(path, lambda: files, WriteOptions(device="cpu", **options)).run(indexes, **ignored, **quiet)  # type: ignore[arg-type]


def _answer(path: Path, files: load.ModelFiles, question: str) -> tuple[int, str, object]:
    """Return generation, mode, and what must be the same in every store of that mode."""
    options = AskOptions(max_new_tokens=4, top_k=3, device="cpu").checked()
    with Asker(path, lambda: files, options, note=lambda line: None, warn=lambda line: None) as asker:
        asked = asker.ask(question)
        ids = [answer.ids for answer in asked.answers]
        cited = [[place.path, place.number] for source in asked.sources for place in source.places]
        return asker.store.generation, asker.store.fingerprint.mode, (ids, cited)


def _ask(folder: Path, asks: int) -> None:
    """Ask, and print what was seen as JSON."""
    files = load.resolve(str(folder / "model"))
    wanted = {
        (mode, text): _answer(folder / mode, files, text)[2] for mode in ("chunk", "overlap") for text in QUESTIONS
    }
    errors, seen = list[str](), list[int]()
    for number in range(asks):
        text = QUESTIONS[number % len(QUESTIONS)]
        try:
            generation, mode, found = _answer(folder / "store", files, text)
            seen.append(generation)
            if found != wanted[mode, text]:
                errors.append(f"generation {generation} gave another answer than mode {mode}")
        except Exception as error:
            errors.append(repr(error))
            seen.append(-1)
    print(json.dumps({"errors": errors, "generations": seen}))


if __name__ == "__main__":
    _ask(Path(sys.argv[1]), int(sys.argv[2]))
