"""Group the facts of `comem stats` for people and pipes: (name, raw value, unit) under a heading."""

from __future__ import annotations

from typing import Any

Fact = tuple[str, Any, str]
UNKNOWN = "unknown"


def groups(facts: dict[str, Any]) -> list[tuple[str, list[Fact]]]:
    """Return (heading, facts) in the order in which they are shown."""
    found = [
        ("holds", _holds(facts)),
        ("takes", _takes(facts)),
        ("bytes a token", _token_bytes(facts["bytes_per_token"], facts["fingerprint"]["residual_dtype"])),
        ("residuals against what Write gave, |h - h'| / |h|", _residual_error(facts["residual_error"])),
    ]
    found += [(f"{cost['kind']} on {cost['device']} in {cost['dtype']}", _write(cost)) for cost in facts["write"]]
    found += [
        (name, [(key, value, "") for key, value in facts[name].items()])
        for name in ("fingerprint", "recorded", "versions")
    ]
    return [(heading, some) for heading, some in found if some]


def _holds(facts: dict[str, Any]) -> list[Fact]:
    names = ("store", "store_id", "generation", "documents", "chunks", "tokens", "placements", "unplaced_chunks")
    found: list[Fact] = [(name.replace("_", " "), facts[name], "") for name in (*names, "index")]
    if facts["index_terms"]:
        found.append(("index terms", facts["index_terms"], ""))
    if "changed_sources" in facts:
        changed = facts["changed_sources"]
        found.append(("changed sources", len(changed), ""))
        found += [("changed", f"{row['root']}/{row['path']}", "") for row in changed]
    return found


def _takes(facts: dict[str, Any]) -> list[Fact]:
    parts = ("residual_bytes", "catalogue_bytes", "index_bytes")
    found: list[Fact] = [(name.removesuffix("_bytes"), facts[name], "B") for name in parts]
    total = sum(facts[name] for name in parts)
    found += [("total", total, "B"), ("sources", facts["source_bytes"], "B")]
    if facts["source_bytes"]:
        found.append(("total to sources", total / facts["source_bytes"], "x"))
    return [*found, ("padding in residuals", facts["padding_share"], "share"), ("shards", facts["shards"], "")]


def _residual_error(error: dict[str, Any] | None) -> list[Fact]:
    """Show what int8 lost, over every token that was written so; bf16 loses nothing and has no such lines."""
    if error is None:
        return []
    names = {"mean": "mean relative error", "max": "largest relative error"}
    return [*((label, error[name], "ratio") for name, label in names.items()), ("tokens measured", error["rows"], "")]


def _token_bytes(sizes: dict[str, Any] | None, residual_dtype: str) -> list[Fact]:
    if sizes is None:
        return []
    names = {
        "residuals": "residuals",
        "residual_formula": f"residuals, formula {'d + 36' if residual_dtype == 'int8' else '2d'}",
        "catalogue": "catalogue",
        "token_ids": "token ids, in the catalogue",
        "index": "index",
        "total": "total",
        "text": "sources",
        "full_kv": "full KV cache, formula",
    }
    found: list[Fact] = [
        (label, UNKNOWN if sizes[name] is None else sizes[name], "B/token") for name, label in names.items()
    ]
    if sizes["full_kv"] and sizes["residual_formula"]:
        found.append(("full KV to residual", sizes["full_kv"] / sizes["residual_formula"], "x"))
    return found


def _write(cost: dict[str, Any]) -> list[Fact]:
    found: list[Fact] = [("chunks", cost["chunks"], ""), ("tokens", cost["tokens"], "")]
    found += [(name, cost[f"{name}_ms"] / 1e3, "s") for name in ("wall", "forward", "io")]
    speed = cost["tokens_per_s"]
    return [*found, ("whole time", cost["seconds"], "s"), ("tokens/s", UNKNOWN if speed is None else speed, "")]


def readable(value: Any, unit: str) -> Any:
    """Write a value for a person: KiB and MiB, percent, seconds, grouped digits."""
    if isinstance(value, str):
        return value
    if unit == "B":
        return _bytes(value)
    if unit == "B/token":
        return f"{value:,.1f} B"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "ratio":
        return f"{value:.5f}"
    if unit == "s":
        return f"{value:,.2f} s" if value < 600 else f"{value / 60:,.1f} min"
    if unit == "x":
        return f"{value:,.3g} x"
    return value if isinstance(value, int) else f"{value:,.1f}"


def _bytes(size: float) -> str:
    for name in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,} B" if isinstance(size, int) else f"{size:,.1f} {name}"
        size = size / 1024
    return f"{size:,.1f} TiB"
