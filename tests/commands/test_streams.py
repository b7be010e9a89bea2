"""stdout carries data, stderr the rest; every command answers --help; pipes get whole tab-separated lines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.commands.cli import COMEM, World, rows

COMMANDS = [[], ["ingest"], ["index"], ["ask"], ["stats"], ["models"], ["models", "pull"], ["models", "list"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_on_stdout(world: World, command: list[str]) -> None:
    done = world.run(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: {' '.join(['comem', *command])} ")
    assert world.run(*command, "-h").out == done.out


def test_summaries_of_the_commands_are_whole_sentences(world: World) -> None:
    summaries = world.run("--help").out.split("Commands:\n")[1].splitlines()
    assert len(summaries) >= 5
    assert all(line.endswith(".") and not line.endswith("...") for line in summaries), summaries


def test_version_is_that_of_the_package(world: World) -> None:
    from importlib.metadata import version

    done = world.run("--version")
    assert (done.code, done.out, done.err) == (0, f"comem {version('comem')}\n", "")


def test_the_package_runs_as_a_module_under_the_same_name(world: World) -> None:
    module = world.run("ask", "--help", command=[sys.executable, "-m", "comem_cli"])
    assert module.code == 0
    assert module.out == world.run("ask", "--help").out


def test_no_command_at_all_is_a_usage_error_with_the_help_on_stderr(world: World) -> None:
    done = world.run()
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: comem ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nosuch"], ["no such command 'nosuch'", "comem --help"]),
        (["stats", "--nosuch"], ["no such option: --nosuch", "comem stats --help"]),
        (["ingest"], ["missing argument 'PATH...'", "comem ingest --help"]),
        (["ask", "x", "--top-k", "many"], ["'many' is not a valid int", "comem ask --help"]),
    ],
)
def test_a_line_that_does_not_parse_is_one_error_and_one_hint(world: World, args: list[str], said: list[str]) -> None:
    world.run(*args).failed(2, *said)


def test_a_line_that_does_not_parse_is_one_json_line_with_json(world: World) -> None:
    done = world.run("stats", "--nosuch", "--json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err) == {"error": "no such option: --nosuch", "hint": "comem stats --help", "exit_code": 2}


def test_a_table_in_a_pipe_is_uncut_tab_separated_plain_values(written: World) -> None:
    done = written.with_environment(COLUMNS="20").run("stats")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert (done.code, done.err) == (0, "")
    assert len({len(line) for line in lines}) == 1
    cells = [cell for line in lines for cell in line]
    catalogue = rows(written.folder / "stores/docs")
    tokens = sum(row[4] for row in catalogue["chunk"])
    assert tokens > 999  # which a person sees as 1,000
    assert str(tokens) in cells
    weights = json.loads(dict(row[:2] for row in catalogue["meta"])["fingerprint"])["weights"]
    assert len(weights) == 64
    assert weights in cells


def test_errors_in_json_mode_are_one_json_line(world: World) -> None:
    for args in (["stats", "nosuch"], ["ask", "nosuch", "harbour"], ["index", "nosuch"]):
        done = world.run(*args, "--json")
        assert (done.code, done.out) == (10, "")
        said = json.loads(done.err)
        assert said["exit_code"] == 10
        assert said["hint"] == "comem ingest PATH --store nosuch"


def test_quiet_ingest_prints_the_result_alone(world: World) -> None:
    (world.folder / "a.md").write_text("harbour master\n")
    done = world.run("ingest", "a.md", "--split", "0", "--quiet", "--no-index")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n") == 1
    assert "1 files read" in done.out


def test_a_reader_that_leaves_ends_the_command_quietly(written: World) -> None:
    for args in (["stats"], ["--help"]):
        process = subprocess.Popen(
            [*COMEM, *args],
            cwd=written.folder,
            env=written.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before the first line is written, so that every write meets a broken pipe
        assert process.stderr.read() == b""
        assert process.wait() == 0
        process.stderr.close()


def test_a_traceback_appears_only_when_asked_for_and_keeps_the_exit_code(world: World) -> None:
    plain = world.run("stats", "nosuch")
    plain.failed(10, "no store at nosuch")
    debug = world.with_environment(COMEM_DEBUG="1").run("stats", "nosuch")
    assert debug.code == 10
    assert debug.err.startswith(plain.err)
    assert "Traceback (most recent call last)" in debug.err
    assert "NoStoreError" in debug.err


def test_an_unforeseen_error_is_one_line_too(world: World) -> None:
    broken = "import comem_cli.commands.options as o\ndef fail():\n    raise KeyError('surprise')\no.only_store = fail"
    done = world.python(broken, "stats")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "error: unexpected KeyError: 'surprise'",
        "hint: run it again with COMEM_DEBUG=1 for the traceback, and please report it",
    ]


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_second_interruption_while_the_command_ends_changes_nothing(world: World, number: str) -> None:
    again = f"import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.{number}))\n"
    first = "import comem_cli.commands.options as o\ndef stop():\n    raise KeyboardInterrupt\no.only_store = stop"
    done = world.python(again + first, "stats")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_without_a_name_the_only_store_is_meant_and_several_are_refused(copied: World) -> None:
    assert copied.run("stats", "--json").json["store"] == "stores/docs"
    (copied.folder / "stores/docs").rename(copied.folder / "stores/one")
    other = copied.folder / "stores/two"
    other.mkdir()
    (other / "catalog.sqlite").touch()
    copied.run("stats", "--quiet").failed(
        10, "several stores in ./stores: stores/one, stores/two", "name one of them: comem stats stores/one --quiet"
    )


def test_without_any_store_the_hint_is_how_to_make_one(world: World) -> None:
    world.run("stats").failed(10, "no store in ./stores", "comem ingest PATH")
    world.run("ask", "what?").failed(10, "no store in ./stores", "comem ingest PATH")
