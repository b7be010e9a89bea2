"""Join a model's identity and the settings of Write into the fingerprint of a store."""

from __future__ import annotations

from dataclasses import replace

from comem_cli.model.cache import file_sha256
from comem_cli.model.load import ModelFiles, ModelIdentity
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.format import version_of
from comem_cli.store.row_layout import BF16, quantiser_of


def fingerprint_for(
    model: ModelIdentity,
    *,
    split: int,
    chunk: int,
    overlap: int = 0,
    mode: str = "chunk",
    shapes: str,
    residual_dtype: str = BF16,
) -> Fingerprint:
    """Build the fingerprint of residuals h_j that `model` writes with these settings.

    split: j. chunk, overlap: tokens. shapes: JSON of the padded batch shapes. residual_dtype: of row_layout.py.
    """
    return Fingerprint(
        format_version=version_of(residual_dtype),
        weights=model.weights,
        config=model.config,
        tokenizer=model.tokenizer,
        bos=_bos(model),
        split=split,
        chunk=chunk,
        overlap=overlap,
        mode=mode,
        shapes=shapes,
        residual_dtype=residual_dtype,
        quantiser=quantiser_of(residual_dtype),
    )


def require_model(stored: Fingerprint, model: ModelIdentity) -> None:
    """Refuse a model that did not write the store.

    Raises: FingerprintError (12) naming each field that differs and both values.
    """
    stored.require_same(
        replace(stored, weights=model.weights, config=model.config, tokenizer=model.tokenizer, bos=_bos(model))
    )


def require_tokenizer(stored: Fingerprint, files: ModelFiles) -> None:
    """Refuse a model whose tokenizer did not make the store's ids; reads no weights.

    Raises: FingerprintError (12) naming both hashes.
    """
    stored.require_same(replace(stored, tokenizer=file_sha256(files.tokenizer_file)))


def _bos(model: ModelIdentity) -> str:
    return "none" if model.bos_id is None else f"id:{model.bos_id} ({model.bos_source})"
