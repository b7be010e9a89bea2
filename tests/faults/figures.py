"""The store's figures: `python -m tests.faults.figures edit|small|memory|readers|writers [--folder DIR]`.

One JSON line each on stdout. `edit`: one line of one of 200 files is edited, and ingested again with the embedded
model. `small`: 1,000 files of 200 tokens. `memory`: peak memory of ingesting 10 MB and 100 MB. `readers`, `writers`:
the loops of rows 9 and 10.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
    os.environ.setdefault(_name, "1")

from comem_cli.store.reader import StoreReader  # noqa: E402
from tests.commands.cli import COMEM, write_documents  # noqa: E402
from tests.faults import loop_asks, loop_readers, loop_writers  # noqa: E402
from tests.faults.child import in_child  # noqa: E402

WATCHED = "import sys, atexit\natexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"


def main() -> None:
    """Measure what is named and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.figures", description=__doc__)
    parser.add_argument("figure", nargs="+", choices=list(FIGURES))
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default a temporary folder")
    parser.add_argument("--files", type=int, default=200, help="of `edit`")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100], help="of `memory`")
    options = parser.parse_args()
    for name in options.figure:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix=f"comem-{name}-") as folder:
            print(json.dumps({"figure": name, **FIGURES[name](Path(folder).resolve(), options)}), flush=True)


def _comem(folder: Path, *args: str | Path, model: Path | None = None, watch: bool = False) -> dict[str, Any]:
    """Run the command; return what it took and the last JSON line of its stdout."""
    line = [*COMEM, *map(str, args)]
    if watch:
        main_line = "from comem_cli.app import main; main()"
        line = [sys.executable, "-c", WATCHED + main_line, *map(str, args)]
    environment = {**os.environ, **({"COMEM_MODEL": str(model)} if model else {})}
    begin = time.monotonic()
    with (folder / "out").open("wb") as stdout, (folder / "err").open("wb") as stderr:
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=stdout, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
    wall, cpu = time.monotonic() - begin, usage.ru_utime + usage.ru_stime
    out, err = (folder / "out").read_bytes(), (folder / "err").read_bytes()
    if status:
        raise RuntimeError(f"{line} ended with status {status}: {err.decode()[-2000:]}")
    last = json.loads(out.splitlines()[-1]) if out.strip() else {}
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "err": err.decode(), **last}


