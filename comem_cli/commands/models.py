"""`comem models`: get models and say which are here."""

from __future__ import annotations

from typing import Annotated

import typer

from comem_cli.commands import options
from comem_cli.output import out


def pull(
    model: Annotated[str | None, typer.Argument(help="Hub id, directory or GGUF. Default: the embedded model.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Get a model into the user cache.

    It is downloaded and converted as needed; later commands then work offline.
    """
    out.configure(json=json, quiet=quiet)
    files = options.resolve_model(model)
    if out.json:
        out.document({"model": files.name, "source": files.source, "directory": str(files.directory)})
    else:
        out.text(f"{files.name}: {files.directory}")


def show(
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List the converted models in the user cache."""
    out.configure(json=json, quiet=quiet)
    from comem_cli.model.embedded import NAME, converted_models

    rows = [(name or NAME, path) for name, path in converted_models()]
    if out.json:
        out.document([{"model": name, "directory": str(path)} for name, path in rows])
    else:
        out.table(("model", "directory"), rows)
