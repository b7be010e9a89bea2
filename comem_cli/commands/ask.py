"""`comem ask`: answer questions from a store, with sources."""

from __future__ import annotations

import shlex
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.commands.ask_view import live_printer, show_answer
from comem_cli.commands.terms import Terms
from comem_cli.errors import StaleSourcesError, UsageError
from comem_cli.output import out, stdout_is_terminal

if TYPE_CHECKING:
    from comem_cli.read.ask import Asked, Asker
    from comem_cli.read.heal import HealingAsker

_SELECTOR = "bm25-iterative"


def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="[STORE] QUESTION", help="STORE may be left out where ./stores holds one.")
    ],
    top_k: Annotated[int, typer.Option(help="Chunks to select.")] = 12,
    hop: Annotated[int, typer.Option(help="Chunks a later round adds; the first takes the rest.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Rounds of HOP chunks. Default: until full.")] = None,
    selector: Annotated[str, typer.Option(help="bm25(-iterative), hybrid, dense, attention, recency.")] = _SELECTOR,
    terms: Terms = None,
    budget: Annotated[int | None, typer.Option(help="Most tokens of all chunks, beside --top-k.")] = None,
    neighbours: Annotated[int, typer.Option(help="Add so many chunks on each side of a selected one.")] = 0,
    explain: Annotated[bool, typer.Option("--explain", help="Say why chunks were selected, and others not.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus of the distribution to draw from.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    template: Annotated[str | None, typer.Option(help="Prompt with {question}; '{question}' alone is raw.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; repeatable.")] = None,
    arm: Annotated[str, typer.Option(help="comem, replay (all layers over the same chunks) or both.")] = "comem",
    read_positions: Annotated[str, typer.Option(help="fresh, or origin (as in its document).")] = "fresh",
    attention: Annotated[str, typer.Option(help="full, or block: a chunk sees itself and BOS only.")] = "full",
    adapter: Annotated[str | None, typer.Option(metavar="DIR|none", help="Default: one that fits the store.")] = None,
    replay_adapter: Annotated[str, typer.Option(help="on: replay reads with the adapter as well.")] = "off",
    together: Annotated[int, typer.Option("--batch", help="With '-': questions to decode at once.")] = 1,
    pack_cache: Annotated[int, typer.Option(metavar="MB", help="With '-': keep the KV of the packs read last.")] = 0,
    fail_stale: Annotated[bool, typer.Option("--fail-stale", help="Exit 16 if a cited file has changed.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Mend the store where it turns out damaged.")] = False,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer a question from a store and name the sources.

    With QUESTION '-', answer each JSON line {"question": ...} of stdin on one line; other fields are passed through.
    """
    batch = words[-1] == "-"
    out.configure(json=json or batch, quiet=quiet)
    target, text = _store_and_question(words)
    out.note(f"opening {target} ...")
    from comem_cli.read.ask import Asker, AskOptions

    settings = (top_k, hop, rounds, arm, max_new_tokens, temperature, top_p, seed, template, stop, device, dtype)
    more = (read_positions, attention, adapter, replay_adapter, selector, terms, budget, neighbours, explain)
    chosen = AskOptions(*settings, *more, pack_cache, together).checked()
    if not batch:
        chosen.prompt(text)  # refuses what is no question before anything is opened
    elif options.stdin_is_terminal():
        raise UsageError("no questions on stdin", """echo '{"question": "..."}' | comem ask STORE -""")
    from comem_cli.read.heal import HealingAsker

    make = HealingAsker if repair else Asker
    with make(target, lambda: options.resolve_model(model), chosen, note=out.note, warn=out.warning) as asker:
        if batch:
            _batch(asker, chosen.batch, fail_stale)
            return
        live = not out.json and chosen.arm != "both" and stdout_is_terminal()
        _show(target, asker.ask(text, on_text=live_printer() if live else None), live, fail_stale)


def _store_and_question(words: list[str]) -> tuple[Path, str]:
    """Tell STORE and QUESTION apart; raises UsageError (2) for an unquoted or missing question."""
    named = (Path(words[0]) / "catalog.sqlite").is_file()
    if len(words) > 2:
        store, rest = (words[:1], words[1:]) if named else ([], words)
        raise UsageError("a question is one argument", f"quote it: comem ask {shlex.join([*store, ' '.join(rest)])}")
    if len(words) == 2:
        return Path(words[0]), words[1]
    if named:
        raise UsageError("the question is missing", f'comem ask {shlex.quote(words[0])} "what do you want to know?"')
    return options.only_store(), words[0]


def _show(target: Path, asked: Asked, streamed: bool, fail_stale: bool) -> None:
    if out.json:
        out.document(asked.to_json())
    else:
        show_answer(asked, streamed=streamed)
    stale = [source.places[0].path for source in asked.sources if source.stale]
    if stale and fail_stale:
        raise StaleSourcesError(f"{stale[0]} changed after it was ingested", f"comem ingest PATH --store {target}")


def _batch(asker: Asker | HealingAsker, together: int, fail_stale: bool) -> None:
    """Answer the lines of stdin in their order, `together` at a time."""
    lines = ((number, line) for number, line in enumerate(sys.stdin.buffer, 1) if line.strip())
    code = 0
    while some := list(islice(lines, together)):
        for answer in asker.ask_lines(some):
            out.event(answer)
            stale = fail_stale and any(source["stale"] for source in answer.get("sources", ()))
            code = code or answer.get("exit_code", StaleSourcesError.exit_code if stale else 0)
    if code:
        raise typer.Exit(code)
