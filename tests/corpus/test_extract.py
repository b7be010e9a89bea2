from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from comem_cli.corpus import extract as extract_module
from comem_cli.corpus.extract import Extracted, extract
from comem_cli.corpus.walk import Skip, SourceFile

FRENCH = "Le château de la forêt était fermé depuis l'été, à cause d'une tempête. Où sont passés les élèves ?\n"
RUSSIAN = "Обсерватория открыта для посетителей по вторникам и четвергам. Звоните дежурному астроному заранее.\n"
JAPANESE = "天文台は火曜日と木曜日に開いています。訪問の前に当直の天文学者に電話してください。カタカナもあります。\n"
CHINESE = "天文台星期二和星期四对外开放。参观之前请先打电话给值班的天文学家,了解当天的天气情况。\n"


def source(path: Path) -> SourceFile:
    return SourceFile(path.parent, path.name, 0, 0)


def extract_bytes(folder: Path, raw: bytes, name: str = "a.txt") -> Extracted | Skip:
    (folder / name).write_bytes(raw)
    return extract(source(folder / name))


def text_of(folder: Path, raw: bytes, name: str = "a.txt") -> Extracted:
    result = extract_bytes(folder, raw, name)
    assert isinstance(result, Extracted), result
    return result


def skip_of(folder: Path, raw: bytes, name: str = "a.txt") -> tuple[str, bool]:
    result = extract_bytes(folder, raw, name)
    assert isinstance(result, Skip), result
    return result.reason, result.failed


def assert_offsets_exact(result: Extracted, raw: bytes) -> None:
    """Every character alone is found at its bytes in the file."""
    offsets = result.byte_offsets(range(len(result.text) + 1))
    assert offsets[-1] == len(raw)
    for at, character in enumerate(result.text):
        assert raw[offsets[at] : offsets[at + 1]].decode(result.encoding) == character


def test_what_was_read_is_recorded(tmp_path: Path) -> None:
    raw = "héllo\n".encode()
    result = text_of(tmp_path, raw)
    status = (tmp_path / "a.txt").stat()
    assert result == Extracted(
        "héllo\n", "utf-8", "text", hashlib.sha256(raw).hexdigest(), len(raw), status.st_mtime_ns, 0
    )


@pytest.mark.parametrize(
    ("text", "written", "encoding"),
    [
        (FRENCH, "utf-8", "utf-8"),
        (FRENCH * 3, "latin-1", "cp1252"),
        (RUSSIAN * 3, "cp1251", "cp1251"),
        (RUSSIAN * 3, "koi8-r", "koi8_r"),
        (JAPANESE * 3, "shift_jis", "cp932"),
        (JAPANESE * 3, "euc_jp", "euc_jp"),
        (CHINESE * 3, "gb18030", "gb18030"),
        ("naïve café, déjà vu — non\n", "cp1252", "cp1252"),
        ("The temperature is 20 °C\n", "cp1252", "cp1252"),
    ],
)
def test_text_and_byte_positions_survive_encodings(tmp_path: Path, text: str, written: str, encoding: str) -> None:
    raw = text.encode(written)
    result = text_of(tmp_path, raw)
    assert (result.text, result.encoding, result.kind) == (text, encoding, "text")
    assert_offsets_exact(result, raw)


@pytest.mark.parametrize(
    ("written", "encoding", "mark"),
    [
        ("utf-8-sig", "utf-8", 3),
        ("utf-16", "utf-16-le", 2),
        ("utf-16-be", "utf-16-be", 2),
        ("utf-32", "utf-32-le", 4),
    ],
)
def test_byte_order_marks_leave_the_text_and_count_in_positions(
    tmp_path: Path, written: str, encoding: str, mark: int
) -> None:
    text = "naïve 天 😀\r\nend"
    raw = (("\ufeff" if written == "utf-16-be" else "") + text).encode(written)
    result = text_of(tmp_path, raw)
    assert (result.text, result.encoding, result.bom) == (text, encoding, mark)
    assert result.byte_offsets([0]) == [mark]
    assert_offsets_exact(result, raw)


@pytest.mark.parametrize("line", [FRENCH, "Il était une fois, à la forêt, un château "])
def test_first_odd_byte_far_into_a_large_file_is_still_judged(tmp_path: Path, line: str) -> None:
    text = "plain ascii words, nothing else here\n" * 40_000 + line * 200
    result = text_of(tmp_path, text.encode("latin-1"))
    assert result.text == text


def test_long_text_without_line_ends_in_a_multibyte_encoding(tmp_path: Path) -> None:
    for pad in ("", "x"):
        text = pad + JAPANESE.rstrip("\n") * 2_000
        assert text_of(tmp_path, text.encode("shift_jis")).text == text


def test_lines_end_after_lf_crlf_or_a_lone_cr_and_nowhere_else(tmp_path: Path) -> None:
    text = "one\ntwo\r\nthree\rfour\x0bfour\u2028four\n\r\nsix\r"
    result = text_of(tmp_path, text.encode())
    assert result.text == text
    expected, line = [], 1
    for at, character in enumerate(text):
        expected.append(line)
        line += character == "\n" or (character == "\r" and text[at + 1 : at + 2] != "\n")
    assert result.line_numbers(range(len(text))) == expected
    assert result.line_numbers([0, 5, len(text) - 1]) == [1, 2, 6]