def edit(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Edit one line in one file of a corpus of short files, with the embedded model."""
    docs = write_documents(folder / "docs", options.files, lines=30)  # about 500 tokens each
    first = _comem(folder, "ingest", "docs", "--store", "s", "--split", "6", "--json")
    path = docs / "d007.md"
    lines = path.read_text().splitlines(keepends=True)
    lines[len(lines) // 2] = "the lighthouse was painted white in the spring of that year\n"
    path.write_text("".join(lines))
    again = _comem(folder, "ingest", "docs", "--store", "s", "--json")
    alone = write_documents(
        folder / "alone", 1, lines=30
    )  # start, model load, one chunk, its index: what none can save
    least = _comem(folder, "ingest", alone, "--store", "t", "--split", "6", "--json")
    same = _comem(folder, "ingest", "docs", "--store", "s", "--json", watch=True)
    with StoreReader(folder / "s") as reader:
        counts, ledger = reader.counts(), reader.ledger()
    write = [row.wall_ms + row.io_ms for row in ledger]
    return {
        "files": options.files,
        "chunks": counts.chunks,
        "tokens": counts.tokens,
        "chunks_rewritten": again["written_chunks"],
        "wall_s": [one["wall_s"] for one in (first, again, least, same)],
        "cpu_s": [one["cpu_s"] for one in (first, again, least, same)],  # first, again, one file alone, unchanged
        "write_ms": [round(sum(write[:-1]), 1), round(write[-1], 1)],
        "write_ratio": round(write[-1] / sum(write[:-1]), 5),
        "cpu_ratio_beyond_one_file_alone": round((again["cpu_s"] - least["cpu_s"]) / first["cpu_s"], 4),
        "unchanged_loads_torch": same["err"].splitlines()[-1] == "True" or "loading" in same["err"],
    }


def small(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write 1,000 files of 200 tokens on the decoder stub; compare the bytes on disk with the bound."""
    from comem_cli.model import load
    from tests.faults import jobs, sources
    from tests.tiny import save_tiny

    jobs.install()
    from comem_cli.store import write_queue

    write_queue.COMMIT_SECONDS = 20.0
    model = save_tiny(folder / "model", layers=4, hidden_size=64, head_dim=16, intermediate_size=16)
    tokenizer = load.tokenizer(load.resolve(str(model)))
    docs = folder / "docs"
    docs.mkdir()
    for number in range(1000):
        ids = tokenizer.encode(sources.text(number, 200), add_special_tokens=False).ids[:200]
        (docs / f"{number}.txt").write_text(tokenizer.decode(ids))
    sources.WIDTH = 64
    from comem_cli.store.run import IngestRun
    from comem_cli.store.setup import WriteOptions

    run = IngestRun(folder / "s", load.resolve(str(model)), WriteOptions(split=2, device="cpu", dtype="fp32"))
    with run.open() as writer:
        run.ingest(
            writer, [docs], **{name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
        )
    with StoreReader(folder / "s") as reader:
        counts, width = reader.counts(), reader.width
    on_disk = sum(path.stat().st_size for path in (folder / "s" / "residuals").rglob("*") if path.is_file())
    raw = counts.tokens * width * 2
    return {
        "tokens": counts.tokens,
        "width": width,
        "residual_bytes": on_disk,
        "catalogue_bytes": counts.catalogue_bytes,
        "raw_bytes": raw,
        "ratio": round(on_disk / raw, 4),
    }


def memory(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Ingest texts of several sizes with a tiny model, in files of about 100 kB; report the peak of each command."""
    model = folder / "model"
    in_child(lambda: _save_model(model))  # a child's peak begins with what its parent holds
    found: dict[str, Any] = {}
    for size in options.megabytes:
        docs = folder / f"docs{size}"
        _prose(docs, size * 10)
        line = [*COMEM, "ingest", str(docs), "--store", str(folder / f"s{size}"), "--split", "1", "--json"]
        environment = {**os.environ, "COMEM_MODEL": str(model), "COMEM_CACHE": str(folder / "cache")}
        begin = time.monotonic()
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen(line, cwd=folder, env=environment, stdout=out, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"ingest of {size} MB ended with status {status}")
        last = json.loads((folder / "out").read_bytes().splitlines()[-1])
        found[f"{size}MB"] = {
            "peak_mib": round(usage.ru_maxrss / 1024, 1),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "wall_s": round(time.monotonic() - begin, 1),
            "tokens": last.get("tokens"),
        }
    return found


def _save_model(folder: Path) -> None:
    from tests.tiny import save_tiny

    save_tiny(folder, layers=2, hidden_size=16, head_dim=4, intermediate_size=16)


def _prose(docs: Path, files: int) -> None:
    """Write files of 100 kB of words, many distinct ones, so that an index has something to hold."""
    docs.mkdir()
    rng = random.Random(len(docs.name) + files)
    syllables = ["ka", "lo", "mi", "ne", "ru", "sta", "tor", "vel", "wen", "zar", "bri", "cho"]
    for number in range(files):
        words, size = list[str](), 0
        while size < 100_000:
            words.append("".join(rng.choices(syllables, k=rng.randrange(1, 5))))
            size += len(words[-1]) + 1
        text = "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12))
        (docs / f"{number:05}.txt").write_text(text + "\n")


def readers(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Ask 200 questions in four processes beside a writer."""
    return vars(loop_asks.run(folder, asks=200, readers=4)) | {"reads": vars(loop_readers.run(folder / "r", 200, 4))}


def writers(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Let two writers run 20 rounds."""
    return vars(loop_writers.run(folder, rounds=20))


FIGURES: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "edit": edit,
    "small": small,
    "memory": memory,
    "readers": readers,
    "writers": writers,
}

if __name__ == "__main__":
    main()
