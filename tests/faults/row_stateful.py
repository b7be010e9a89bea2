"""Row 20: random histories of a store against a plain dict: ingest, edits, moves, forgetting, rewriting, crashes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from comem_cli.model import load
from comem_cli.store import durable
from comem_cli.store.check import CheckOptions, check_store
from tests.faults import jobs, sources
from tests.faults.bases import place
from tests.faults.case import NotHeldError, Outcome, Prepared, Row, must, numbered
from tests.faults.child import start

NAMES = [f"f{number}.txt" for number in range(6)]
TEXTS = [sources.text(f"text {number}", words) for number, words in enumerate((3, 25, 60, 90, 120, 12))]
DIE = st.one_of(st.integers(1, 30), st.integers(1, 150), st.just(0))  # at which fault point; beyond the last: not
EACH = {False: 6, True: 3}  # histories a case, by `full`; hypothesis begins with an empty one
STEPS = {False: 30, True: 500}


def _cases(prepared: Prepared) -> list[str]:
    return numbered("histories", 500 if prepared.full else 20)


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Run some histories; the steps of one that fails are named."""
    counted: list[str] = []

    class Machine(History):
        shared = folder
        model = prepared.folder / "model"
        tokenizer = load.tokenizer(place(prepared).files)
        log = counted

    chosen = settings(
        max_examples=EACH[prepared.full],
        stateful_step_count=STEPS[prepared.full],
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    number = prepared.seed * 10_000 + int(case.rpartition("-")[2])
    try:
        run_state_machine_as_test(seeded(number)(Machine), settings=chosen)
    except NotHeldError as error:
        raise NotHeldError(f"{error}: {' '.join(getattr(error, '__notes__', ()))}"[-1900:]) from error
    return Outcome(True, f"{len(counted)} steps, {sum(step == 'crash' for step in counted)} crashes")


class History(RuleBasedStateMachine):
    """A folder of documents, a store of them, and what the store must hold."""

    shared: Path
    model: Path
    tokenizer: Any
    log: list[str]
    _number = 0

    @initialize()
    def begin(self) -> None:
        """Start with an empty folder and no store."""
        History._number += 1
        self.folder = self.shared / f"history-{History._number}"
        self.place = jobs.Place(self.folder / "docs", self.model)
        self.place.docs.mkdir(parents=True)
        self.store = self.folder / "store"
        self.files: dict[str, str] = {}  # on disk
        self.held: dict[str, str] = {}  # in the store
        self.mode = "chunk"
        self.made = False

    @rule(name=st.sampled_from(NAMES), text=st.sampled_from(range(len(TEXTS))))
    def edit(self, name: str, text: int) -> None:
        """Write a file, new or changed."""
        self.files[name] = TEXTS[text]
        sources.write(self.place.docs, self.files)

    @rule(name=st.sampled_from(NAMES), line=st.integers(0, 12), words=st.integers(1, 12))
    def edit_line(self, name: str, line: int, words: int) -> None:
        """Change a line in the middle."""
        if name in self.files:
            lines = self.files[name].splitlines(keepends=True)
            lines[line % len(lines)] = sources.text(words, words)
            self.files[name] = "".join(lines)
            sources.write(self.place.docs, self.files)

    @rule(old=st.sampled_from(NAMES), new=st.sampled_from(NAMES))
    def move(self, old: str, new: str) -> None:
        """Move a file."""
        if old in self.files:
            self.files[new] = self.files.pop(old)
            sources.write(self.place.docs, self.files)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        """Remove a file; the last one stays."""
        if len(self.files) > 1:
            self.files.pop(name, None)
            sources.write(self.place.docs, self.files)

    @precondition(lambda self: self.files)
    @rule(die=DIE)
    def ingest(self, die: int) -> None:
        """Ingest, or crash on the way and do it again."""
        self._do(lambda: jobs.ingest(self.store, self.place), die, [self.held, self.files])
        self.made, self.held = True, dict(self.files)

    @precondition(lambda self: self.made and self.held)
    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), die=DIE)
    def forget(self, names: list[str], die: int) -> None:
        """Forget documents, or crash on the way and do it again; with nothing to forget, nothing happens."""
        after = {name: text for name, text in self.held.items() if name not in names}
        self._do(lambda: jobs.forget(self.store, self.place, *names), die, [self.held, after])
        self.held = after

    @precondition(lambda self: self.made and self.held)
    @rule(mode=st.sampled_from(["chunk", "overlap", "document"]), die=DIE)
    def rewrite(self, mode: str, die: int) -> None:
        """Turn the store over to another mode, or crash on the way and do it again."""
        chosen: dict[str, object] = {"overlap": sources.LEFT} if mode == "overlap" else {"mode": mode}
        if mode != "overlap":
            chosen["overlap"] = 0
        old = self.mode
        self._do(lambda: jobs.rewrite(self.store, self.place, **chosen), die, [self.held], modes=(old, mode))
        self.mode = mode

    def _do(self, act: Any, die: int, allowed: list[dict[str, str]], modes: tuple[str, ...] = ()) -> None:
        """Do it in a fork that dies at the `die`-th fault point; then here, to its end."""
        crashed = self._crash(act, die) if die else False
        if crashed:
            self.log.append("crash")
            self._between(allowed, modes or (self.mode,))
        act()
        self.log.append("done")
        wanted = allowed[-1]
        found = jobs.read_state(self.store)[1]
        state = sources.state_of(wanted, self.tokenizer, modes[-1] if modes else self.mode)
        must(found == state, f"the store holds {jobs.difference(found, state)}")
        report = check_store(self.store, CheckOptions(read_data=True), jobs.no_index_check)
        must(not report.findings, f"check finds {report.findings}")

    def _crash(self, act: Any, die: int) -> bool:
        def work() -> None:
            passed = 0

            def count(name: str) -> None:
                nonlocal passed
                passed += 1
                if passed == die:
                    os.kill(os.getpid(), signal.SIGKILL)

            durable.fault_point = count
            act()

        ended = start(work).wait()
        must(ended.returned or ended.signal == signal.SIGKILL, ended.error)
        return ended.signal == signal.SIGKILL

    def _between(self, allowed: list[dict[str, str]], modes: tuple[str, ...]) -> None:
        """After a crash each document is there as it was or as it will be, all in one mode."""
        found = jobs.read_state(self.store)[1]
        states = [[sources.state_of(files, self.tokenizer, mode) for files in allowed] for mode in modes]
        fits = [
            all(any(found.get(name) == state.get(name) for state in some) for name in set().union(found, *some))
            for some in states
        ]
        must(any(fits), "after a crash the store holds what neither generation has")

    def teardown(self) -> None:
        """Remove the folder."""
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


ROWS = (
    Row(
        20,
        "random histories against a dict (a case: 5 of 30 steps; full: 2 of 500)",
        _cases,
        run,
        ("jobs",),
        seconds=3600,
    ),
)
