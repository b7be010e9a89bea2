"""Wire the commands into the Typer app; turn every outcome into an exit code.

Nothing heavy is imported here: each command imports what it needs when it runs, so `comem --help` stays quick.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from comem_cli import __version__
from comem_cli.commands import (
    ask,
    break_even,
    check,
    distill,
    eval,
    forget,
    index,
    ingest,
    models,
    overlap_write,
    recall,
    stats,
    tune,
    verify,
)
from comem_cli.errors import ComemError, UsageError, from_os_error
from comem_cli.output import out


class Terminated(BaseException):
    """Unwind on SIGTERM, as KeyboardInterrupt does on SIGINT."""


def _debug() -> bool:
    return os.environ.get("COMEM_DEBUG", "") not in ("", "0")


def _fail(error: ComemError) -> int:
    out.error(error.message, error.hint, error.exit_code)
    return error.exit_code


def _broken_pipe() -> int:
    """End quietly when the reader of a pipe has left; Python would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _outcome(error: BaseException) -> int:
    """Report an exception and return the exit code it stands for."""
    if isinstance(error, ComemError):
        return _fail(error)
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, Terminated):
        return 143
    if isinstance(error, BrokenPipeError):
        return _broken_pipe()
    if isinstance(error, OSError):
        return _fail(from_os_error(error))
    hint = "run it again with COMEM_DEBUG=1 for the traceback, and please report it"
    out.error(f"unexpected {type(error).__name__}: {error}", hint, 1)
    return 1


def _unparsed(error: typer.TyperException) -> int:
    """Report a command line that does not parse; without any command, Typer's message is the whole help."""
    command = getattr(getattr(error, "ctx", None), "command_path", "comem")
    message = error.format_message()
    if message.startswith("Usage:"):
        out.usage(message)
        return error.exit_code
    out.configure(json="--json" in sys.argv)
    return _fail(UsageError(f"{message[:1].lower()}{message[1:].rstrip('.')}", f"{command} --help"))


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that every exception becomes one line, a hint and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except BaseException as error:
            code = _outcome(error)
            if _debug() and code not in (0, 130, 143):
                out.traceback(error)
            raise typer.Exit(code) from None

    return run


def _version(value: bool) -> None:
    if value:
        out.text(f"comem {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="comem",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def comem(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ask many questions over a stable set of documents, on your own model.

    comem runs each document chunk through the first layers once, keeps the residuals on disk, and answers every
    question by retrieving chunks and running only the remaining layers.
    """


app.command("ingest")(guarded(ingest.ingest))
app.command("index")(guarded(index.index))
app.command("ask")(guarded(ask.ask))
app.command("overlap-write")(guarded(overlap_write.overlap_write))
app.command("stats")(guarded(stats.stats))
app.command("break-even")(guarded(break_even.break_even))
app.command("distill")(guarded(distill.distill))
app.command("tune")(guarded(tune.tune))
app.command("recall")(guarded(recall.recall))
app.command("forget")(guarded(forget.forget))
app.command("verify")(guarded(verify.verify))
app.command("check")(guarded(check.check))
app.command("eval")(guarded(eval.evaluate))
models_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Get and list models.")
models_app.command("pull")(guarded(models.pull))
models_app.command("list")(guarded(models.show))
app.add_typer(models_app, name="models")


def _on_sigterm(number: int, frame: object) -> None:
    raise Terminated


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = app(prog_name="comem", standalone_mode=False)
    except typer.TyperException as error:
        code = _unparsed(error)
    except (KeyboardInterrupt, Terminated, BrokenPipeError) as error:  # outside a command
        code = _outcome(error)
    except SystemExit as error:  # Typer's answer to a pipe that closed while it printed help
        code = _broken_pipe() if isinstance(error.__context__, BrokenPipeError) else error.code
    if code in (130, 143):
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one, while Python ends, changes nothing any more
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
