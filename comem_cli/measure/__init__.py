"""Contracts, timing boundaries, break-even and statistics."""
