"""The one place that calls `from_pretrained`: safetensors or GGUF, quiet, no remote code, no weight left at random.

Imports torch and Transformers inside its functions.
"""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from comem_cli.errors import ComemError, ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Transformers' progress bars and messages inside the block, and restore them after it."""
    import logging

    from transformers.utils import logging as theirs

    switch: Any = theirs  # its functions carry no types
    level = switch.get_verbosity()
    bars = switch.is_progress_bar_enabled()
    switch.set_verbosity(logging.CRITICAL)
    switch.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        switch.set_verbosity(level)
        if bars:
            switch.enable_progress_bar()


def read_model(directory: Path, dtype: torch.dtype, **extra: Any) -> PreTrainedModel:
    """Read a causal language model onto the CPU, in eval mode, without gradients, with SDPA where it has that.

    extra: further arguments of `from_pretrained` (a GGUF file and its quantisation). Raises ModelError when the file
    does not give a value for every weight: Transformers would fill the gaps at random. Raises what Transformers raises
    on a file that it cannot read.
    """
    from transformers import AutoModelForCausalLM

    from comem_cli.model.attention import group_queries

    read: Any = AutoModelForCausalLM.from_pretrained  # its types know no `output_loading_info`
    with quiet():
        model, report = read(
            directory,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            **extra,
        )
    absent = sorted({*map(str, report["missing_keys"]), *map(str, report["mismatched_keys"])})
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise ModelError(
            f"the weights in {directory} do not hold {absent[0]}{more}",
            "download the model again, or pass --model with a complete one",
        )
    model.requires_grad_(False)
    group_queries(model)
    loaded: PreTrainedModel = model.eval()
    return loaded


def refuse(action: str, error: Exception, hint: str) -> NoReturn:
    """Raise ModelError `cannot <action>: <first line of the error>`; our own errors and a full disk pass unchanged."""
    if isinstance(error, ComemError) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        raise error
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raise ModelError(f"cannot {action}: {lines[0][:300]}", hint) from error
