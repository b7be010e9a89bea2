"""Read ignore files and judge one entry at a time, as Git does.

The rules are those of gitignore(5), matched on bytes as Git's wildmatch does: the last matching pattern of the
nearest folder decides, `!` takes an entry back, a trailing `/` means folders only, a slash elsewhere ties the
pattern to the folder of its file. Entries are judged top down, so nothing below an ignored folder comes back.
pathspec judges whole paths instead and loses folders under `*`, `!*/`, `!*.md`, hence this module.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

IGNORE_FILES = (".gitignore", ".comemignore")  # read in this order: the second has the last word
MAX_IGNORE_BYTES = 1 << 20

_POSIX_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"\x21-\x7e",
    b"lower": rb"a-z",
    b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    b"space": rb"\t-\r ",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Hold one pattern; `regex` matches the name alone (`on_name`) or the path below the ignore file's folder."""

    regex: re.Pattern[bytes]
    negated: bool
    folders_only: bool
    on_name: bool
    source: str  # path of the ignore file below the root, for messages


@dataclass(frozen=True, slots=True)
class FolderRules:
    """Hold the rules of one folder; `folder` is its path below the root, b"" or ending in a slash."""

    folder: bytes
    rules: tuple[Rule, ...]


def read_rules(root: Path, folder: str, names: set[str]) -> FolderRules | None:
    """Read the ignore files that `names`, the entries of `folder`, contain; None when there are none.

    Raises OSError for one that cannot be read, is no regular file or exceeds 1 MiB: its folder must then not be
    ingested, since the file may have kept private things out.
    """
    rules: list[Rule] = []
    for name in IGNORE_FILES:
        if name in names:
            rules += parse_rules(_read_small(root / folder / name), folder + name)
    return FolderRules(os.fsencode(folder), tuple(rules)) if rules else None


def parse_rules(data: bytes, source: str) -> list[Rule]:
    """Parse the content of an ignore file; lines that can match nothing are left out."""
    lines = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\n")
    return [rule for line in lines if (rule := _parse_line(line, source)) is not None]


def ignored_by(chain: tuple[FolderRules, ...], path: str, *, is_folder: bool) -> str | None:
    """Name the ignore file that drops `path` (below the root, no trailing slash); None when it stays.

    `chain` holds the rules of the folders above the entry, outermost first.
    """
    raw = os.fsencode(path)
    name = raw.rpartition(b"/")[2]
    for level in reversed(chain):
        below = raw[len(level.folder) :]
        for rule in reversed(level.rules):
            if (is_folder or not rule.folders_only) and rule.regex.fullmatch(name if rule.on_name else below):
                return None if rule.negated else rule.source
    return None


def _read_small(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path.name} is not a regular file")
    with open(fd, "rb") as file:
        data = file.read(MAX_IGNORE_BYTES + 1)
    if len(data) > MAX_IGNORE_BYTES:
        raise OSError(f"{path.name} is larger than {MAX_IGNORE_BYTES} bytes")
    return data


def _parse_line(line: bytes, source: str) -> Rule | None:
    if line.startswith(b"#"):
        return None
    glob = _strip_trailing_spaces(line)
    negated = glob.startswith(b"!")
    glob = glob.removeprefix(b"!")
    folders_only = glob.endswith(b"/")
    glob = glob.removesuffix(b"/")
    on_name = b"/" not in glob
    translated = _translate(glob.removeprefix(b"/"))
    if not translated:
        return None
    return Rule(re.compile(translated, re.DOTALL), negated, folders_only, on_name, source)


def _strip_trailing_spaces(line: bytes) -> bytes:
    """Drop spaces at the end, but keep one that a backslash escapes."""
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return kept + b" " if backslashes % 2 and len(kept) < len(line) else kept


def _translate(glob: bytes) -> bytes | None:
    """Translate a wildmatch pattern into a regular expression; None when it can match nothing."""
    parts: list[bytes] = []
    at = 0
    while at < len(glob):
        byte = glob[at : at + 1]
        if byte == b"*":
            part, at = _stars(glob, at)
        elif byte == b"?":
            part, at = b"[^/]", at + 1
        elif byte == b"[":
            bracket = _bracket(glob, at + 1)
            if bracket is None:
                return None
            part, at = bracket
        elif byte == b"\\":
            if at + 1 == len(glob):
                return None
            part, at = re.escape(glob[at + 1 : at + 2]), at + 2
        else:
            part, at = re.escape(byte), at + 1
        parts.append(part)
    return b"".join(parts)


def _stars(glob: bytes, at: int) -> tuple[bytes, int]:
    """Translate a run of stars; two or more that fill a whole path segment cross slashes."""
    end = at
    while glob[end : end + 1] == b"*":
        end += 1
    fills_segment = (at == 0 or glob[at - 1 : at] == b"/") and glob[end : end + 1] in (b"", b"/")
    if end - at == 1 or not fills_segment:
        return b"[^/]*", end
    return (b"(?:.*/)?", end + 1) if end < len(glob) else (b".*", end)


def _bracket(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Translate a bracket expression whose content starts at `at`; None when it is malformed."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    items: list[bytes] = []
    first = True
    while first or glob[at : at + 1] != b"]":
        first = False
        if glob[at : at + 2] == b"[:":
            end = glob.find(b":]", at)
            if end < 0 or glob[at + 2 : end] not in _POSIX_CLASSES:
                return None
            items.append(_POSIX_CLASSES[glob[at + 2 : end]])
            at = end + 2
            continue
        low, at = _bracket_byte(glob, at)
        high = low
        if glob[at : at + 1] == b"-" and glob[at + 1 : at + 2] not in (b"]", b""):
            high, at = _bracket_byte(glob, at + 1)
        if not low or not high:
            return None
        if low <= high:
            items.append(b"\\x%02x-\\x%02x" % (low[0], high[0]))
    members = b"".join(items)
    if negated:
        return b"[^/" + members + b"]", at + 1
    return (b"(?!/)[" + members + b"]" if members else b"(?!)"), at + 1


def _bracket_byte(glob: bytes, at: int) -> tuple[bytes, int]:
    """Read one byte of a bracket expression, past a backslash; b"" at the end of the pattern."""
    if glob[at : at + 1] == b"\\":
        at += 1
    return glob[at : at + 1], at + 1
