"""Turn the bytes of a file into text, and characters back into byte positions of that file.

Order: byte-order mark, then binary detection, then strict UTF-8, then charset-normalizer on a bounded sample.
Only stateless encodings that encode the text back into as many bytes are accepted, so that byte spans are exact.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

SAMPLE_BYTES = 32 << 10
_BOMS = (  # UTF-32 first: its little-endian mark starts with that of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SIGNATURES = (
    (b"%PDF-", "PDF"),
    (b"\x89PNG", "PNG image"),
    (b"GIF87a", "GIF image"),
    (b"GIF89a", "GIF image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"PK\x03\x04", "ZIP archive or office document"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x7fELF", "program"),
)
# No NUL among them: NUL alone decides. Tab, line and page breaks, backspace and escape occur in real text.
_CONTROL_BYTES = bytes(set(range(1, 32)) - set(b"\b\t\n\v\f\r\x1b"))
_MAX_CONTROL_SHARE = 0.05
# Encodings in actual use, in order of preference when charset-normalizer cannot tell them apart.
_LEGACY = (
    *("cp1252", "cp1251", "koi8_r", "euc_jp", "cp932", "gb18030", "cp949", "big5"),
    *("cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874", "cp866", "mac_roman", "latin_1"),
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Hold text, the codec that it came from and the bytes of the mark before it."""

    text: str
    encoding: str
    bom: int


@dataclass(frozen=True, slots=True)
class NotText:
    """Say why bytes are not taken as text: `binary` is no text at all, `undecodable` looked like text."""

    reason: str
    detail: str


def decode(raw: bytes) -> Decoded | NotText:
    """Decode a file; UTF-8 with a few bad bytes is undecodable, since guessing would garble all of it."""
    marked = _decode_marked(raw)
    if marked:
        return marked
    kind = _binary_kind(raw)
    if kind:
        return NotText("binary", kind)
    try:
        return Decoded(raw.decode("utf-8"), "utf-8", 0)
    except UnicodeDecodeError as error:
        first_bad = error.start
    if _is_damaged_utf8(raw):
        return NotText("undecodable", f"damaged UTF-8 at byte {first_bad}")
    for encoding in _guess(raw):
        try:
            text = raw.decode(encoding)
            if len(text.encode(encoding)) == len(raw):
                return Decoded(text, encoding, 0)
        except UnicodeError:
            continue
    return NotText("undecodable", f"no known encoding fits; the first byte that is not UTF-8 is {first_bad}")


def byte_offsets(text: str, encoding: str, bom: int, positions: list[int]) -> list[int]:
    """Map ascending character positions of `text` to byte positions of the file that it was decoded from."""
    offsets = []
    offset, previous = bom, 0
    for position in positions:
        offset += len(text[previous:position].encode(encoding))
        previous = position
        offsets.append(offset)
    return offsets


def _decode_marked(raw: bytes) -> Decoded | None:
    for mark, encoding in _BOMS:
        if raw.startswith(mark):
            try:
                return Decoded(raw[len(mark) :].decode(encoding), encoding, len(mark))
            except UnicodeDecodeError:
                continue
    return None


def _binary_kind(raw: bytes) -> str | None:
    for signature, kind in _SIGNATURES:
        if raw.startswith(signature):
            return kind
    if b"\0" in raw:
        return "NUL bytes"
    head = raw[:SAMPLE_BYTES]
    control = len(head) - len(head.translate(None, _CONTROL_BYTES))
    return "control bytes" if control > _MAX_CONTROL_SHARE * len(head) else None


def _is_damaged_utf8(raw: bytes) -> bool:
    """Tell UTF-8 with a few bad bytes from another encoding, in which nearly every high byte is bad UTF-8."""
    kept = raw.decode("utf-8", "ignore")
    sequences = len(kept) - len(kept.encode("ascii", "ignore"))
    bad = raw.decode("utf-8", "replace").count("\ufffd") - kept.count("\ufffd")
    return sequences > 9 * bad


def _guess(raw: bytes) -> Iterator[str]:
    """Yield likely encodings, best first, judged on a bounded sample around the first byte that is not ASCII."""
    from charset_normalizer import from_bytes

    for sample in _samples(raw):
        matches = list(from_bytes(sample, cp_isolation=list(_LEGACY)))
        if matches:
            best = min((match.chaos, -match.coherence) for match in matches)
            tied = [match for match in matches if (match.chaos, -match.coherence) == best]
            # Encodings that give the same text are folded into one match; unfold them before ranking.
            names = {name for match in tied for name in match.could_be_from_charset}
            yield from sorted(names & set(_LEGACY), key=_LEGACY.index)
            yield from (match.encoding for match in matches if match not in tied)
            return


def _samples(raw: bytes) -> Iterator[bytes]:
    """Cut samples on line ends; without one, try four ends, since the cut may fall inside a character."""
    high = re.search(rb"[\x80-\xff]", raw)
    if len(raw) <= SAMPLE_BYTES or high is None:
        yield raw[:SAMPLE_BYTES]
        return
    # All before it is ASCII, so this start is no character's middle.
    start = raw.rfind(b"\n", max(0, high.start() - SAMPLE_BYTES // 8), high.start()) + 1 or high.start()
    window = raw[start : start + SAMPLE_BYTES]
    # A page may name its encoding near its top, far from there.
    head = raw[: min(start, 1024)] if re.search(rb"charset|encoding", raw[:1024], re.IGNORECASE) else b""
    line_end = window.rfind(b"\n") + 1
    for end in [line_end] if line_end else range(len(window), len(window) - 4, -1):
        yield head + window[:end]
