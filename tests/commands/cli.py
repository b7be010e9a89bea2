"""Run the installed command as a user does, and look at a store from outside."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_INSTALLED = Path(sys.executable).with_name("comem")
COMEM = [str(_INSTALLED)] if _INSTALLED.exists() else [sys.executable, "-m", "comem_cli"]
FAST = ["--top-k", "2", "--max-new-tokens", "6"]
_PROSE = (
    "harbour master ledger vessel basin dawn dusk cargo draught berth storm warning officer black cones gate pilots "
    "visitors handbook lighthouse stairs handrail residual token"
)
WORDS = _PROSE.split()
QUESTION = "where is the harbour ledger?"


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Parse stdout as exactly one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Parse stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    def failed(self, code: int, *said: str) -> None:
        """Check that the command failed as comem does: this exit code, one line, a hint, no traceback, no data."""
        assert self.code == code, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        hints = [line for line in lines if line.startswith("hint: ")]
        assert len(errors) == len(hints) == 1, self.err
        assert lines[-2:] == [errors[0], hints[0]]
        assert "Traceback" not in self.err and "unexpected" not in self.err
        for text in said:
            assert text in errors[0] + hints[0], (text, self.err)


@dataclass(frozen=True)
class World:
    """A folder to run commands in, with a model."""

    folder: Path
    model: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of every command: this model, a cache of its own, no network, one thread."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("COMEM_", "NO_COLOR"))}
        ours = {
            "COMEM_CACHE": str(self.model.parent / "cache"),
            "COMEM_MODEL": str(self.model),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        return kept | ours | self.extra

    def start(self, *args: str | bytes | Path, command: Sequence[str] = COMEM) -> subprocess.Popen[str]:
        """Start a command and return the process."""
        line: list[Any] = [*command, *args]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, **piped)  # type: ignore[call-overload,no-any-return]

    def run(self, *args: str | bytes | Path, stdin: bytes = b"", command: Sequence[str] = COMEM) -> Ran:
        """Run a command to its end."""
        line: list[Any] = [*command, *args]
        done = subprocess.run(
            line, cwd=self.folder, env=self.environment, input=stdin, capture_output=True, timeout=300, check=False
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def python(self, code: str, *args: str | Path) -> Ran:
        """Run the command line in an interpreter that first executes `code`."""
        main = "from comem_cli.app import main; main()"
        return self.run(*args, command=[sys.executable, "-c", f"{code}\n{main}"])

    def with_environment(self, **extra: str) -> World:
        """Return the same folder with more environment variables."""
        return World(self.folder, self.model, self.extra | extra)


def write_documents(folder: Path, count: int, *, lines: int = 8, seed: int = 0) -> Path:
    """Write `count` documents of random words and return the folder."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = "".join(" ".join(rng.choices(WORDS, k=12)) + "\n" for _ in range(lines))
        (folder / f"d{number:03}.md").write_text(text)
    return folder


def rows(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Read every row of the catalogue as it is."""
    connection = sqlite3.connect(f"file:{store / 'catalog.sqlite'}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(tables)}
    finally:
        connection.close()


def state(store: Path) -> tuple[object, dict[str, str]]:
    """Return what a command must not change: catalogue rows, and a digest of each residual and index file."""
    files = [path for part in ("residuals", "index") for path in (store / part).rglob("*") if path.is_file()]
    digests = {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return rows(store), digests


def generation(store: Path) -> int:
    """Return the number of the store's last commit; -1 where there is none yet."""
    try:
        facts = dict(row[:2] for row in rows(store)["meta"])
    except (sqlite3.Error, KeyError):
        return -1
    return int(facts["generation"])


def residuals(store: Path) -> dict[str, bytes]:
    """Return the residual of every chunk, (n, d) bf16, by chunk key."""
    from comem_cli.store.reader import StoreReader

    found = {}
    with StoreReader(store) as reader:
        for chunk in reader.iter_chunks():
            out = bytearray(chunk.n_tokens * reader.width * 2)
            reader.fetch([chunk.id], memoryview(out))
            found[chunk.key] = bytes(out)
    return found
