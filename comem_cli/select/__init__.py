"""Select: the BM25 index over token ids and the selectors that pick a question's chunks from it."""
