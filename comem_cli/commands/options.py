"""The options and helpers that several commands share."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from comem_cli.errors import NoStoreError, UsageError
from comem_cli.output import Progress, out

if TYPE_CHECKING:
    from comem_cli.model.load import ModelFiles

STORES = Path("stores")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result, warnings and errors.")]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="COMEM_MODEL",
        metavar="MODEL",
        help="Hub id, model directory or GGUF file. Default: the embedded SmolLM2-135M-Instruct.",
    ),
]
Device = Annotated[str, typer.Option(envvar="COMEM_DEVICE", metavar="DEVICE", help="auto, cuda, cuda:N, mps or cpu.")]
Dtype = Annotated[
    Literal["auto", "bf16", "fp16", "fp32"],
    typer.Option(envvar="COMEM_DTYPE", metavar="DTYPE", help="auto (bf16 where it is native), bf16, fp16 or fp32."),
]
ResidualDtype = Annotated[
    Literal["bf16", "int8"] | None,
    typer.Option(help="int8: half the bytes, not exact. Default: the store's, else bf16."),
]


def default_store(paths: list[Path]) -> Path:
    """Return stores/NAME for what is ingested; raises UsageError where several paths share no name."""
    if len(paths) != 1:
        raise UsageError("several paths need a store name", "pass --store stores/NAME")
    name = re.sub(r"[^\w.-]+", "-", paths[0].resolve().name, flags=re.ASCII).strip("-.")
    if not name:
        raise UsageError(f"{paths[0]} gives no name for a store", "pass --store stores/NAME")
    return STORES / name


def only_store() -> Path:
    """Return the one store in ./stores; raises NoStoreError (10) where there is none or a choice."""
    found = sorted(path.parent for path in STORES.glob("*/catalog.sqlite"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoStoreError(f"no store in ./{STORES}", "comem ingest PATH")
    names = ", ".join(str(path) for path in found)
    again = shlex.join(["comem", *sys.argv[1:2], str(found[0]), *sys.argv[2:]])
    raise NoStoreError(f"several stores in ./{STORES}: {names}", f"name one of them: {again}")


@contextmanager
def model_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the steps of getting a model once there is one: a line each, and a bar on a terminal."""
    stages = {
        "download": "downloading the model",
        "convert": "converting the model, once",
        "wait": "waiting for another comem that gets the model",
    }
    with ExitStack() as stack:
        bars: dict[str, tuple[Progress, list[int]]] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                size = f" ({total / 1e6:.0f} MB)" if stage == "download" and total else ""
                out.note(f"{stages[stage]}{size} ...")
                bar = stack.enter_context(out.progress(stage, total or None, "B" if stage == "download" else "step"))
                bars[stage] = (bar, [0])
            bar, shown = bars[stage]
            bar.update(done - shown[0])
            shown[0] = done

        yield update


def resolve_model(spec: str | None) -> ModelFiles:
    """Find the model's files, fetching or converting them where they are not here yet."""
    from comem_cli.model.load import resolve

    with model_progress() as progress:
        return resolve(spec, progress=progress)


def stdin_is_terminal() -> bool:
    """Say whether nobody piped anything in."""
    return sys.stdin is None or os.isatty(sys.stdin.fileno())
