"""Schedule, results and comparison of studies, which are grids of runs. Also model soups and rebuilds of encoders."""
