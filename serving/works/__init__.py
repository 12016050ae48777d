"""What the kinds of jobs do."""
