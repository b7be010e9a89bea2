"""Make the golden store of the present format: `python dev/make_golden.py [DIR]`, from the root of the repository.

A golden store is written once, when a format is new, and then only ever read: tests/store/test_golden.py opens it with
every later version. The model is the tiny random one of the tests. Format 2 is that of int8 residuals; the store of
format 1 holds bf16, and so do new stores unless told otherwise. Its sources lie in a fixed temporary folder, so that
no path of one machine gets into the catalogue. Refuses to overwrite. Prints what the test has to know.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from comem_cli.store.format import FORMAT_VERSION  # noqa: E402
from comem_cli.store.lock import LOCK_NAME  # noqa: E402
from tests.commands.cli import residuals  # noqa: E402
from tests.tiny import WIDTH  # noqa: E402
from tests.tiny_store import make_store  # noqa: E402


def main() -> None:
    """Write the store, leave its lock file out, and print counts and digests."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "stores" / "golden" / f"format-{FORMAT_VERSION}"
    if target.exists():
        sys.exit(f"{target} exists: a golden store is never written again")
    work = Path(tempfile.gettempdir()) / "comem-golden"
    shutil.rmtree(work, ignore_errors=True)
    made = make_store(work, overlap=16, residual_dtype="int8")
    (made.path / LOCK_NAME).unlink()
    for side in ("-wal", "-shm"):
        assert not made.path.joinpath(f"catalog.sqlite{side}").exists()
    shutil.copytree(made.path, target)
    documents = len(list(made.sources.iterdir()))
    held = residuals(made.path)  # leaves SQLite's side files, so it comes after the copy
    shutil.rmtree(work)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    tokens = sum(map(len, held.values())) // (WIDTH * 2)
    print(documents, "documents;", len(held), "chunks;", tokens, "tokens;", size, "bytes")
    print(hashlib.sha256(b"".join(held[key] for key in sorted(held))).hexdigest())


if __name__ == "__main__":
    main()
