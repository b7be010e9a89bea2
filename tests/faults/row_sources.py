"""Row 15: sources that are hostile, broken, or change while they are read."""

from __future__ import annotations

import os
import random
import resource
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from comem_cli.store.reader import StoreReader
from tests.faults import sources
from tests.faults.case import Outcome, Prepared, Row, must, numbered
from tests.faults.command import command

MOST_MIB = 200  # that an ingest may take over what the process held before
UNDECODABLE = b"harbour master " * 40 + b"\xff\xfe\x80 " + "berth \u00e9 ".encode() * 40
GOOD = {"good.txt": sources.text("good", 30), "z.txt": sources.text("z", 30)}


@dataclass(frozen=True)
class Trap:
    """What is put among good sources: the exit code, and a reason that must be named, if it is."""

    plant: Callable[[Path], object]
    code: int
    said: str = ""
    during: Callable[[Path], object] | None = None  # done once a file is about to be read


def _write(name: str | bytes, raw: bytes) -> Callable[[Path], object]:
    def plant(docs: Path) -> None:
        with open(os.path.join(os.fsencode(docs), os.fsencode(name)), "wb") as file:
            file.write(raw)

    return plant


def _huge(docs: Path) -> None:
    with (docs / "huge.txt").open("wb") as file:
        for _ in range(64):
            file.write(b"a" * 2**20)
        file.truncate(10**9)


def _bomb(docs: Path) -> None:
    with zipfile.ZipFile(docs / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(50 * 2**20))


def _loop(docs: Path) -> None:
    (docs / "a").symlink_to(docs / "b")
    (docs / "b").symlink_to(docs / "a")
    (docs / "self").symlink_to(docs)


def _escape(docs: Path) -> None:
    secret = docs.parent / "secret.txt"
    secret.write_text("never to be read " * 20)
    (docs / "link.txt").symlink_to(secret)


def _closed(docs: Path) -> None:
    (docs / "closed.txt").write_text("closed " * 9)
    (docs / "closed.txt").chmod(0)


def _vanish(docs: Path) -> None:
    (docs / "passing.txt").unlink(missing_ok=True)


def _change(docs: Path) -> None:
    with (docs / "passing.txt").open("a") as file:
        file.write("more berths\n" * 50)


TRAPS = {
    "unreadable": Trap(_closed, 3, "closed.txt"),
    "vanishes": Trap(_write("passing.txt", b"harbour " * 40), 3, "passing.txt", _vanish),
    "changes": Trap(_write("passing.txt", b"harbour " * 40), 0, "", _change),
    "link-loop": Trap(_loop, 0),
    "link-escape": Trap(_escape, 0),
    "fifo": Trap(lambda docs: os.mkfifo(docs / "pipe.txt"), 0),
    "device": Trap(lambda docs: os.mknod(docs / "null.txt", 0o020666, os.makedev(1, 3)), 0),
    "empty": Trap(_write("empty.txt", b""), 0),
    "one-line-of-1-GB": Trap(_huge, 3, "huge.txt"),
    "nuls": Trap(_write("nuls.txt", b"text\0" * 400), 0),
    "bad-utf-8": Trap(_write("bad.txt", UNDECODABLE), 3, "bad.txt"),
    "newline-in-name": Trap(_write("new\nline.txt", b"harbour " * 40), 0),
    "ansi-in-name": Trap(_write("\x1b[2J\x1b]0;x\x07bad.txt", UNDECODABLE), 3),
    "no-utf-8-in-name": Trap(_write(b"n\xff\xfe.txt", b"harbour " * 40), 0),
    "corrupt-pdf": Trap(_write("paper.pdf", b"%PDF-1.7\n" + random.Random(0).randbytes(9000)), 0),
    "zip-bomb": Trap(_bomb, 0),
}  # fmt: skip


def _cases(prepared: Prepared) -> list[str]:
    return [*TRAPS, *numbered("fuzzed", 1000 if prepared.full else 12)]


def _fuzzed(rng: random.Random) -> Trap:
    """Make a file of random parts: text, random bytes, half characters, escapes, blanks."""
    parts = [
        lambda: sources.text(rng.random(), rng.randrange(1, 60)).encode(),
        lambda: rng.randbytes(rng.randrange(1, 300)),
        lambda: "\u00e9\u4e2d\U0001f600\u0000\ufeff\u202e".encode()[: rng.randrange(14)],
        lambda: b"\x1b[31m<|endoftext|><bos>" * rng.randrange(4),
        lambda: b" \t\r\n" * rng.randrange(200),
        lambda: rng.choice(["utf-16", "latin-1", "cp1251", "shift_jis"]).encode(),
    ]
    raw = b"".join(rng.choice(parts)() for _ in range(rng.randrange(1, 9)))
    suffix = rng.choice([".txt", ".md", ".html", ".json", ".pdf", ".zip", ""])
    return Trap(_write(f"fuzzed{suffix}", raw), -1)


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Ingest good sources beside a trap: the good ones are stored, in bounded memory, and no escape is printed."""
    trap = TRAPS[case] if case in TRAPS else _fuzzed(prepared.rng(15, case))
    docs = sources.write(folder / "docs", GOOD)
    trap.plant(docs)

    def first() -> None:
        if case == "unreadable" and os.geteuid() == 0:
            _become_nobody(folder, prepared)
        if trap.during:
            _before_reading(lambda: trap.during and trap.during(docs))

    line = ("ingest", docs, "--store", folder / "store", "--split", "0", "--chunk", "32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = command(folder, prepared.folder / "model", *line, "--no-index", first=first)
    taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before
    must(done.code in ((0, 3) if trap.code < 0 else (trap.code,)), f"exit code {done.code}: {done.err[-800:]}")
    must("Traceback" not in done.err and "unexpected" not in done.err, done.err[-800:])
    must("\x1b" not in done.out + done.err and "\x07" not in done.out + done.err, "an escape reached the terminal")
    must(trap.said in done.err, f"{trap.said} is not named: {done.err[-500:]}")
    must(taken < MOST_MIB * 1024, f"{taken // 1024} MiB more than before")
    with StoreReader(folder / "store") as reader:
        names = {row.name for row in reader.documents()}
    must(names >= GOOD.keys(), f"only {sorted(names)} are stored")
    must(not names & {"link.txt", "pipe.txt", "null.txt"}, f"{sorted(names)} are stored")
    return Outcome(True, f"exit code {done.code}, {max(taken, 0) // 1024} MiB")


def _become_nobody(folder: Path, prepared: Prepared) -> None:
    """Lose the right to read everything."""
    for path in (folder, prepared.folder, *prepared.folder.glob("model")):
        path.chmod(0o755)
    shutil.chown(folder, 65534)
    (prepared.folder / "cache").mkdir(exist_ok=True)
    shutil.chown(prepared.folder / "cache", 65534)
    os.setegid(65534)
    os.seteuid(65534)


def _before_reading(act: Callable[[], object]) -> None:
    """Do something between the walk and the first read."""
    from comem_cli.store import ingest

    real, seen = ingest.extract, []

    def extract(source: object) -> object:
        if not seen:
            seen.append(act())
        return real(source)  # type: ignore[arg-type]

    ingest.extract = extract  # type: ignore[assignment]


ROWS = (Row(15, "hostile, broken and changing sources", _cases, run, ("jobs",)),)
