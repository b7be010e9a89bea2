"""comem: keep one mid-layer residual a token on disk and replay only the remaining layers for every question."""

__version__ = "0.1.0"
