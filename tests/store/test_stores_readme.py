"""The code in stores/README.md reads a store without comem."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from samples import fingerprint, ledger, open_store, put, sample

from comem_cli.store import bf16
from comem_cli.store.row_layout import INT8, QUANTISER, RowLayout
from comem_cli.store.rows import ROW_TYPES, SCHEMA
from comem_cli.store.writer import StoreWriter

README = Path(__file__).parents[2] / "stores" / "README.md"


def test_its_code_reads_a_store_and_its_digests(tmp_path):
    path = tmp_path / "s"
    chunks = [sample(1), sample(2, 40)]
    with open_store(path) as writer:
        put(writer, "a", chunks)
        writer.commit(ledger())
    scope: dict[str, Any] = {"STORE": str(path)}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks[:3]:
        exec(block, scope)
    bf16.register()  # undo the README's registration
    assert {key: (ids.tobytes(), np.asarray(rows).tobytes()) for key, (ids, rows) in scope["chunks"].items()} == {
        chunk.key: (chunk.ids, chunk.residual) for chunk in chunks
    }
    assert scope["same"].shape == scope["array"].shape
    for kind in ROW_TYPES:
        assert len(list(scope["rows"](kind.table))) > 0


def test_its_code_turns_int8_records_back(tmp_path):
    layout, rng = RowLayout(16, INT8), np.random.default_rng(0)
    wanted = {}
    fields = {"format_version": 2, "residual_dtype": INT8, "quantiser": QUANTISER}
    with StoreWriter.create_or_open(tmp_path / "s", fingerprint(**fields), 16, {"compute_dtype": "float32"}) as writer:
        for seed, n in enumerate((64, 5)):
            rows = (rng.normal(size=(n, 16)).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
            chunk = replace(sample(seed, n), residual=layout.encode(rows))
            wanted[chunk.key] = layout.round_trip(rows)
            put(writer, f"d{seed}", [chunk])
        writer.commit()
    scope: dict[str, Any] = {"STORE": str(tmp_path / "s")}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(block, scope)
    bf16.register()
    assert {key: scope["residuals"](rows).tobytes() for key, (_, rows) in scope["chunks"].items()} == wanted


def test_it_names_every_column_and_every_fact(tmp_path):
    text = README.read_text()
    for kind in ROW_TYPES:
        (line,) = re.findall(rf"^\| `{kind.table}` \|(.*)\|$", text, re.MULTILINE)
        assert re.findall(r"`(\w+)`", line) == list(kind.columns())
        (created,) = re.findall(rf"CREATE TABLE {kind.table} \((.*?)\)(?: WITHOUT ROWID)?;", SCHEMA, re.DOTALL)
        positions = [re.search(rf"\b{column} [A-Z]", created).start() for column in (*kind.columns(), "digest")]
        assert positions == sorted(positions)
    with StoreWriter.create_or_open(tmp_path / "s", fingerprint(), 8, {"compute_dtype": "float32"}) as writer:
        facts = writer._catalogue.meta()
    assert [key for key in facts if f"`{key}`" not in text] == []
