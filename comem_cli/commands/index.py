"""`comem index`: build the index of a store again, and vectors for dense selection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.commands.terms import Terms, scheme_of, tokenizer_of
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.writer import StoreWriter


def index(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    terms: Terms = None,
    dense: Annotated[
        str | None, typer.Option(metavar="ENCODER", help="Sentence encoder, hub id or directory: for --selector dense.")
    ] = None,
    model: options.Model = None,
    device: options.Device = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Build the BM25 index of a store.

    It covers the terms of every stored chunk. Ingest builds it too, unless it is told --no-index. With --dense, the
    vectors of every chunk are made as well; they are stale as soon as the documents change.
    """
    out.configure(json=json, quiet=quiet)
    target = store or options.only_store()
    out.note(f"building the BM25 index of {target} ...")
    scheme = scheme_of(target, terms, lambda: options.resolve_model(model))
    from comem_cli.select.store_index import rebuild_index
    from comem_cli.store.writer import StoreWriter

    with StoreWriter.open(target) as writer:
        count = rebuild_index(writer, scheme)
        vectors = _vectors(writer, model, dense, device) if dense else None
    if out.json:
        made = {"store": str(target), "chunks": count, "terms": scheme.name}
        out.document(made if vectors is None else {**made, "vectors": vectors, "encoder": dense})
    else:
        out.text(f"{target}: {count} chunks indexed over {scheme.name} terms")
        if vectors is not None:
            out.text(f"{target}: {vectors} chunks encoded with {dense}")


def _vectors(writer: StoreWriter, model: str | None, encoder: str, device: str) -> int:
    from comem_cli.model.device import pick
    from comem_cli.select.encoder import SentenceEncoder, find_encoder
    from comem_cli.select.store_index import rebuild_vectors

    out.note(f"encoding the chunks with {encoder} ...")
    tokenizer = tokenizer_of(writer.fingerprint, options.resolve_model(model))
    loaded = SentenceEncoder(find_encoder(encoder), str(pick(device)[0]))
    with out.progress("encode", None, "chunk") as bar:
        return rebuild_vectors(writer, loaded, tokenizer, on_chunk=lambda: bar.update(1))
