"""Bad input ends with its exit code, one line and a hint, and leaves the store as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands.cli import COMEM, FAST, World, state, write_documents

STORE = "stores/docs"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["ingest", "nosuch"], 2, ["cannot read nosuch: no such file or directory", "ls -ld nosuch"]),
        (["ingest", "docs", "--split", "7"], 2, ["split 7 is outside 0..6", "--split between 0 and 6"]),
        (["ingest", "docs", "--split", "-1"], 2, ["split -1 is outside 0..6"]),
        (["ingest", "docs", "--chunk", "0"], 2, ["chunk 0 is outside 1..512 tokens"]),
        (["ingest", "docs", "--split", "3"], 12, ["split 2, not 3", "comem stats"]),
        (["ingest", "docs", "--chunk", "128"], 12, ["chunk 64, not 128", "comem stats"]),
        (["ingest", "docs", "--dtype", "int3"], 2, ["'int3' is not one of", "comem ingest --help"]),
        (["ingest", "docs", "--store", "stores/new", "--device", "abacus"], 2, ["device 'abacus' is not available"]),
        (["ingest", STORE], 2, ["is a comem store, not a source"]),
        (["ingest", "docs", "docs/d000.md"], 2, ["several paths need a store name", "--store stores/NAME"]),
        (["ask", STORE, ""], 2, ["the question is empty"]),
        (["ask", STORE, " \n"], 2, ["the question is empty"]),
        (["ask", STORE, b"harbour \xff"], 2, ["not Unicode text"]),
        (["ask", STORE, "harbour " * 600], 2, ["the model's window is 512", "a shorter question"]),
        (["ask", STORE, "harbour", "--max-new-tokens", "600"], 2, ["the model's window is 512"]),
        (["ask", STORE, "harbour", "--max-new-tokens", "0"], 2, ["--max-new-tokens 0 is below 1"]),
        (["ask", STORE, "harbour", "--arm", "left"], 2, ["unknown arm 'left'", "--arm comem, replay, both"]),
        (["ask", STORE, "harbour", "--temperature", "-1"], 2, ["--temperature -1.0 is neither 0 nor"]),
        (["ask", STORE, "harbour", "--temperature", "nan"], 2, ["--temperature nan is neither 0 nor"]),
        (["ask", STORE, "harbour", "--top-p", "0"], 2, ["--top-p 0.0 is outside (0, 1]"]),
        (["ask", STORE, "harbour", "--top-k", "0"], 2, ["top-k"]),
        (["ask", STORE, "harbour", "--template", "no place"], 2, ["the template has no {question}"]),
        (["ask", STORE, "where", "is", "it?"], 2, ["one argument", "comem ask stores/docs 'where is it?'"]),
        (["ask", "where", "is", "it?"], 2, ["one argument", "comem ask 'where is it?'"]),
        (["ask", STORE], 2, ["the question is missing", 'comem ask stores/docs "']),
        (["ask", STORE, "~~~~"], 4, ["no chunk"]),
        (
            ["ask", "stores/other", "harbour"],
            10,
            ["no store at stores/other", "comem ingest PATH --store stores/other"],
        ),
        (["index", "docs"], 10, ["no store at docs"]),
        (["ask", STORE, "harbour", "--model", "docs"], 1, ["docs has no config.json", "pass --model"]),
        (["ask", STORE, "harbour", "--model", "a/model"], 1, ["cannot download a/model", "pass --model"]),
        (["ask", STORE, "harbour", "--model", "./a b"], 1, ["no model directory and no GGUF file", "pass --model"]),
    ],
)
def test_is_refused_and_changes_nothing(written: World, args: list[str | bytes], code: int, said: list[str]) -> None:
    before = state(written.folder / STORE)
    done = written.run(*args)
    done.failed(code, *said)
    assert done.out == ""
    assert state(written.folder / STORE) == before
    assert [path.name for path in (written.folder / "stores").iterdir()] == ["docs"]
    assert len(list((written.folder / "docs").iterdir())) == 6


def test_an_empty_folder_is_refused_and_no_store_is_made(world: World) -> None:
    (world.folder / "empty").mkdir()
    world.run("ingest", "empty").failed(2, "no file to ingest in empty")
    assert not (world.folder / "stores").exists()


def test_a_store_of_another_model_is_refused_by_field(copied: World, tmp_path: Path) -> None:
    from tests.tiny import save_tiny

    other = save_tiny(tmp_path / "other", seed=1)
    before = state(copied.folder / STORE)
    for args in (["ask", STORE, "harbour"], ["ingest", copied.model, "--store", STORE]):
        copied.run(*args, "--model", other).failed(12, "the store was written with weights ")
    assert state(copied.folder / STORE) == before


def test_a_store_without_index_and_one_with_a_stale_index_ask_for_it(world: World) -> None:
    write_documents(world.folder / "docs", 1)
    ingest = ["ingest", "docs", "--split", "0", "--no-index"]
    assert world.run(*ingest).code == 0
    world.run("ask", STORE, "harbour").failed(15, "has no BM25 index", f"comem index {STORE}")
    assert world.run("index", STORE, "--json").json["chunks"] >= 1
    write_documents(world.folder / "docs", 2)
    assert world.run(*ingest).code == 0
    world.run("ask", STORE, "harbour").failed(15, "older than its documents", f"comem index {STORE}")
    assert world.run("stats", STORE, "--json").json["index"] == "stale"
    shutil.rmtree(world.folder / STORE / "index")
    assert world.run("index", STORE).code == 0
    assert world.run("stats", STORE, "--json").json["index"] == "fresh"


def test_a_damaged_residual_names_the_chunk_and_the_check(copied: World) -> None:
    (shard,) = [path for path in (copied.folder / STORE / "residuals/c").rglob("*") if path.is_file()]
    raw = bytearray(shard.read_bytes())
    for place in range(0, len(raw) - 512, 512):  # every inner chunk, not the index at the end
        raw[place] ^= 1
    shard.chmod(0o600)
    shard.write_bytes(raw)
    done = copied.run("ask", STORE, "harbour", *FAST)
    done.failed(13, "chunk ", f"comem check {STORE} --repair")
    assert done.out == ""


def test_an_undecodable_source_is_named_and_the_rest_is_stored(world: World) -> None:
    docs = write_documents(world.folder / "docs", 1)
    (docs / "bad.txt").write_bytes(b"harbour master " * 40 + b"\xff\xfe\x80 " + "berth \u00e9\u00e8 ".encode() * 40)
    done = world.run("ingest", "docs", "--split", "0", "--no-index")
    done.failed(3, "1 of the sources could not be read, first bad.txt")
    assert "1 files read" in done.out
    assert "warning: not read: bad.txt: undecodable" in done.err
    assert world.run("stats", "--json").json["documents"] == 1


def _in_namespace(script: str, world: World) -> subprocess.CompletedProcess[str]:
    """Run a shell script where it may mount; skip where that is not allowed."""
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", world.folder], capture_output=True)
    if probe.returncode:
        pytest.skip(f"needs the right to mount a file system: {probe.stderr.decode().strip()}")
    line = ["unshare", "-m", "sh", "-c", script, *COMEM]
    return subprocess.run(line, cwd=world.folder, env=world.environment, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_a_full_disk_ends_with_14_and_a_store_that_opens(world: World) -> None:
    write_documents(world.folder / "docs", 40)
    (world.folder / "disk").mkdir()
    script = 'mount -t tmpfs -o size=200k none disk; "$0" "$@" ingest docs --store disk/s --split 0 --chunk 64'
    done = _in_namespace(f'{script}; code=$?; df disk >&2; "$0" "$@" stats disk/s >&2; exit $code', world)
    assert done.returncode == 14, done.stderr
    assert "error: no space left at disk/s" in done.stderr
    assert "hint: free at least" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_a_read_only_place_ends_with_1_and_can_still_be_asked(copied: World) -> None:
    write_documents(copied.folder / "docs", 1)
    script = 'mount --bind . . && mount -o remount,bind,ro . && cd . && cd "$PWD"; '
    ingest = (
        f'"$0" "$@" ingest docs --store {STORE}; echo "ingest $?"; "$0" "$@" ingest docs --store new; echo "new $?"; '
    )
    ask = f'"$0" "$@" stats {STORE} --json >/dev/null; echo "stats $?"; "$0" "$@" ask {STORE} "~~~~"; echo "ask $?"'
    done = _in_namespace(script + ingest + ask, copied)
    assert done.stdout.splitlines() == ["ingest 1", "new 1", "stats 0", "ask 4"], done.stderr
    assert done.stderr.count("error: ") == done.stderr.count("hint: ") == 3
    assert "read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


def test_permissions_are_reported_with_the_path(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    write_documents(world.folder / "docs", 1)
    (world.folder / "closed").mkdir(mode=0o500)
    world.run("ingest", "docs", "--store", "closed/store", "--split", "0").failed(1, "permission denied", "closed")
