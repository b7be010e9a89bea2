"""`comem distill` and `comem ask --adapter`, as a user runs them."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.commands.cli import FAST, QUESTION, World

TRAIN = (
    *("--split", "2", "--chunk", "64", "--length", "400", "--steps", "3", "--batch", "1", "--rank", "2"),
    *("--alpha", "4", "--lr", "0.05", "--warmup", "1", "--eval-packs", "1", "--checkpoint-every", "1"),
)


@pytest.fixture(scope="module")
def trained(written: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter for the written store."""
    folder = tmp_path_factory.mktemp("adapter") / "mine"
    done = written.run("distill", "docs", "--out", folder, *TRAIN, "--json")
    assert done.code == 0, done.err
    events = [event["event"] for event in done.lines]
    assert all("lm_tax" in part for part in done.lines[0]["packs"].values())
    assert events == ["held-out", "step", "step", "step", "held-out", "done"]
    again = written.run("distill", "docs", "--out", folder, *TRAIN)
    assert (again.code, again.out) == (0, "")
    assert "is done" in again.err
    return folder


def test_ask_reads_with_the_adapter_and_names_it(written: World, trained: Path) -> None:
    ask = ("ask", "stores/docs", QUESTION, "--json", "--arm", "both", *FAST)
    plain, adapted = written.run(*ask).json, written.run(*ask, "--adapter", trained).json
    assert plain["adapter"] is None
    assert adapted["adapter"]["name"] == "mine" and len(adapted["adapter"]["sha256"]) == 64
    assert adapted["comem"]["answer"] != plain["comem"]["answer"]
    assert adapted["replay"]["answer"] == plain["replay"]["answer"]  # stock unless asked for
    both = written.run(*ask, "--adapter", trained, "--replay-adapter", "on").json
    assert both["replay"]["answer"] != plain["replay"]["answer"]
    assert both["comem"]["answer"] == adapted["comem"]["answer"]


def test_an_adapter_in_the_cache_is_found_and_none_leaves_it_out(written: World, trained: Path, tmp_path: Path) -> None:
    found = shutil.copytree(trained, tmp_path / "cache" / "adapters" / "found")
    here = written.with_environment(COMEM_CACHE=str(tmp_path / "cache"))
    ask = ("ask", "stores/docs", QUESTION, "--json", *FAST)
    done = here.run(*ask)
    assert done.json["adapter"]["name"] == "found"
    assert len(done.err.splitlines()) == 1 and "not measured near replay" in done.err
    record = json.loads((found / "comem.json").read_text())
    copied = {"facts_copied": 0.5, "facts_copied_by_teacher": 0.5, "recited": 0.8, "recited_by_teacher": 0.8}
    record["metrics"]["after"]["packs"] = {"4": {"lm_tax": 1.04, **copied}}
    (found / "comem.json").write_text(json.dumps(record))
    assert here.run(*ask).err == ""
    without = here.run(*ask, "--adapter", "none")
    assert without.json["adapter"] is None
    assert len(without.err.splitlines()) == 1 and "without an adapter" in without.err


def test_a_wrong_adapter_is_refused(written: World, trained: Path, tmp_path: Path) -> None:
    other = shutil.copytree(trained, tmp_path / "other")
    record = json.loads((other / "comem.json").read_text())
    record["interface"] |= {"split": 3, "mode": "document"}
    (other / "comem.json").write_text(json.dumps(record))
    refused = written.run("ask", "stores/docs", QUESTION, "--adapter", other)
    refused.failed(12, "split 3, not 2", "mode document, not chunk")
    written.run("ask", "stores/docs", QUESTION, "--adapter", tmp_path).failed(2, "is no adapter")
    written.run("ask", "stores/docs", QUESTION, "--replay-adapter", "odd").failed(2, "--replay-adapter")


def test_another_run_in_the_same_directory_is_refused_by_name(written: World, trained: Path) -> None:
    written.run("distill", "docs", "--out", trained, *TRAIN, "--seed", "1").failed(12, "seed 0, not 1")


def test_ctrl_c_leaves_a_run_that_goes_on(written: World, tmp_path: Path) -> None:
    long = ("distill", "docs", "--out", str(tmp_path / "a"), *TRAIN, "--steps", "2000", "--json")
    process = written.start(*long)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "a").glob("checkpoints/step-*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert all(json.loads(line) for line in out.splitlines())
    assert len(list((tmp_path / "a").glob("checkpoints/step-*"))) == 1
    assert not (tmp_path / "a" / "comem.json").exists()


def test_wrong_arguments_end_in_one_line(world: World, tmp_path: Path) -> None:
    (world.folder / "empty").mkdir()
    world.run("distill", "absent", "--out", "a", "--split", "2", "--length", "400").failed(2, "cannot read absent")
    world.run("distill", "empty", "--out", "a", "--split", "2", "--length", "400").failed(2, "no text below empty")
    (world.folder / "t.txt").write_text("The harbour master keeps a ledger. " * 40)
    world.run("distill", "t.txt", "--out", "a", "--split", "9", "--length", "400").failed(2, "split 9 is outside")
    world.run("distill", "t.txt", "--out", "a", "--split", "2", "--length", "2048").failed(2, "window of 512")
    assert not (world.folder / "a").exists()
