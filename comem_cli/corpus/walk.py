"""Find the source files under the paths that a user names, in a fixed order and never outside them.

A folder is a root and everything below it is filtered; a file has its parent folder as root and is never
filtered. Roots are resolved first, so a path may reach its root through symlinks; below a root no symlink is
followed: one that points inside is skipped (its target is found under its own name), and so is any other.
Ignore files count from the root downwards (those above it do not). Outer roots are walked before the roots and
files inside them and each file is given once, so the order of the arguments changes nothing; within a root,
files come by the bytes of their path.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from comem_cli.corpus.ignore import IGNORE_FILES, FolderRules, ignored_by, read_rules
from comem_cli.errors import UsageError

VCS_NAMES = frozenset({".git", ".hg", ".svn"})  # .git is a file in worktrees and submodules
STORE_NAMES = frozenset({"catalog.sqlite", "residuals"})  # a folder with both is a comem store
CACHE_FOLDERS = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Name a file to read: `path` is POSIX, below `root`, undecodable bytes as surrogate escapes; size in bytes."""

    root: Path
    path: str
    size: int
    mtime_ns: int

    @property
    def absolute(self) -> Path:
        """Return the absolute path."""
        return self.root / self.path


@dataclass(frozen=True, slots=True)
class Skip:
    """Say why something under a root is not ingested.

    path: as in SourceFile; a folder's ends in a slash, the root itself is "./". What lies below a failed folder
        is unknown, not gone.
    reason: a stable code. From walk: ignored, ignore-file, vcs, cache, virtualenv, store, symlink,
        symlink-escape, symlink-broken, special-file, unreadable, vanished.
    failed: True when the user would want the content and did not get it (exit code 3).
    """

    path: str
    reason: str
    detail: str
    failed: bool
    root: Path


@dataclass(frozen=True, slots=True)
class _Folder:
    path: str  # "" for the root, else ends in a slash
    chain: tuple[FolderRules, ...]


def walk(paths: Sequence[Path], *, honour_ignore: bool = True) -> Iterator[SourceFile | Skip]:
    """List the files under `paths`, and what is left out with the reason.

    honour_ignore: apply .gitignore and .comemignore; version control, caches, virtual environments and comem
        stores are left out either way.

    Raises UsageError at the call, before anything is listed, for a path that does not exist or is a store.
    """
    for path in paths:
        _require_exists(path)
    roots = sorted({Path(os.path.realpath(path)) for path in paths}, key=os.fsencode)
    folders = [root for root in roots if root.is_dir()]
    files = [root for root in roots if not root.is_dir()]
    for folder in folders:
        if all(os.path.lexists(folder / name) for name in STORE_NAMES):
            raise UsageError(f"{folder} is a comem store, not a source", "name the folder that holds the documents")
    return _walk_roots(folders, files, honour_ignore)


def _require_exists(path: Path) -> None:
    try:
        os.stat(path)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UsageError(f"cannot read {path}: {reason}", f"check it: ls -ld {shlex.quote(str(path))}") from error


def _walk_roots(folders: list[Path], files: list[Path], honour_ignore: bool) -> Iterator[SourceFile | Skip]:
    several = len(folders) + len(files) > 1
    seen: set[tuple[type, Path]] = set()  # stays empty for a single root, so memory does not grow with it
    for folder in folders:
        for item in _walk_folder(folder, honour_ignore):
            key = (type(item), item.root / item.path)
            if several and key in seen:
                continue
            if several:
                seen.add(key)
            yield item
    for file in files:
        if (SourceFile, file) not in seen:
            yield _explicit(file)


def _explicit(file: Path) -> SourceFile | Skip:
    try:
        return _file_item(file.parent, file.name, os.lstat(file), explicit=True)
    except OSError as error:
        return _os_skip(file.parent, file.name, error)


def _walk_folder(root: Path, honour_ignore: bool) -> Iterator[SourceFile | Skip]:
    pending: list[_Folder | SourceFile | Skip] = [_Folder("", ())]
    while pending:
        item = pending.pop()
        if isinstance(item, _Folder):
            # A folder's path ends in a slash, so this order is that of the whole paths' bytes.
            children = _children(root, item, honour_ignore)
            pending += sorted(children, key=lambda child: os.fsencode(child.path), reverse=True)
        else:
            yield item


def _children(root: Path, folder: _Folder, honour_ignore: bool) -> list[_Folder | SourceFile | Skip]:
    try:
        with os.scandir(root / folder.path) as listing:
            entries = list(listing)
        names = {entry.name for entry in entries}
        built_in = _built_in(names) if folder.path else None
        if built_in:
            return [Skip(folder.path, *built_in, failed=False, root=root)]
        rules = read_rules(root, folder.path, names) if honour_ignore else None
    except OSError as error:
        return [_os_skip(root, folder.path or "./", error)]
    chain = (*folder.chain, rules) if rules else folder.chain
    return [_child(root, folder.path + entry.name, entry, chain) for entry in entries]


def _child(
    root: Path, path: str, entry: os.DirEntry[str], chain: tuple[FolderRules, ...]
) -> _Folder | SourceFile | Skip:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return _os_skip(root, path, error)
    is_folder = stat.S_ISDIR(status.st_mode)
    shown = path + "/" if is_folder else path
    if entry.name in VCS_NAMES:
        return Skip(shown, "vcs", "version control data", False, root)
    if is_folder and entry.name in CACHE_FOLDERS:
        return Skip(shown, "cache", "generated files", False, root)
    source = ignored_by(chain, path, is_folder=is_folder)
    if source is not None:
        return Skip(shown, "ignored", f"by {source}", False, root)
    if stat.S_ISLNK(status.st_mode):
        return _symlink_skip(root, path)
    if is_folder:
        return _Folder(shown, chain)
    if entry.name in IGNORE_FILES:
        return Skip(path, "ignore-file", "says what to leave out", False, root)
    return _file_item(root, path, status, explicit=False)


def _file_item(root: Path, path: str, status: os.stat_result, *, explicit: bool) -> SourceFile | Skip:
    if stat.S_ISREG(status.st_mode):
        return SourceFile(root, path, status.st_size, status.st_mtime_ns)
    return Skip(path, "special-file", "a FIFO, socket or device", explicit, root)


def _built_in(names: set[str]) -> tuple[str, str] | None:
    if names >= STORE_NAMES:
        return "store", "a comem store"
    if "pyvenv.cfg" in names:
        return "virtualenv", "a Python virtual environment"
    return None


def _symlink_skip(root: Path, path: str) -> Skip:
    full = root / path
    if not os.path.exists(full):
        return Skip(path, "symlink-broken", "points at nothing or at itself", False, root)
    if Path(os.path.realpath(full)).is_relative_to(root):
        return Skip(path, "symlink", "its target counts under its own name", False, root)
    return Skip(path, "symlink-escape", "points outside the root", False, root)


def _os_skip(root: Path, path: str, error: OSError) -> Skip:
    reason = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return Skip(path, reason, (error.strerror or str(error)).lower(), True, root)
