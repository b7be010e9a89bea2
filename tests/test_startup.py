"""What starting a command costs: modules it must not import, and processor time.

The budgets are those of DESIGN.md on an idle machine; a test allows three times as much.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import pytest

from tests.commands.cli import COMEM, World

SLACK = 3
HEAVY = {"torch", "transformers", "peft", "zarr", "numpy", "jnius", "jnius_config", "pyserini", "pandas", "tensorstore"}
HELP_MS, STATS_MS, FIRST_LINE_MS = 150, 400, 200


def imported(world: World, *args: str) -> set[str]:
    """Return the modules that a command has imported when it ends."""
    listing = "import atexit, sys; atexit.register(lambda: print('\\n'.join(sys.modules), file=sys.stderr))"
    done = world.python(listing, *args)
    assert done.code == 0, done.err
    return {name.partition(".")[0] for name in done.err.split()}


def cpu_ms(world: World, *args: str) -> float:
    """Return the median processor time of five runs, user and system, in ms."""
    spent = []
    for _ in range(5):
        process = subprocess.Popen(
            [*COMEM, *args],
            cwd=world.folder,
            env=world.environment,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        spent.append((usage.ru_utime + usage.ru_stime) * 1e3)
    return statistics.median(spent)


def commands(world: World, *group: str) -> list[list[str]]:
    """Return every command below a group, as help lists them."""
    lines = world.run(*group, "--help").out.partition("Commands:\n")[2].splitlines()
    found: list[list[str]] = []
    for name in (line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "):
        found += [[*group, name], *commands(world, *group, name)]
    return found


def test_help_and_version_import_nothing_heavy(world: World) -> None:
    every = commands(world)
    assert ["ingest"] in every
    assert ["models", "pull"] in every
    for args in (["--help"], ["--version"], *([*command, "--help"] for command in every)):
        assert HEAVY.isdisjoint(imported(world, *args)), args


def test_stats_imports_neither_torch_nor_numpy_nor_zarr(written: World) -> None:
    for args in (["stats"], ["stats", "--json"]):
        assert HEAVY.isdisjoint(imported(written, *args))


@pytest.mark.skipif(sys.gettrace() is not None, reason="times mean nothing under a tracer")
def test_help_and_stats_stay_within_their_processor_time(written: World) -> None:
    assert cpu_ms(written, "--help") <= SLACK * HELP_MS
    assert cpu_ms(written, "ask", "--help") <= SLACK * HELP_MS
    assert cpu_ms(written, "stats") <= SLACK * STATS_MS


def test_ask_says_at_once_that_it_started(written: World) -> None:
    """Count the processor time up to the first line: the wall time of a busy machine says nothing."""
    spent = []
    for _ in range(5):
        process = written.start("ask", "stores/docs", "where is the harbour?")
        assert process.stderr is not None
        assert process.stderr.readline() == "opening stores/docs ...\n"
        process.kill()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.communicate()
        spent.append((usage.ru_utime + usage.ru_stime) * 1e3)
    assert statistics.median(spent) <= SLACK * FIRST_LINE_MS
