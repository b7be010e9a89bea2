"""Residuals, token ids and the catalogue on disk, with one commit point."""
