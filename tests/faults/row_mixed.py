"""Rows 13 and 14: another model, tokenizer, split or setting; an index that does not belong to the store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.commands.cli import Ran, state
from tests.faults import jobs, sources
from tests.faults.bases import place
from tests.faults.case import Outcome, Prepared, Row, must
from tests.faults.command import command
from tests.store import faults_on_disk as faults

ASK = ("ask", "STORE", "where is the harbour ledger?", "--top-k", "2", "--max-new-tokens", "4")
RESUME = ("ingest", "DOCS", "--store", "STORE", "--device", "cpu")
COMMANDS: dict[str, tuple[str, ...]] = {
    "ask": ASK,
    "ingest": RESUME,
    "index": ("index", "STORE", "--terms", "folded"),
    "overlap-write": ("overlap-write", "STORE", "--overlap", "8", "--device", "cpu"),
    "repair": ("check", "STORE", "--repair", "--device", "cpu"),
}
MODELS = {  # a model that differs in one thing, and the commands that must refuse it
    "weights": ("ask", "ingest", "overlap-write", "repair"),
    "config": ("ask", "ingest", "overlap-write", "repair"),
    "tokenizer": ("ask", "ingest", "index", "overlap-write", "repair"),
    "bos": ("ask", "ingest", "overlap-write"),
}
SETTINGS = {
    "split": ("--split", "3"),
    "chunk": ("--chunk", "64"),
    "overlap": ("--overlap", "16"),
    "mode": ("--mode", "document"),
    "dtype": ("--dtype", "bf16"),
}


def _cases(prepared: Prepared) -> list[str]:
    models = [f"{name}:{command}" for name, commands in MODELS.items() for command in commands]
    return [*models, *(f"{name}:ingest" for name in SETTINGS)]


def run_pair(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Use a store with what did not write it: exit code 12, the field and both values; nothing changes."""
    name, _, which = case.partition(":")
    store = Path(shutil.copytree(prepared.folder / "indexed", folder / "store"))
    if which == "repair":
        faults.flip(faults.files(store, "shard")[0], prepared.rng(13, case), 0, 500)
    model = _other(prepared, name, folder) if name in MODELS else prepared.folder / "model"
    before = state(store)
    done = _run(prepared, folder, model, store, (*COMMANDS[which], *SETTINGS.get(name, ())))
    must(done.code == 12, f"exit code {done.code}: {done.out[-300:]} {done.err[-600:]}")
    done.failed(12, *(["tokenizer"] if name == "tokenizer" and which == "index" else []))
    must(state(store) == before, "the store was changed")
    return Outcome(True, done.err.splitlines()[-2])


def _run(prepared: Prepared, folder: Path, model: Path, store: Path, line: tuple[str, ...]) -> Ran:
    names = {"STORE": str(store), "DOCS": str(place(prepared).docs)}
    return command(folder, model, *(names.get(word, word) for word in line))


def _other(prepared: Prepared, what: str, folder: Path) -> Path:
    """Copy the model and change one thing."""
    model = Path(shutil.copytree(prepared.folder / "model", folder / what))
    if what == "weights":
        from safetensors.torch import load_file, save_file

        tensors = load_file(model / "model.safetensors")
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] += 1.0
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        return model
    file, change = {
        "config": ("config.json", {"rms_norm_eps": 0.01}),
        "tokenizer": ("tokenizer.json", None),
        "bos": ("config.json", {"bos_token_id": 2}),
    }[what]
    raw = json.loads((model / file).read_text())
    if change is None:
        first, second = list(raw["model"]["vocab"])[300:302]
        vocab = raw["model"]["vocab"]
        vocab[first], vocab[second] = vocab[second], vocab[first]
    else:
        raw |= change
    (model / file).write_text(json.dumps(raw))
    return model


def _older(prepared: Prepared, store: Path) -> None:
    """Go on to other documents without the index."""
    docs = sources.write(store.parent / "docs", {"a.txt": sources.text("a", 40)})
    line = ("ingest", str(docs), "--store", "STORE", "--no-index", "--device", "cpu")
    done = _run(prepared, store.parent, prepared.folder / "model", store, line)
    must(done.code == 0, done.err)


def _newer(prepared: Prepared, store: Path) -> None:
    """Put an older catalogue and its shards back, beside the index of the newer one."""
    kept = Path(shutil.copytree(store, store.with_name("older")))
    _older(prepared, store)
    done = _run(prepared, store.parent, prepared.folder / "model", store, ("index", "STORE"))
    must(done.code == 0, done.err)
    shutil.copytree(store / "index", kept / "index", dirs_exist_ok=True)
    for path in (kept / "index").iterdir():
        if not (store / "index" / path.name).exists():
            shutil.rmtree(path)
    shutil.rmtree(store)
    kept.rename(store)


def _only_lock(prepared: Prepared, store: Path) -> None:
    for path in faults.files(store, "index"):
        path.unlink()
    (next((store / "index").iterdir()) / "write.lock").touch()


def _segments(prepared: Prepared, store: Path) -> None:
    (path,) = (path for path in faults.files(store, "index") if path.name.startswith("segments_"))
    faults.truncate(path, path.stat().st_size // 2)


INDEXES: dict[str, Callable[[Prepared, Path], None]] = {
    "older": _older,
    "newer": _newer,
    "only-write.lock": _only_lock,
    "segments-truncated": _segments,
}


def run_index(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Ask a store whose index does not belong to it: exit code 15 and the command that mends it, which does."""
    store = Path(shutil.copytree(prepared.folder / "indexed", folder / "store"))
    INDEXES[case](prepared, store)
    model = prepared.folder / "model"
    done = _run(prepared, folder, model, store, ASK)
    done.failed(15, "comem index ")
    mended = _run(prepared, folder, model, store, ("index", "STORE"))
    must(mended.code == 0, f"comem index: {mended.err}")
    again = _run(prepared, folder, model, store, ASK)
    must(again.code == 0, f"ask after comem index: {again.err}")
    jobs.read_state(store)
    return Outcome(True, done.err.splitlines()[-2])


_INDEX = "an index of another store, or a broken one"
ROWS = (
    Row(13, "another model, tokenizer or setting", _cases, run_pair, ("jobs", "indexed")),
    Row(14, _INDEX, lambda prepared: list(INDEXES), run_index, ("jobs", "indexed")),
)
