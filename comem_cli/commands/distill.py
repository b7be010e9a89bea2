"""`comem distill`: train an adapter that makes a deep split usable."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comem_cli.commands import options
from comem_cli.commands.distill_view import measured
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.model.distill import Distillation


def distill(
    corpus: Annotated[list[Path], typer.Argument(metavar="CORPUS...", help="Folders or files of text to learn from.")],
    target: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the adapter.")],
    split: Annotated[int, typer.Option(help="Layers [0:split) are written, the rest is adapted.")],
    kind: Annotated[str, typer.Option(help="suffix (layers [split:L)), or write (layers [0:split)).")] = "suffix",
    mode: Annotated[str, typer.Option(help="Mode of the store: chunk or document.")] = "chunk",
    overlap: Annotated[int, typer.Option(help="Left-context tokens of each chunk in the store.")] = 0,
    chunk: Annotated[int, typer.Option(help="Tokens a chunk in the store.")] = 512,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    batch: Annotated[int, typer.Option(help="Samples a step.")] = 8,
    micro: Annotated[int, typer.Option(help="Samples a forward; more only helps on a GPU.")] = 1,
    length: Annotated[int, typer.Option(help="Longest pack with one query part, in tokens.")] = 2048,
    max_chunks: Annotated[int, typer.Option(help="Most chunks a pack.")] = 12,
    parts: Annotated[int, typer.Option(help="Most query parts that one reading of a pack is asked for.")] = 12,
    grow: Annotated[int, typer.Option(help="Short packs first: samples over which packs grow to --length.")] = 0,
    visits: Annotated[int, typer.Option(help="Times to learn from each sample: the teacher reads it once.")] = 1,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 5e-4,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA weights.")] = 32,
    alpha: Annotated[int, typer.Option(help="Scale of the LoRA weights: alpha / rank.")] = 64,
    warmup: Annotated[int, typer.Option(help="Steps of linear warm-up; a cosine follows.")] = 50,
    weight_decay: Annotated[float, typer.Option(help="AdamW weight decay.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Largest norm of a step's gradient.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the samples.")] = 0,
    top_k: Annotated[int, typer.Option(help="KL over the teacher's K best tokens; 0: all.")] = 0,
    pack_loss: Annotated[float, typer.Option(help="Weight of the pack's tokens beside the query parts'.")] = 1.0,
    pack_positions: Annotated[int, typer.Option(help="Pack tokens a sample that are learned from.")] = 256,
    answer_weight: Annotated[float, typer.Option(help="Weight of an answer's tokens among its part's.")] = 10.0,
    gold: Annotated[
        float, typer.Option(help="Share of the true tokens' loss in copied answers; 0: teacher alone.")
    ] = 0.3,
    mix: Annotated[
        str, typer.Option(help="Weights of the kinds of query part.")
    ] = "continue=1,recite=1.5,fact=8,sentence=1,question=0.1,chain=0.4",
    held_out: Annotated[list[Path] | None, typer.Option(help="Documents to measure on, never to train on.")] = None,
    init: Annotated[Path | None, typer.Option(metavar="ADAPTER", help="Begin with its weights.")] = None,
    eval_every: Annotated[int, typer.Option(help="Measure on held-out packs every N steps.")] = 100,
    eval_packs: Annotated[int, typer.Option(help="Held-out packs of 4 chunks to measure on, and of 12.")] = 6,
    checkpoint_every: Annotated[int, typer.Option(help="Keep the state every N steps.")] = 50,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train an adapter by self-distillation on your own texts.

    The teacher is the model itself, reading the same packs through all layers; the student reads written residuals.
    A tenth of the corpus, or --held-out, is measured on and not learned from. DIR becomes a standard peft adapter with
    a record beside it, and `comem ask --adapter DIR` uses it with stores of this model, split, chunk and mode. Run the
    same command again to go on after an interruption. On several GPUs, or with a process a core: torchrun
    --nproc-per-node 2 -m comem_cli distill ...
    """
    given: dict[str, Any] = dict(locals())  # most options are fields of the same name
    out.configure(json=json, quiet=quiet)
    files = options.resolve_model(model)
    from comem_cli.model.distill import Distillation
    from comem_cli.model.distill_options import DistillOptions

    chosen = DistillOptions(**{field.name: given[field.name] for field in fields(DistillOptions)})
    run = Distillation(corpus, files, target, chosen, held_out or (), init)
    if run.done:
        out.note(f"{target} is done; pass another --out to train again")
        return
    try:
        _train(run, files.name)
    except BaseException as error:
        if not isinstance(error, Exception):  # an interruption
            out.note("stopped; run the same command again to go on from the last checkpoint")
        raise


def _train(run: Distillation, name: str) -> None:
    with out.progress("distill", run.options.steps, "step") as bar:
        shown = {"step": 0}

        def on_event(event: dict[str, Any]) -> None:
            if out.json:
                out.event(event)
            elif event["event"] == "step":
                bar.describe(f"loss {event['loss']:.3f}")
            else:
                out.note(measured(event))

        def on_step(done: int) -> None:
            bar.update(done - shown["step"])
            shown["step"] = done

        record = run.run(on_event, on_step, on_load=lambda: out.note(f"loading {name} ..."))
    if not record:
        return  # another process of several
    if out.json:
        out.event({"event": "done", "adapter": str(run.folder.out), "metrics": record["metrics"]})
    else:
        out.text(f"wrote {run.folder.out}: before, {measured(record['metrics']['before'])}")
        out.text(f"after, {measured(record['metrics']['after'])}")