def test_html_is_reduced_to_its_text_and_positions_are_those_of_the_text(tmp_path: Path) -> None:
    page = (
        f"<html><head><meta charset=windows-1251></head><body><script>x</script><p>{RUSSIAN}</p><p>b</p></body></html>"
    )
    result = text_of(tmp_path, page.encode("cp1251"), "page")
    assert result.text == RUSSIAN + "b\n"
    assert (result.kind, result.encoding) == ("html", "cp1251")
    assert result.byte_offsets([len(result.text)]) == [len(result.text.encode())]


@pytest.mark.parametrize("raw", [b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\xff\xfe", "\u3000\n".encode()])
def test_files_without_text_are_empty(tmp_path: Path, raw: bytes) -> None:
    assert skip_of(tmp_path, raw) == ("empty", False)


def test_page_without_text_is_empty(tmp_path: Path) -> None:
    assert skip_of(tmp_path, b"<html><script>1</script></html>", "a.html") == ("empty", False)


@pytest.mark.parametrize(
    "raw",
    [
        b"text with a \0 in it",
        "utf-16 without a mark".encode("utf-16-le"),
        b"%PDF-1.7\nno NUL here",
        b"PK\x03\x04abc",
        bytes(range(1, 256)) * 4,
        b"\xff\xfe\x00\xd8\x00",
    ],
)
def test_binary_files_are_skipped_quietly(tmp_path: Path, raw: bytes) -> None:
    assert skip_of(tmp_path, raw) == ("binary", False)


def test_damaged_utf8_is_reported_instead_of_guessed(tmp_path: Path) -> None:
    raw = (RUSSIAN * 4).encode()
    damaged = raw[:101] + b"\xff" + raw[101:]
    assert skip_of(tmp_path, damaged) == ("undecodable", True)
    assert skip_of(tmp_path, raw[:-3]) == ("undecodable", True)


def test_page_that_would_stall_the_parser_is_reported(tmp_path: Path) -> None:
    assert skip_of(tmp_path, b"<div>" * 100_000 + b"x", "a.html") == ("too-nested", True)


def test_size_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert isinstance(extract(source(tmp_path / "a"), max_bytes=100), Extracted)
    result = extract(source(tmp_path / "a"), max_bytes=99)
    assert isinstance(result, Skip)
    assert (result.reason, result.failed) == ("too-large", True)


def test_twenty_megabytes_on_one_line_take_bounded_time(tmp_path: Path) -> None:
    for raw in [b"word " * (4 << 20), b"a" * (20 << 20), "é".encode("latin-1") * (20 << 20)]:
        (tmp_path / "a").write_bytes(raw)
        start = time.process_time()
        result = extract(source(tmp_path / "a"))
        assert isinstance(result, Extracted)
        assert result.line_numbers([0, len(result.text) - 1]) == [1, 1]
        assert result.byte_offsets([len(result.text)]) == [len(raw)]
        assert time.process_time() - start < 4


def test_vanished_file(tmp_path: Path) -> None:
    result = extract(source(tmp_path / "gone"))
    assert result == Skip("gone", "vanished", "no such file or directory", True, tmp_path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")

    def refuse(root: Path, path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(extract_module, "_open_beneath", refuse)
    assert extract(source(tmp_path / "a")) == Skip("a", "unreadable", "permission denied", True, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "a").chmod(0)
    result = extract(source(tmp_path / "a"))
    assert isinstance(result, Skip)
    assert result.reason == "unreadable"


@pytest.mark.parametrize(("changes", "reason"), [(1, None), (2, "changed-while-read")])
def test_file_that_changes_while_read_is_read_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int, reason: str | None
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    calls = 0
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        nonlocal calls
        status = real(fd)
        calls += 1
        if calls % 2 and calls < 2 * changes:  # after the first look of an attempt
            path.write_text("new text " * calls)
        return status

    monkeypatch.setattr(extract_module.os, "fstat", fstat)
    result = extract(source(path))
    if reason:
        assert isinstance(result, Skip)
        assert (result.reason, result.failed) == (reason, True)
    else:
        assert isinstance(result, Extracted)
        assert result.text == "new text "


def test_fifo_that_took_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    result = extract(source(tmp_path / "a"))
    assert isinstance(result, Skip)
    assert result.reason == "special-file"


def test_device_and_folder_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for path in [Path("/dev/zero"), tmp_path / "d"]:
        result = extract(source(path))
        assert isinstance(result, Skip)
        assert result.reason == "special-file"
    assert len(os.listdir("/proc/self/fd")) == before


def test_symlink_that_took_the_place_of_a_file_or_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a.md").write_text("secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.md").symlink_to("../outside/a.md")
    (root / "sub/deep").symlink_to("../../outside")
    for path in ["a.md", "sub/deep/a.md"]:
        result = extract(SourceFile(root, path, 0, 0))
        assert isinstance(result, Skip)
        assert result.failed


def test_odd_names_are_opened(tmp_path: Path) -> None:
    for name in [b"new\nline", b"\x1b[31m", b"bad\xff"]:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(b"x")
        assert isinstance(extract(SourceFile(tmp_path, os.fsdecode(name), 0, 0)), Extracted)
