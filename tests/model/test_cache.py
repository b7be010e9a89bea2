from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from comem_cli.model import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_environment_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("COMEM_CACHE")
    assert cache.cache_directory().name == "comem"


def test_a_digest_is_the_sha256_of_the_bytes_and_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc" * 1000)
    expected = hashlib.sha256(b"abc" * 1000).hexdigest()
    assert cache.file_sha256(file) == expected
    monkeypatch.setattr(cache.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert cache.file_sha256(file) == expected


def test_a_change_that_keeps_size_and_mtime_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    before = file.stat()
    cache.file_sha256(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.file_sha256(file) == hashlib.sha256(b"two").hexdigest()


def test_a_damaged_record_is_made_again(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    expected = cache.file_sha256(file)
    (record,) = (own_cache / "digests").iterdir()
    for damage in (b"", b"[1]", b'{"stamp": 1}', b"\xff"):
        record.write_bytes(damage)
        assert cache.file_sha256(file) == expected


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"one")
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path / "file" / "below-a-file"))
    assert cache.file_sha256(tmp_path / "file") == hashlib.sha256(b"one").hexdigest()


def test_one_of_many_builds_and_the_others_wait_for_it(tmp_path: Path) -> None:
    target, built, waited, started = tmp_path / "models" / "m", [], [], threading.Event()

    def build(part: Path) -> None:
        started.set()
        (part / "file").write_text("whole")
        built.append(part)
        for _ in range(1000):
            if len(waited) == 3:
                return
            time.sleep(0.005)

    def run() -> None:
        assert (cache.build_once(target, build, lambda: waited.append(1)) / "file").read_text() == "whole"

    first = threading.Thread(target=run)
    first.start()
    started.wait(5)
    rest = [threading.Thread(target=run) for _ in range(3)]
    for thread in rest:
        thread.start()
    for thread in (first, *rest):
        thread.join(10)
    assert len(built) == 1
    assert len(waited) == 3


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    target = tmp_path / "m"

    def fail(part: Path) -> None:
        (part / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.build_once(target, fail, lambda: None)
    assert [p.name for p in tmp_path.iterdir()] == [".m.lock"]
    cache.build_once(target, lambda part: (part / "file").write_text("x") and None, lambda: None)
    assert [p.name for p in target.iterdir()] == ["file"]


def test_what_a_killed_build_left_is_not_taken_over(tmp_path: Path) -> None:
    left = tmp_path / ".m.part"
    left.mkdir()
    (left / "half").write_text("half")
    cache.build_once(tmp_path / "m", lambda part: (part / "file").write_text("x") and None, lambda: None)
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["file"]
    assert not left.exists()
