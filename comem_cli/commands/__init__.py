"""One thin file a command: parse, one library call, render."""
