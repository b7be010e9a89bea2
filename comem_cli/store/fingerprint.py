"""What the stored bytes mean: the fingerprint of a store, and the key of a chunk under it.

Two stores with equal fingerprints hold the same residual for the same tokens and left context. Any difference is
refused with the field's name and both values. Compute dtype, attention implementation and library versions are
recorded beside it, not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from comem_cli.errors import FingerprintError


@dataclass(frozen=True)
class Fingerprint:
    """Everything that a stored residual depends on besides its tokens."""

    format_version: int
    weights: str  # hash of the weights, or the hub revision
    config: str  # hash of the model configuration, RoPE included
    tokenizer: str  # hash of the tokenizer
    bos: str  # the BOS policy, "id:1" or "none"
    split: int  # j: layers [0:j) are written
    chunk: int  # tokens a chunk
    overlap: int  # tokens of left context, 0 but for mode "overlap"
    mode: str  # "chunk" | "overlap" | "document"
    shapes: str  # JSON list of the padded [batch, length] shapes of Write
    write_adapter: str = "none"
    residual_dtype: str = "bfloat16"
    quantiser: str = "none"

    def digest(self) -> str:
        """Return 32 hex characters that differ where any field differs (blake2b-16 of the sorted JSON)."""
        return hashlib.blake2b(_canonical(asdict(self)), digest_size=16).hexdigest()

    def differences(self, other: Fingerprint) -> list[tuple[str, object, object]]:
        """List (field, own value, other's value) for each field that differs."""
        pairs = ((field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return [(name, mine, theirs) for name, mine, theirs in pairs if mine != theirs]

    def require_same(self, other: Fingerprint) -> None:
        """Refuse `other` (what a command wants to use) unless it equals this fingerprint (what the store holds).

        Raises: FingerprintError (12) naming each field that differs and both values.
        """
        found = self.differences(other)
        if found:
            raise FingerprintError(
                "the store was written with "
                + "; ".join(f"{name} {mine}, not {theirs}" for name, mine, theirs in found),
                "use the model and options of the store (`comem stats`), or write another one with `--store DIR`",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fingerprint:
        """Build a fingerprint from what `to_dict` gave.

        Raises: FingerprintError (12) if a field is missing or unknown.
        """
        expected = {field.name for field in fields(cls)}
        odd = sorted(expected.symmetric_difference(values))
        if odd:
            raise FingerprintError(f"fingerprint fields missing or unknown: {', '.join(odd)}", "comem stats STORE")
        return cls(**values)


def chunk_key(fingerprint_digest: str, left_ids: bytes, ids: bytes) -> str:
    """Return the key of a chunk, 32 hex characters: equal keys mean equal residuals.

    `left_ids` are the tokens of left context that Write saw (empty in mode chunk), `ids` the chunk's own, both uint32
    little-endian. Each part goes in after its length, so no two triples share an encoding.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (bytes.fromhex(fingerprint_digest), left_ids, ids):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
