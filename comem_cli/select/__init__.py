"""Choose the chunks that answer a question."""
