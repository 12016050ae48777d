"""Studies: grids of runs, their schedule, results and comparison; soups and rebuilds."""
