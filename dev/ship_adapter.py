"""Pack a trained adapter for shipping: bf16 weights, its record, and a model card.

    python dev/ship_adapter.py ADAPTER comem_cli/adapters/NAME [--corpus PATH... --audit PATH...]
        [--answers RECORDS... --arm SPEC] [--measured FILE]

Copies the peft config, rounds the weights to bf16 (half of the bytes) and keeps comem.json with a note of that.
MODEL_CARD.md is written from the record: what the adapter is for, steps, measurements, data. With --audit it holds the
containment of 13-grams of those evaluation texts in the corpus, which must hold the documents of the record.
With --answers, the records of `comem eval`, comem.json says how the arm SPEC answers beside replay, cell by cell.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from comem_cli.evaluate.comparison import compare, pairs
from comem_cli.evaluate.containment import Audit, audit, rows
from comem_cli.evaluate.record_groups import grouped
from comem_cli.evaluate.records import read_records
from comem_cli.evaluate.task import Document
from comem_cli.model.adapter import CONFIG, RECORD, WEIGHTS, read_adapter
from comem_cli.model.distill_corpus import Text, read_corpus

CARD = "MODEL_CARD.md"


def ship(directory: Path, target: Path, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write `target` with the adapter's files, weights rounded to bf16; return its record, with `more` in it.

    Raises: UsageError (2) where `directory` is no whole adapter; FileExistsError where `target` is there.
    """
    record = dict(read_adapter(directory).record)
    target.mkdir(parents=True)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in load_file(directory / WEIGHTS).items()}
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(directory / CONFIG, target / CONFIG)
    record |= {"weights_dtype": "bfloat16", **(more or {})}
    (target / RECORD).write_text(json.dumps(record, indent=1))
    return record


def answered(files: Sequence[Path], arm: str) -> list[dict[str, Any]]:
    """Hold an arm's answers against replay's on the same examples, cell by cell; exits where there are none."""
    found = []
    for cohort in grouped([record for path in files for record in read_records(path)], "replay").values():
        for cell, arms in cohort.items():
            both = pairs(arms.get(arm, {}), arms.get("replay", {}))
            if (compared := compare(both)) is None:
                continue
            change, split = compared.difference, compared.discordant
            figures = {
                "cell": cell,
                "n": compared.n,
                "replay": sum(replay.score for _, replay in both) / compared.n,
                "adapted": sum(mine.score for mine, _ in both) / compared.n,
                "difference": [change.value, change.low, change.high],
                "kept": compared.kept,
                "kept_n": compared.kept_n,
            }
            found.append(figures | ({"gained": split.gained, "lost": split.lost, "p": split.p} if split else {}))
    return found or sys.exit(f"no example was answered both by replay and by {arm}")


