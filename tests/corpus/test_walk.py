from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from comem_cli.corpus.walk import Skip, SourceFile, walk
from comem_cli.errors import UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = Path(os.path.realpath(tmp_path)) / "root"
    folder.mkdir()
    return folder


def put(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def found(*paths: Path, honour_ignore: bool = True) -> list[str]:
    return [item.path for item in walk(paths, honour_ignore=honour_ignore) if isinstance(item, SourceFile)]


def skips(*paths: Path) -> dict[str, Skip]:
    return {item.path: item for item in walk(paths) if isinstance(item, Skip)}


def test_files_carry_root_path_size_and_time(root: Path) -> None:
    put(root, "a/b.md", text="hello")
    (item,) = walk([root])
    status = (root / "a/b.md").stat()
    assert item == SourceFile(root, "a/b.md", 5, status.st_mtime_ns)
    assert isinstance(item, SourceFile)
    assert item.absolute == root / "a/b.md"


def test_files_come_by_the_bytes_of_their_path(root: Path) -> None:
    paths = ["a/x", "a.txt", "a-b", "a/b/c", "B", "é", "ab", "a0/z"]
    put(root, *paths)
    assert found(root) == sorted(paths, key=os.fsencode)


def test_negation_and_nested_ignore_files(root: Path) -> None:
    put(root, "keep.log", "drop.log", "docs/in.log", "docs/out.txt", "docs/b.txt")
    (root / ".gitignore").write_text("*.log\n!keep.log\n")
    (root / "docs/.gitignore").write_text("!in.log\nout.txt\n")
    assert found(root) == ["docs/b.txt", "docs/in.log", "keep.log"]


def test_nothing_below_an_ignored_folder_comes_back(root: Path) -> None:
    put(root, "build/keep.md", "a.md")
    (root / ".gitignore").write_text("build/\n!build/keep.md\n")
    assert found(root) == ["a.md"]
    assert skips(root)["build/"] == Skip("build/", "ignored", "by .gitignore", False, root)


def test_folder_pattern_leaves_a_file_of_that_name(root: Path) -> None:
    put(root, "build", "x/build/a")
    (root / ".gitignore").write_text("build/\n")
    assert found(root) == ["build"]


def test_comemignore_has_the_last_word(root: Path) -> None:
    put(root, "a.md", "b.md")
    (root / ".gitignore").write_text("a.md\n")
    (root / ".comemignore").write_text("!a.md\nb.md\n")
    assert found(root) == ["a.md"]


def test_ignore_files_can_be_disregarded_but_built_in_rules_stay(root: Path) -> None:
    put(root, "a.md", "node_modules/p.js", ".git/config")
    (root / ".gitignore").write_text("*.md\n")
    assert found(root) == []
    assert found(root, honour_ignore=False) == ["a.md"]


@pytest.mark.parametrize("bad", ["unreadable", "link", "fifo", "folder", "huge"])
def test_folder_whose_ignore_file_cannot_be_trusted_is_left_out(
    root: Path, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a.md", "private/secret.md")
    ignore = root / "private/.gitignore"
    if bad == "link":
        ignore.symlink_to(root / "a.md")
    elif bad == "fifo":
        os.mkfifo(ignore)
    elif bad == "folder":
        ignore.mkdir()
    elif bad == "huge":
        ignore.write_bytes(b"#" * (1 << 20) + b"\n")
    else:
        ignore.write_text("secret.md")
        monkeypatch.setattr("comem_cli.corpus.ignore.os.open", refuse)
    assert found(root) == ["a.md"]
    skip = skips(root)["private/"]
    assert (skip.reason, skip.failed) == ("unreadable", True)


def refuse(path: object, *_: object, **__: object) -> int:
    raise PermissionError(13, "Permission denied", str(path))


def test_version_control_caches_environments_and_stores_are_left_out(root: Path) -> None:
    put(root, "a.md", ".git/x", ".hg/x", ".svn/x", "__pycache__/x", "node_modules/x", "sub/.git")
    put(root, "env/pyvenv.cfg", "env/lib/x", "st/catalog.sqlite", "st/residuals/c", "half/catalog.sqlite")
    assert found(root) == ["a.md", "half/catalog.sqlite"]
    assert {path: skip.reason for path, skip in skips(root).items()} == {
        ".git/": "vcs",
        ".hg/": "vcs",
        ".svn/": "vcs",
        "sub/.git": "vcs",
        "__pycache__/": "cache",
        "node_modules/": "cache",
        "env/": "virtualenv",
        "st/": "store",
    }


def test_a_store_is_refused_as_a_root(root: Path) -> None:
    put(root, "catalog.sqlite", "residuals/c")
    with pytest.raises(UsageError, match="comem store"):
        walk([root])


def test_symlinks_are_never_followed_below_a_root(root: Path) -> None:
    put(root, "a.md", "sub/b.md")
    put(root.parent, "outside/secret.md")
    (root / "in").symlink_to("a.md")
    (root / "in_folder").symlink_to("sub")
    (root / "out").symlink_to(root.parent / "outside/secret.md")
    (root / "out_folder").symlink_to("../outside")
    (root / "sub/up").symlink_to("..")
    (root / "self").symlink_to("self")
    (root / "gone").symlink_to("nowhere")
    assert found(root) == ["a.md", "sub/b.md"]
    reasons = {path: (skip.reason, skip.failed) for path, skip in skips(root).items()}
    assert reasons == {
        "in": ("symlink", False),
        "in_folder": ("symlink", False),
        "sub/up": ("symlink", False),
        "out": ("symlink-escape", False),
        "out_folder": ("symlink-escape", False),
        "self": ("symlink-broken", False),
        "gone": ("symlink-broken", False),
    }


def test_a_sibling_whose_name_starts_like_the_root_is_outside(root: Path) -> None:
    put(root.parent, "root-private/x")
    (root / "link").symlink_to("../root-private/x")
    assert skips(root)["link"].reason == "symlink-escape"


def test_a_root_reached_through_a_symlink_is_resolved(root: Path) -> None:
    put(root, "a.md")
    link = root.parent / "link"
    link.symlink_to(root)
    (item,) = walk([link])
    assert item.root == root
    assert found(link, root) == ["a.md"]


def test_special_files_are_skipped_without_opening(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "fifo")
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert {path: skip.reason for path, skip in skips(root).items()} == {
            "fifo": "special-file",
            "socket": "special-file",
        }
    (item,) = walk([root / "fifo"])
    assert isinstance(item, Skip)
    assert item.failed
    (item,) = walk([Path("/dev/null")])
    assert isinstance(item, Skip)
    assert item.reason == "special-file"


def test_unreadable_folder_is_named_and_the_rest_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "a.md", "closed/b.md", "z.md")
    real = os.scandir

    def scandir(path: Path) -> object:
        return refuse(path) if path.name == "closed" else real(path)

    monkeypatch.setattr("comem_cli.corpus.walk.os.scandir", scandir)
    items = list(walk([root]))
    assert [item.path for item in items] == ["a.md", "closed/", "z.md"]
    assert items[1] == Skip("closed/", "unreadable", "permission denied", True, root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_folder_without_permissions_is_named(root: Path) -> None:
    put(root, "closed/b.md")
    (root / "closed").chmod(0)
    try:
        assert skips(root)["closed/"].reason == "unreadable"
    finally:
        (root / "closed").chmod(0o700)


def test_root_that_vanishes_is_reported(root: Path) -> None:
    items = walk([root])
    root.rmdir()
    (skip,) = items
    assert isinstance(skip, Skip)
    assert (skip.path, skip.reason, skip.failed) == ("./", "vanished", True)


@pytest.mark.parametrize("name", ["no", "a.md/below", "loop"])
def test_path_that_is_not_there_is_a_usage_error_at_once(root: Path, name: str) -> None:
    put(root, "a.md")
    (root / "loop").symlink_to("loop")
    with pytest.raises(UsageError) as caught:
        walk([root, root / name])
    assert caught.value.exit_code == 2
    assert caught.value.hint.startswith("check it: ls")


def test_a_named_file_is_never_filtered(root: Path) -> None:
    put(root, "drop.log", "node_modules/p.js")
    (root / ".gitignore").write_text("*.log\n")
    assert next(iter(walk([root / "drop.log"]))).root == root
    assert found(root / "drop.log", root / "node_modules/p.js") == ["drop.log", "p.js"]
    assert found(root, root / "drop.log") == ["drop.log"]


def test_each_file_is_given_once_whatever_the_order_of_arguments(root: Path) -> None:
    put(root, "a.md", "sub/b.md", "sub/deep/c.md")
    arguments = [root / "sub/b.md", root / "sub", root, root / "sub/../sub", root / "a.md"]
    forward, backward = list(walk(arguments)), list(walk(arguments[::-1]))
    assert forward == backward
    assert [item.path for item in forward] == ["a.md", "sub/b.md", "sub/deep/c.md"]


def test_a_named_folder_is_walked_even_where_an_outer_root_ignores_it(root: Path) -> None:
    put(root, "build/docs/a.md", "b.md")
    (root / ".gitignore").write_text("build\n")
    assert found(root, root / "build/docs") == ["b.md", "a.md"]


def test_odd_names_come_through_byte_for_byte(root: Path) -> None:
    names = [b"new\nline.md", b"\x1b[31mred.md", b"bad\xff\xfe.md", b" lead", b"-x", "日本.md".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(b"x")
    assert [os.fsencode(path) for path in found(root)] == sorted(names)


def test_deep_trees_do_not_exhaust_the_stack(root: Path) -> None:
    depth = 1_200
    at = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("leaf.md", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    try:
        assert found(root) == ["d/" * depth + "leaf.md"]
    finally:  # pytest removes old folders with a recursive function
        subprocess.run(["rm", "-r", root / "d"], check=True)
