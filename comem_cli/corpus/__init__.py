"""From paths to token chunks: walk finds files, extract reads them, chunk cuts them with byte and line spans."""
