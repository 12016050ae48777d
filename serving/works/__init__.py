"""Work functions of jobs."""
