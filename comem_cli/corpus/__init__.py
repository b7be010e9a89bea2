"""Folders to files, files to text, text to token chunks with spans."""
