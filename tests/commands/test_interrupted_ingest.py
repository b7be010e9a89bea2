"""An ingest that is stopped at any moment goes on with the same command and ends at the same bytes."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from tests.commands.cli import World, generation, residuals, rows, write_documents

STORE = "stores/docs"
# Commits are 20 s apart, longer than this corpus takes: here every file ends with one.
EAGER = (
    "import comem_cli.store.write_queue as queue; queue.COMMIT_SECONDS = 0.0; from comem_cli.app import main; main()"
)
INGEST = ("ingest", "docs", "--split", "2", "--chunk", "32")


def stopped(world: World, number: signal.Signals) -> tuple[int, str]:
    """Send a signal after the first new commit; return the exit code and stderr."""
    store = world.folder / STORE
    before = generation(store)
    process = world.start(*INGEST, command=[sys.executable, "-c", EAGER])
    deadline = time.monotonic() + 120
    while generation(store) <= max(before, 0) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be stopped"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def stored(world: World) -> int:
    return len(rows(world.folder / STORE)["chunk"])


def test_a_stopped_ingest_goes_on_and_ends_at_the_same_residuals(world: World) -> None:
    docs = write_documents(world.folder / "docs", 80, lines=16)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        ended, err = stopped(world, number)
        assert ended == code, err
        assert err.splitlines()[-1] == "stopped; run the same command again to go on from the last commit"
        assert "Traceback" not in err
    killed, _ = stopped(world, signal.SIGKILL)
    assert killed == -signal.SIGKILL
    durable = stored(world)
    assert durable > 0
    done = world.run(*INGEST, "--json")
    assert done.code == 0, done.err
    summary = done.lines[-1]
    total = stored(world)
    assert summary["written_chunks"] == total - durable > 0  # what was committed is not computed again
    assert summary["unchanged"] + summary["files"] == 80
    undisturbed = world.run("ingest", docs, "--split", "2", "--chunk", "32", "--store", "stores/calm", "--no-index")
    assert undisturbed.code == 0, undisturbed.err
    assert residuals(world.folder / STORE) == residuals(world.folder / "stores/calm")
    _no_litter(world.folder / STORE)


def _no_litter(store: Path) -> None:
    """Check that every shard file is one that the catalogue names, and that nothing half-written is left."""
    named = {row[0] for row in rows(store)["shard"]}
    files = [path for path in (store / "residuals/c").rglob("*") if path.is_file()]
    assert len(files) == len(named)
    assert not list(store.rglob("*.tmp"))
