"""Show what a rewrite will do, what it cost, and how two modes compare, to a person or as JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.read.compare import Question
    from comem_cli.store.fingerprint import Fingerprint
    from comem_cli.store.rewrite_run import RewritePlan, RewriteRun

FORMULA = "2 a matmul parameter and token, 4 a head dimension and visible key: Hoffmann et al. 2022, appendix F"


def name_of(fingerprint: Fingerprint) -> str:
    """Name a mode as a person says it."""
    return f"overlap {fingerprint.overlap}" if fingerprint.mode == "overlap" else fingerprint.mode


def show_plan(run: RewriteRun, plan: RewritePlan, *, final: bool) -> None:
    """Say what there is to do; as data where nothing follows (`final`)."""
    modes = {"from": name_of(run.old), "to": name_of(run.fingerprint)}
    if out.json:
        out.event({"type": "plan", "store": str(run.store), **modes, **vars(plan), "done": run.done})
        return
    say = out.text if final else out.note
    if run.done:
        say(f"{run.store}: written in mode {modes['to']} already")
        return
    say(
        f"{run.store}: {modes['from']} to {modes['to']}: {plan.chunks} chunks of {plan.documents} documents to write, "
        f"{plan.ready} of them ready; {plan.tokens:,} tokens, {plan.forward_tokens:,} with left context"
    )
    say(f"theory: {plan.flop_ratio:.3f} times the FLOPs of {modes['from']}; {plan.extra_bytes:,} bytes more meanwhile")
    if plan.estimate_s is not None:
        say(f"estimate: {plan.estimate_s:.1f} s in the lower half, from what {modes['from']} took")


def show_cost(run: RewriteRun, plan: RewritePlan, written: int) -> None:
    """Report a finished rewrite: measured time against theory and against the old mode's Write."""
    cost = run.cost()
    if out.json:
        facts = {"store": str(run.store), "mode": run.fingerprint.mode, "overlap": run.fingerprint.overlap}
        ratios = {"flop_ratio": plan.flop_ratio, "bytes_per_token": plan.bytes_per_token}
        out.event({"type": "summary", **facts, "written_chunks": written, **ratios, "cost": cost})
        return
    if run.done:
        out.text(f"{run.store}: in mode {name_of(run.fingerprint)} already, nothing to write")
        return
    out.text(f"{run.store}: now {name_of(run.fingerprint)}; {written} chunks written by this run")
    new, old = cost["new"], cost["old"]
    if new:
        out.text(f"Write: {_time(new)}")
    if old:
        out.text(f"before: {_time(old)} ({name_of(run.old)})")
    measured = f"; measured {cost['forward_ratio']:.3f} a token in the lower half" if cost["forward_ratio"] else ""
    out.text(f"theory: {plan.flop_ratio:.3f} times the FLOPs ({FORMULA}){measured}")
    out.text(f"residuals: {plan.bytes_per_token:,} bytes a token, as before")


def show_comparison(run: RewriteRun, questions: Sequence[Question], top_k: int, max_new_tokens: int) -> None:
    """Answer every question with all arms; a line each, then the shares."""
    from comem_cli.read.compare import ARMS, Comparison, summarise

    names = {"stored": name_of(run.old), "new": name_of(run.fingerprint), "replay": "replay"}
    compared = []
    with Comparison(run, top_k=top_k, max_new_tokens=max_new_tokens, note=out.note) as comparison:
        for question in questions:
            one = comparison.ask(question)
            compared.append(one)
            if out.json:
                out.event({"type": "question", **one.to_json()})
                continue
            out.text(f"Question: {question.text}")
            if one.error:
                out.text(f"  {one.error}")
            for arm in ARMS if one.texts else ():
                out.text(f"  {names[arm]}{_marks(one, arm)}: {' '.join(one.texts[arm].split())}")
    summary = summarise(compared)
    if out.json:
        out.event({"type": "summary", "from": names["stored"], "to": names["new"], **summary})
        return
    out.text()
    rows = [(names[arm], *(_share(summary[key], arm) for key in _SHARES)) for arm in ARMS]
    out.table(("arm", "first token = replay", "all tokens = replay", "answer in the text"), rows)
    out.text(
        f"{summary['questions']} questions, {summary['without_evidence']} without evidence; of "
        f"{summary['with_answers']} with answers, {names['new']} is better on {summary['new_better']} and worse on "
        f"{summary['new_worse']}"
    )


_SHARES = ("first_token_equal", "identical", "answer_contained")


def _share(shares: dict[str, float], arm: str) -> str:
    return f"{shares[arm]:.1%}" if arm in shares else "-"


def _marks(one: Any, arm: str) -> str:
    same = "" if arm == "replay" else ", as replay" if one.identical(arm) else ""
    found = "" if not one.question.answers else ", right" if one.contains(arm) else ", not right"
    return f" ({(same + found)[2:]})" if same or found else ""


def _time(cost: dict[str, float]) -> str:
    wall, forward, speed = cost["wall_s"], cost["forward_s"], cost["tokens_per_s"]
    return f"{wall:.1f} s, {forward:.1f} s of it in the lower half, {speed:,.0f} tokens/s"
