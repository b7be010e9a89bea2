from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comem_cli.corpus.ignore import FolderRules, ignored_by, parse_rules
from comem_cli.corpus.walk import SourceFile, walk

NAMES = ["a", "b.md", "foo", "foo.txt", "x y"]
FOLDERS = ["", "a/", "sub/", "sub/foo/", "sub/deep/a/"]


def is_ignored(patterns: str, path: str, *, is_folder: bool = False) -> bool:
    chain = (FolderRules(b"", tuple(parse_rules(patterns.encode(), ".gitignore"))),)
    return ignored_by(chain, path, is_folder=is_folder) is not None


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.log", "a/b.log", "a/b.logs"),
        ("/top", "top", "a/top"),
        ("a/b", "a/b", "x/a/b"),
        ("**/b", "x/y/b", "x/bb"),
        ("a/**/b", "a/b", "b"),
        ("a/**", "a/x/y", "a"),
        ("a?c", "abc", "a/c"),
        ("[a-c]x", "bx", "dx"),
        ("[!a-c]x", "dx", "bx"),
        ("[]-]x", "]x", "ax"),
        ("[[:digit:]_]x", "7x", "ax"),
        (r"\#x", "#x", "x"),
        (r"\!x", "!x", "x"),
        (r"x\ ", "x ", "x"),
        ("x  ", "x", "x  "),
        ("a**b", "axxb", "a/b"),
        ("caf\u00e9*", "caf\u00e9s", "cafes"),
    ],
)
def test_pattern_matches_one_path_and_not_the_other(pattern: str, matching: str, other: str) -> None:
    assert is_ignored(pattern, matching)
    assert not is_ignored(pattern, other)


@pytest.mark.parametrize("line", ["", "# a comment", "!", "/", "[a", "x\\", "[[:nope:]]", "   "])
def test_lines_that_can_match_nothing_do_no_harm(line: str) -> None:
    for path in ["x", "a", "[a", "x\\", "# a comment", "!"]:
        assert not is_ignored(line, path)


def test_trailing_slash_means_folders_only() -> None:
    assert is_ignored("build/", "a/build", is_folder=True)
    assert not is_ignored("build/", "a/build", is_folder=False)


def test_last_matching_pattern_decides() -> None:
    assert not is_ignored("*.md\n!keep.md", "keep.md")
    assert is_ignored("*.md\n!keep.md\nkeep.*", "keep.md")


def test_byte_order_mark_and_windows_line_ends_are_no_part_of_patterns() -> None:
    assert is_ignored("\ufeffx\r\ny\r\n", "x")
    assert is_ignored("\ufeffx\r\ny\r\n", "y")


pattern_text = st.lists(
    st.sampled_from(
        ["a", "b", "foo", "sub", "deep", "*", "**", "?", "/", "/", ".md", ".txt", "[a-f]", "\\f", " ", "!"]
    ),
    min_size=1,
    max_size=5,
).map("".join)
ignore_text = st.lists(
    st.one_of(pattern_text, pattern_text.map("!".__add__), pattern_text.map(lambda text: text + "/")), max_size=5
).map("\n".join)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git as the reference")
@settings(max_examples=120, deadline=None)
@given(top=ignore_text, sub=ignore_text)
@example(top="*\n!*/\n!*.md", sub="")
@example(top="foo/\n!foo/a", sub="")
@example(top="sub/**\n!sub/foo/", sub="")
@example(top="/*\n!/sub\n", sub="foo\n!foo/")
@example(top="**/a\n!sub/**/a", sub="!a")
def test_walk_finds_exactly_the_files_that_git_does(top: str, sub: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(os.path.realpath(name))
        for folder in FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for folder in FOLDERS:
            for file in NAMES:
                if not (root / folder / file).exists():
                    (root / folder / file).write_text("x")
        (root / ".gitignore").write_text(top)
        (root / "sub" / ".gitignore").write_text(sub)
        environment = {"PATH": os.environ["PATH"], "HOME": name, "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", "init", "-q", "."], cwd=root, env=environment, check=True)
        listing = subprocess.run(
            ["git", "ls-files", "--others", "--exclude-standard", "-z"],
            cwd=root,
            env=environment,
            check=True,
            capture_output=True,
        ).stdout
        expected = {os.fsdecode(path) for path in listing.split(b"\0") if path}
        found = {item.path for item in walk([root]) if isinstance(item, SourceFile)}
        assert found == {path for path in expected if not path.endswith(".gitignore")}
