"""What `comem distill` shows of a measurement on held-out packs."""

from __future__ import annotations

from typing import Any


def measured(found: dict[str, Any]) -> str:
    """Write one measurement in one line."""
    by_chunks = [f"{count} chunks {_figures(part)}" for count, part in found["packs"].items()]
    return f"step {found['step']}: {'; '.join(by_chunks)}"


def _figures(found: dict[str, Any]) -> str:
    text = f"LM tax {found['lm_tax']:.3f}, agreement {found['agreement']:.1%}"
    for name in ("facts", "chains"):
        if name in found:
            text += f", {found[name + '_copied']:.0%} of {found[name]} {name} copied"
            text += f" (replay {found[name + '_copied_by_teacher']:.0%})"
    return text
