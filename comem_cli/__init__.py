"""comem: keep one mid-layer residual a token on disk and answer later questions by replaying only the remaining layers."""

__version__ = "0.1.0"
