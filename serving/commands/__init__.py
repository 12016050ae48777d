"""What `python -m serving` can be told to do, a file each."""