def card(name: str, record: dict[str, Any], licence: str, found: Audit | None, measured: str = "") -> str:
    """Write the model card of a record; measured: Markdown with what benchmarks say."""
    fit = record["interface"]
    lora = record["lora"]
    lines = [
        f"# {name}",
        "",
        f"A {record['kind']} adapter for {record['model']}: split {fit['split']}, chunks of {fit['chunk']} tokens, "
        f"mode {fit['mode']}, overlap {fit['overlap']}. LoRA of rank {lora['rank']}, alpha {lora['alpha']}. "
        f"Licence: {licence}.",
        "",
        f"Trained by `comem distill`: {'; before that '.join(_runs(record))}. Every option is in comem.json.",
        "",
        "## Measured on held-out text",
        "",
        "| packs of | step | LM tax | agreement | facts copied | replay | chains copied | replay | recited | replay |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for when in ("before", "after"):
        step = record["metrics"][when]
        for count, part in step["packs"].items():
            kinds = ("facts_copied", "chains_copied", "recited")
            copied = [_share(part, kind + who) for kind in kinds for who in ("", "_by_teacher")]
            figures = [f"{part['lm_tax']:.4f}", f"{part['agreement']:.1%}", *copied]
            lines.append(f"| {count} chunks | {step['step']} | {' | '.join(figures)} |")
    if again := record.get("measured"):
        packs = f"{again['packs']} packs of each number of chunks, up to {again['length']:,} tokens with a query part"
        lines += ["", f"Of {packs}, by dev/measure_adapter.py."]
    held = record["held_out"]
    lines += ["", f"Held out ({held['how']}): {', '.join(text['name'] for text in held['documents'])}.", ""]
    lines += _answers(record.get("answers", []))
    lines += [measured.strip(), ""] if measured else []
    lines += ["## Data", "", "| document | tokens | sha256 |", "|---|---|---|"]
    lines += [f"| {text['name']} | {text['tokens']} | {text['sha256']} |" for text in record["data"]]
    lines += ["", "## 13-gram audit", ""]
    if found is None:
        lines.append("Not made.")
    else:
        header, *body = rows(found)
        lines.append(
            f"Share of the 13-grams of each evaluation text that occur in the data; {len(found.flagged())} reach 0.8."
        )
        lines += ["", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
        lines += [f"| {' | '.join(row)} |" for row in body]
    return "\n".join(lines) + "\n"


def _runs(record: dict[str, Any]) -> list[str]:
    """Name the run of a record and those that it began with, the last one first."""
    stopped = f" ({record['stopped']})" if "stopped" in record else ""
    own = f"{record['steps']} steps of {record['options']['batch']} samples, seed {record['seed']}{stopped}"
    return [own, *(_runs(record["init"]) if "init" in record else [])]


def _answers(found: Sequence[dict[str, Any]]) -> list[str]:
    """Tabulate `answered`: nothing where it was not measured."""
    if not found:
        return []
    lines = [
        "## Answers beside replay's",
        "",
        "Scores 0 to 1 of the same packs (`comem eval`), paired, with a 95 % interval; kept: of what replay has right.",
        "",
        "| cell | n | replay | adapted | difference | kept | gained | lost | McNemar's p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        value, low, high = one["difference"]
        kept = "" if one["kept"] is None else f"{one['kept']:.1%} of {one['kept_n']}"
        split = [str(one.get("gained", "")), str(one.get("lost", "")), f"{one['p']:.2g}" if "p" in one else ""]
        figures = [
            f"{one['replay']:.3f}",
            f"{one['adapted']:.3f}",
            f"{value:+.3f} [{low:.3f}, {high:.3f}]",
            kept,
            *split,
        ]
        lines.append(f"| {one['cell']} | {one['n']} | {' | '.join(figures)} |")
    return [*lines, ""]


def _share(part: dict[str, Any], name: str) -> str:
    return f"{part[name]:.0%}" if name in part else ""


def audited(record: dict[str, Any], corpus: Sequence[Text], evaluation: Sequence[Text]) -> Audit:
    """Audit evaluation texts against the corpus; exits where it is not the one of the record."""
    wanted = {text["sha256"] for text in record["data"]}
    used = [text for text in corpus if text.sha256 in wanted]
    if {text.sha256 for text in used} != wanted:
        sys.exit("--corpus does not hold every document that the adapter was trained on")
    return audit((text.text for text in used), [Document(text.name, text.text) for text in evaluation])


def main() -> None:
    """Pack one adapter and say how large it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("adapter", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--corpus", type=Path, nargs="+")
    parser.add_argument("--audit", type=Path, nargs="+")
    parser.add_argument("--answers", type=Path, nargs="+")
    parser.add_argument("--arm", help="whose answers, as the records name it")
    parser.add_argument("--measured", type=Path, help="Markdown to put into the card")
    parser.add_argument("--licence", default="Apache-2.0")
    args = parser.parse_args()
    more = {"answers": answered(args.answers, args.arm)} if args.answers else {}
    record = ship(args.adapter, args.target, more)
    found = None
    if args.audit:
        if not args.corpus:
            parser.error("--audit needs --corpus")
        found = audited(record, read_corpus(args.corpus), read_corpus(args.audit))
    measured = args.measured.read_text() if args.measured else ""
    (args.target / CARD).write_text(card(args.target.name, record, args.licence, found, measured))
    size = sum(path.stat().st_size for path in args.target.iterdir())
    print(f"{args.target}\t{size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
