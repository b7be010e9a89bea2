"""Speed figures as ratios of interleaved arms: `python -m dev.bench`."""
