"""Row 17: after `forget`, nothing of a document is in any byte of the store, and its neighbours are whole."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from comem_cli.model import load
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import IndexFolder, open_store_index, rebuild_index
from comem_cli.select.terms import term_scheme
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.forget import HOLDER, Forget
from comem_cli.store.reader import StoreReader
from comem_cli.store.writer import StoreWriter
from tests.faults import jobs, sources
from tests.faults.bases import place
from tests.faults.case import Outcome, Prepared, Row, must

DOCUMENTS = 20
RUN = 8  # token ids that in a row count as a trace


def canary(number: int) -> str:
    """Return the word that only one document has."""
    return f"zqx{number:02}canary{number * 7919:06}vault"


def documents() -> dict[str, str]:
    """Return twenty documents with a canary each, and as many without."""
    secret = {
        f"secret/s{number:02}.txt": f"{sources.text(f's{number}', 30)}The word is {canary(number)}, and so it stays.\n"
        for number in range(DOCUMENTS)
    }
    return {**secret, **{f"open/o{number:02}.txt": sources.text(f"open {number}", 30) for number in range(DOCUMENTS)}}


def _cases(prepared: Prepared) -> list[str]:
    rounds = 25 if prepared.full else 1
    rounds, documents = (25, DOCUMENTS) if prepared.full else (1, DOCUMENTS // 2)
    return [
        f"{mode}-{n}-{number}" for n in range(rounds) for mode in ("chunk", "overlap") for number in range(documents)
    ]


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Forget one document, with up to four others of the twenty, and scan the raw bytes of the whole tree."""
    mode, _, number = case.split("-")
    rng = prepared.rng(17, case)
    store = Path(shutil.copytree(prepared.folder / f"canary-{mode}", folder / "store"))
    others = rng.sample(range(DOCUMENTS), rng.randrange(5))
    gone = {f"secret/s{one:02}.txt" for one in {int(number), *others}}
    before = jobs.read_state(store)[1]
    needles, live = _needles(store, gone)
    raw = _raw(store)
    must(any(needle in raw for _, needle in needles), "nothing of them is there before")
    tokenizer = load.tokenizer(place(prepared).files)
    with StoreWriter.open(store, HOLDER) as writer:
        scheme, index = term_scheme("folded", tokenizer), None
        index = IndexFolder(store, scheme)
        job = Forget(writer, reindex=lambda: rebuild_index(writer, scheme), keep_only=index.keep_only, wait_seconds=0.0)
        report = job.run(sorted(gone), yes=True)
    must(report.done, f"forget says {report.traces}")
    raw = _raw(store)
    left = [what for what, needle in needles if needle not in live and needle in raw]
    must(not left, f"left: {sorted(set(left))[:5]}")
    with StoreReader(store) as reader, open_store_index(reader) as opened:
        terms = [canary(int(name[8:10])) for name in gone]
        must(all(opened.chunks_with(term) == 0 for term in terms), "a term is left in the dictionary")
    found = jobs.read_state(store)[1]
    must(
        found == {name: held for name, held in before.items() if name not in gone}, "the others are not what they were"
    )
    findings = check_store(store, CheckOptions(read_data=True), check_store_index).findings
    must(not findings, f"check finds {findings}")
    return Outcome(True, f"{len(gone)} documents, {len(needles)} needles")


def _raw(store: Path) -> bytes:
    return b"\0\0".join(path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file())


def _needles(store: Path, gone: set[str]) -> tuple[list[tuple[str, bytes]], bytes]:
    """Return what must not be left of the documents, and keys, ids and rows of all others, which may be."""
    found, live = [(f"path {name}", name.encode()) for name in gone], []
    for name in gone:
        word = canary(int(name[8:10]))
        found += [("canary", word.encode()), ("canary", word.upper().encode())]
    with StoreReader(store) as reader:
        for document in reader.documents():
            for chunk in reader.document_chunks(document.id):
                out = bytearray(chunk.n_tokens * reader.width * 2)
                reader.fetch([chunk.id], memoryview(out))
                tokens = struct.unpack(f"<{chunk.n_tokens}I", chunk.ids)
                if document.name not in gone:
                    live += [chunk.key.encode(), chunk.ids, struct.pack(f"<{len(tokens)}H", *tokens), bytes(out)]
                    continue
                found += [("key", chunk.key.encode()), ("residual", bytes(out[:64])), ("residual", bytes(out[-64:]))]
                for at in range(max(1, len(tokens) - RUN + 1)):
                    part = tokens[at : at + RUN]
                    if len(part) == RUN:
                        found.append(("ids, 32 bit", struct.pack(f"<{RUN}I", *part)))
                        found.append(("ids, 16 bit", struct.pack(f"<{RUN}H", *part)))
    return found, b"\xff\xff\xff\xff".join(live)


ROWS = (Row(17, "forgotten documents, by a raw scan", _cases, run, ("jobs", "canary"), 10),)
