"""Adapters as directories: what one was made for, whether it fits, and where to find one that does.

A directory is a standard peft one (`adapter_config.json`, `adapter_model.safetensors`) with comem's record beside it,
`comem.json`: the interface it was trained for (model, split, chunk, mode, overlap), how it was trained, on what, and
what was measured. Kinds: "suffix" repairs [j:L) and changes no stored byte; "write" changes [0:j) at ingest and is part
of the fingerprint. Importing this loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from comem_cli.errors import FingerprintError, UsageError
from comem_cli.model.cache import cache_directory, file_sha256
from comem_cli.model.load import ModelIdentity

RECORD = "comem.json"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KINDS = ("suffix", "write")
FORMAT = 1
# What reads near replay: LM tax on held-out packs of every size, and the share of what replay copies there or has right
# in a benchmark. Agreement with replay's first choices is no condition: it falls where an adapter copies what replay
# misses (dev/LOG.md, 2026-12-01).
MOST_TAX, LEAST_COPIED = 1.04, 0.95
_COPIED = ("facts_copied", "recited")
SAFE = 6  # up to 1/SAFE of the layers a split needs no adapter; deeper, what should be copied is lost (dev/baseline)
SHIPPED = Path(__file__).parents[1] / "adapters"


@dataclass(frozen=True)
class Interface:
    """Name what an adapter is trained for: the model's hashes (hex), j, tokens a chunk, mode, left-context tokens."""

    weights: str
    config: str
    split: int
    chunk: int
    mode: str
    overlap: int

    @classmethod
    def of(cls, model: ModelIdentity, *, split: int, chunk: int, mode: str, overlap: int) -> Interface:
        """Build the interface of a model's store."""
        return cls(model.weights, model.config, split, chunk, mode, overlap)


@dataclass(frozen=True)
class Adapter:
    """Hold one adapter directory; `record` is the whole of comem.json."""

    directory: Path
    kind: str
    interface: Interface
    rank: int
    alpha: int
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the directory."""
        return self.directory.resolve().name

    @property
    def digest(self) -> str:
        """Hash the weights: sha256 of adapter_model.safetensors, in hex."""
        return file_sha256(self.directory / WEIGHTS)

    @property
    def near_replay(self) -> bool:
        """Tell whether its record says that it reads packs of every size, copies and answers nearly as replay does."""
        try:
            packs = list(self.record["metrics"]["after"]["packs"].values())
            answers = self.record.get("answers", [])  # of shipped adapters: dev/ship_adapter.py
            good = all(float(one["adapted"]) >= LEAST_COPIED * float(one["replay"]) for one in answers)
            return bool(packs) and good and all(_near(pack) for pack in packs)
        except (KeyError, TypeError, ValueError, AttributeError):  # not measured so
            return False

    def to_json(self) -> dict[str, str]:
        """Name the adapter in an answer."""
        return {"name": self.name, "sha256": self.digest}

    def require(self, kind: str, wanted: Interface) -> None:
        """Refuse an adapter that was made for something else.

        Raises: FingerprintError (12) naming each field that differs and both values.
        """
        found = self._differences(kind, wanted)
        if found:
            listed = "; ".join(f"{name} {mine}, not {theirs}" for name, mine, theirs in found)
            raise FingerprintError(
                f"the adapter {self.directory} was trained for {listed}",
                "pass --adapter none, or train one for this store: comem distill --help",
            )

    def fits(self, kind: str, wanted: Interface) -> bool:
        """Tell whether it was made for this."""
        return not self._differences(kind, wanted)

    def _differences(self, kind: str, wanted: Interface) -> list[tuple[str, object, object]]:
        found: list[tuple[str, object, object]] = [] if self.kind == kind else [("kind", self.kind, kind)]
        pairs = ((f.name, getattr(self.interface, f.name), getattr(wanted, f.name)) for f in fields(Interface))
        return found + [(name, mine, theirs) for name, mine, theirs in pairs if mine != theirs]


def _near(pack: Mapping[str, Any]) -> bool:
    copied = all(float(pack[name]) >= LEAST_COPIED * float(pack[f"{name}_by_teacher"]) for name in _COPIED)
    return copied and float(pack["lm_tax"]) <= MOST_TAX


def read_adapter(directory: Path) -> Adapter:
    """Read an adapter's record.

    Raises: UsageError (2) where the directory is no whole adapter or its record is not readable.
    """
    absent = [name for name in (CONFIG, WEIGHTS, RECORD) if not (directory / name).is_file()]
    if absent:
        raise UsageError(f"{directory} is no adapter: it has no {absent[0]}", "make one: comem distill --help")
    try:
        record = json.loads((directory / RECORD).read_bytes())
        if record["format"] != FORMAT:
            raise UsageError(
                f"{directory} is an adapter of format {record['format']}; this comem reads {FORMAT}",
                "use the comem that made it, or train it again: comem distill --help",
            )
        interface = Interface(**record["interface"])
        lora = record["lora"]
        return Adapter(directory, str(record["kind"]), interface, int(lora["rank"]), int(lora["alpha"]), record)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{directory / RECORD} is damaged: {error}", "train it again: comem distill --help") from error


def record_of(kind: str, interface: Interface, rank: int, alpha: int, **facts: Any) -> dict[str, Any]:
    """Build the content of comem.json."""
    head = {"format": FORMAT, "kind": kind, "interface": asdict(interface), "lora": {"rank": rank, "alpha": alpha}}
    return head | facts


def choose_adapter(asked: str | None, kind: str, wanted: Interface) -> Adapter | None:
    """Return the adapter to use: the one asked for (a directory, or "none"), else one that fits, else none.

    Raises: UsageError (2) for what is no adapter, FingerprintError (12) for an adapter of something else.
    """
    if asked == "none":
        return None
    if asked is not None:
        adapter = read_adapter(Path(asked).expanduser())
        adapter.require(kind, wanted)
        return adapter
    return next((adapter for adapter in installed_adapters() if adapter.fits(kind, wanted)), None)


def default_split(model: ModelIdentity, *, chunk: int, mode: str, overlap: int) -> int:
    """Return the deepest split whose installed adapter fits and reads near replay; without one L // 6, at least 1."""
    kept = [max(1, model.n_layers // SAFE)]
    for adapter in installed_adapters():
        split = adapter.interface.split
        wanted = Interface.of(model, split=split, chunk=chunk, mode=mode, overlap=overlap)
        if adapter.near_replay and adapter.fits("suffix", wanted):
            kept.append(split)
    return max(kept)


def installed_adapters() -> Iterator[Adapter]:
    """Yield the adapters that come with comem, then those in the user's cache, by name, without damaged ones."""
    for folder in (SHIPPED, cache_directory() / "adapters"):
        for path in sorted(folder.glob(f"*/{RECORD}")):
            try:
                yield read_adapter(path.parent)
            except UsageError:  # one that nobody named must not stop a question
                continue
