"""`comem stats`: every figure is checked against the files and the rows themselves."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.commands.cli import World, rows
from tests.tiny_store import make_store

STORE = "stores/docs"


def test_bytes_a_token_are_those_of_the_files(written: World) -> None:
    found = written.run("stats", "--json").json
    store = written.folder / STORE
    tokens = sum(row[4] for row in rows(store)["chunk"])
    residuals = sum(path.stat().st_size for path in (store / "residuals" / "c").rglob("*") if path.is_file())
    index = sum(path.stat().st_size for path in (store / "index").rglob("*") if path.is_file())
    catalogue = (store / "catalog.sqlite").stat().st_size
    sources = sum(path.stat().st_size for path in (written.folder / "docs").iterdir())
    sizes = found["bytes_per_token"]
    assert found["tokens"] == tokens
    assert sizes["residuals"] == pytest.approx(residuals / tokens)
    assert sizes["index"] == pytest.approx(index / tokens)
    assert sizes["catalogue"] == pytest.approx(catalogue / tokens, rel=0.1)  # the open -wal counts too
    assert sizes["total"] == pytest.approx(sizes["residuals"] + sizes["catalogue"] + sizes["index"])
    assert sizes["text"] == pytest.approx(sources / tokens) and found["source_bytes"] == sources
    assert sizes["token_ids"] == 4


def test_the_formulas_follow_from_the_model(written: World) -> None:
    sizes = written.run("stats", "--json").json["bytes_per_token"]
    assert sizes["residual_formula"] == 2 * 64
    assert sizes["full_kv"] == 2 * 6 * 2 * 16 * 2  # keys and values, layers, KV heads, head size, bf16


def test_padding_is_the_share_of_rows_without_a_token(written: World) -> None:
    found = written.run("stats", "--json").json
    blocks = sum(-(-row[4] // 32) for row in rows(written.folder / STORE)["chunk"])
    assert found["padding_share"] == pytest.approx(1 - found["tokens"] / (32 * blocks))
    assert 0 < found["padding_share"] < 1


def test_write_is_summed_up_from_the_ledger(written: World) -> None:
    (cost,) = written.run("stats", "--json").json["write"]
    ledger = rows(written.folder / STORE)["ledger"]
    assert cost["kind"] == "write:chunk" and cost["device"] == "cpu"
    for number, name in enumerate(("chunks", "tokens", "wall_ms", "forward_ms", "io_ms"), 2):
        assert cost[name] == pytest.approx(sum(row[number] for row in ledger))
    seconds = (cost["wall_ms"] + cost["io_ms"]) / 1e3
    assert cost["seconds"] == pytest.approx(seconds)
    assert cost["tokens_per_s"] == pytest.approx(cost["tokens"] / seconds)
    assert 0 < cost["forward_ms"] <= cost["wall_ms"]


def test_changed_sources_are_named_only_when_asked_for(copied: World, written: World) -> None:
    assert "changed_sources" not in copied.run("stats", "--json").json
    assert copied.run("stats", "--sources", "--json").json["changed_sources"] == []
    document = written.folder / "docs" / "d003.md"
    before = document.stat()
    moved = document.rename(document.with_name("away"))
    try:
        found = copied.run("stats", "--sources", "--json").json["changed_sources"]
    finally:
        moved.rename(document)
    assert [Path(row["root"], row["path"]) for row in found] == [document]
    assert document.stat().st_mtime_ns == before.st_mtime_ns


def test_a_bug_report_finds_every_version(written: World) -> None:
    found = written.run("stats", "--json").json
    assert set(found["versions"]) == {"comem", "python", "torch", "transformers", "tokenizers", "zarr", "numpy"}
    assert found["recorded"]["torch"] == found["versions"]["torch"]
    assert found["fingerprint"]["split"] == 2 and found["index"] == "fresh"
    assert found["index_terms"] == "folded"


def test_a_pipe_gets_four_columns_with_raw_numbers(written: World) -> None:
    done = written.run("stats")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert lines[0] == ["group", "fact", "value", "unit"]
    assert {len(line) for line in lines} == {4}
    values = {(group, fact): value for group, fact, value, _ in lines[1:]}
    assert values["holds", "index terms"] == "folded"
    assert int(values["takes", "sources"]) == written.run("stats", "--json").json["source_bytes"]
    assert float(values["bytes a token", "full KV to residual"]) == 768 / 128


def test_a_store_without_the_models_sizes_says_unknown(copied: World) -> None:
    from comem_cli.store.facts import full_kv_bytes

    recorded = copied.run("stats", "--json").json["recorded"]
    assert full_kv_bytes(recorded) == 768
    assert full_kv_bytes({name: value for name, value in recorded.items() if name != "kv_heads"}) is None
    assert full_kv_bytes({"n_layers": "36", "kv_heads": "8", "head_dim": "128"}) == 147_456  # Qwen3-8B


def test_a_store_of_token_ids_has_no_residual_bytes(light, tmp_path: Path) -> None:
    found = light(tmp_path).run("stats", "--json").json
    sizes = found["bytes_per_token"]
    assert (sizes["residuals"], sizes["residual_formula"], found["padding_share"]) == (0, 0, 0)
    ids = [row[6] for row in rows(tmp_path / STORE)["chunk"]]
    assert found["tokens"] == sum(len(struct.unpack(f"<{len(some) // 4}I", some)) for some in ids)


def test_an_int8_store_shows_its_own_formula_and_what_it_lost(tmp_path: Path, world: World) -> None:
    store = make_store(tmp_path / "made", residual_dtype="int8").path
    found = world.run("stats", str(store), "--json").json
    assert found["bytes_per_token"]["residual_formula"] == 64 + 36
    error = found["residual_error"]
    assert error["rows"] == found["tokens"] and 0 < error["mean"] < error["max"] < 0.05
    lines = [line.split("\t") for line in world.run("stats", str(store)).out.splitlines()]
    values = {fact: value for _, fact, value, _ in lines}
    assert float(values["residuals, formula d + 36"]) == 100
    assert float(values["mean relative error"]) == pytest.approx(error["mean"])


def test_an_empty_store_is_told_without_a_division(tmp_path: Path, world: World) -> None:
    from comem_cli.store.fingerprint import Fingerprint
    from comem_cli.store.writer import StoreWriter

    empty = Fingerprint(1, "w", "c", "t", "none", 2, 64, 0, "chunk", "[[8,64]]")
    StoreWriter.create_or_open(tmp_path / "s", empty, 8, {"compute_dtype": "fp32"}).close()
    found = world.run("stats", "s", "--json").json
    assert (found["tokens"], found["bytes_per_token"], found["write"]) == (0, None, [])
    assert world.run("stats", "s").code == 0


def test_people_get_units() -> None:
    from comem_cli.commands.stats_view import readable

    assert [readable(size, "B") for size in (0, 1023, 1024, 34_293_392, 2**31)] == [
        *("0 B", "1,023 B", "1.0 KiB", "32.7 MiB", "2.0 GiB")
    ]
    assert readable(0.0123, "share") == "1.2%"
    assert readable(0.0036359, "ratio") == "0.00364"
    assert (readable(86.302, "s"), readable(7200.0, "s")) == ("86.30 s", "120.0 min")
    assert (readable(1152, "B/token"), readable(322.03, "x")) == ("1,152.0 B", "322 x")
    assert (readable(12_345, ""), readable(344.01, ""), readable("fresh", "")) == (12_345, "344.0", "fresh")
