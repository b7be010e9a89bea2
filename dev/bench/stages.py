"""Where the time of one `comem ask` goes: `python -m dev.bench.stages STORE QUESTION` prints ms by stage as JSON.

The steps of the command in one fresh process, in its order. `imports` is what Python itself, torch, Transformers and
comem take, while Java starts and opens the index beside them; `open` what comes before them, store and tokenizer;
`java` the wait for Java after them; `rest` what no other stage names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from dev.bench.interleave import Figure

BAR_MS = 300.0  # of everything after the imports that is neither model load, Read nor decode
MODEL = ("load", "read", "decode")


def ask_stages(spec: str | None, split: int, repeat: int) -> Iterator[Figure]:
    """Yield the ms of a warm ask beyond imports, model load, Read and decode: the median of fresh processes."""
    from comem_cli.store.setup import WriteOptions
    from dev.bench.material import HANDBOOK, QUESTION, Material
    from dev.bench.write import ingest_once

    material = Material(spec)
    with tempfile.TemporaryDirectory(prefix="comem-bench-") as folder:
        store = Path(folder) / "store"
        ingest_once(material, HANDBOOK, WriteOptions(split=split), store, index=True)
        line = [sys.executable, "-m", "dev.bench.stages", str(store), QUESTION, *([spec] if spec else [])]
        runs: list[dict[str, float]] = []
        for turn in range(repeat + 1):
            done = subprocess.run(line, check=True, capture_output=True, text=True)
            if turn:  # the first warms the page cache
                runs.append(json.loads(done.stdout))
    stages = {name: round(median(run[name] for run in runs), 1) for name in runs[0]}
    for name, left_out, bar in (
        ("ask after the imports, without load, Read and decode, ms", (*MODEL, "imports", "open"), BAR_MS),
        ("ask without imports, load, Read and decode, ms", (*MODEL, "imports"), None),
    ):
        apart = sorted(sum(ms for stage, ms in run.items() if stage not in left_out) for run in runs)
        quarter = len(apart) // 4
        spread = (median(apart), apart[quarter], apart[-1 - quarter])
        yield Figure(name, *spread, len(apart), bar, "lower", stages)


def main() -> None:
    """Ask once, with a stamp after every stage."""
    stamps: dict[str, float] = {}
    last = _process_start()

    def stamp(name: str) -> None:
        nonlocal last
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        stamps[name] = stamps.get(name, 0.0) + (now - last) * 1e3
        last = now

    from comem_cli.model import load
    from comem_cli.read import ask
    from comem_cli.read.ask import Asker, AskOptions

    def imported(work: Callable[[], None] = ask.import_session) -> None:
        stamp("open")
        work()
        stamp("imports")

    ask.import_session = imported
    stamp("imports")
    spec = sys.argv[3] if len(sys.argv) > 3 else None
    options = AskOptions(max_new_tokens=16).checked()
    with Asker(Path(sys.argv[1]), lambda: load.resolve(spec), options, note=_quiet, warn=_quiet) as asker:
        stamp("java")
        prepared = (sys.argv[2], *asker.prepare(sys.argv[2]))
        stamp("select")
        asker.session  # noqa: B018
        stamp("load")
        (asked,) = asker.ask_together([prepared])
        stamp("rest")
    stamp("close")
    inner = {name: asked.answers[0].timing_ms[name] for name in ("fetch", "query_write", "read", "decode")}
    stamps["rest"] -= sum(inner.values())
    stamps |= inner
    print(json.dumps(stamps))


def _quiet(line: str) -> None:
    pass


def _process_start() -> float:
    """Return when this process began, in s since boot (Linux)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / 100


if __name__ == "__main__":
    main()
