"""Stores of every format version that was released open as they are; a newer one is refused by name."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import faults_on_disk as faults
import pytest

from comem_cli.errors import FingerprintError
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import open_store_index
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.format import FORMAT_VERSION
from comem_cli.store.mend import MendingWriter
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import row_digest
from comem_cli.store.writer import StoreWriter
from tests.commands.cli import residuals

GOLDEN = Path(__file__).parents[2] / "stores" / "golden"


@dataclass(frozen=True)
class Golden:
    """What dev/make_golden.py printed when the store was made."""

    documents: int
    chunks: int
    tokens: int
    sha256: str  # of all residuals, in order of their keys


KNOWN = {
    "format-1": Golden(2, 6, 228, "35b75628b96d4531a8437f7c57abd537286ebeec7892581f99df1b8cd49f38ab"),
    "format-2": Golden(2, 6, 228, "03853444aa26c324596891cd6e4564e0e146a8988375738300021b9bf3d2865d"),  # int8
}


@pytest.fixture(params=KNOWN)
def golden(request, tmp_path) -> tuple[Path, Golden]:
    """Copy a golden store: reading one makes SQLite's side files."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "s")), KNOWN[request.param]


def test_every_golden_store_is_known_and_the_present_format_has_one():
    assert {path.name for path in GOLDEN.iterdir()} == set(KNOWN)
    assert f"format-{FORMAT_VERSION}" in KNOWN
    size = sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())
    assert size < 200_000 * len(KNOWN)


def test_a_golden_store_is_whole_and_holds_what_it_held(golden):
    path, wanted = golden
    assert check_store(path, CheckOptions(read_data=True), check_store_index).findings == ()
    held = residuals(path)
    assert hashlib.sha256(b"".join(held[key] for key in sorted(held))).hexdigest() == wanted.sha256
    assert sum(map(len, held.values())) == wanted.tokens * 64 * 2
    with StoreReader(path) as reader:
        counts = reader.counts()
        assert (counts.documents, counts.chunks, counts.tokens) == (wanted.documents, wanted.chunks, wanted.tokens)
        with open_store_index(reader) as index:
            assert index.count == wanted.chunks


def test_a_golden_store_can_be_written(golden):
    path, wanted = golden
    with StoreWriter.open(path) as writer:
        number = writer.add_root(Path("/elsewhere"))
        first = next(iter(writer.document_chunks(0)))[1]
        from comem_cli.store.edits import Placement

        writer.put_document(number, "copy", 1, 1, "ab" * 32, "utf-8", "text", [Placement(first.key, 0, 1, 1, 1)])
        writer.commit()
    with StoreReader(path) as reader:
        assert reader.counts().documents == wanted.documents + 1


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 1000])
def test_a_newer_format_is_refused_by_name_and_number(golden, version):
    path, _ = golden
    digest = row_digest("meta", ("format_version", str(version)))
    sql = "UPDATE meta SET value = ?, digest = ? WHERE key = 'format_version'"
    faults.execute(path, sql, (str(version), digest))
    before = {file: file.read_bytes() for file in faults.all_files(path)}
    uses = (StoreReader, StoreWriter.open, MendingWriter.open)
    for use in (*uses, lambda store: check_store(store, CheckOptions(), check_store_index)):
        with pytest.raises(FingerprintError) as caught:
            use(path)
        assert f"format {version}; this comem reads format {FORMAT_VERSION}" in caught.value.message
        assert caught.value.exit_code == 12
    assert {file: file.read_bytes() for file in faults.all_files(path)} == before
