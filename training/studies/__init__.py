"""Studies, which are grids of runs: schedule, results and comparison. Also model soups and rebuilds of encoders."""
