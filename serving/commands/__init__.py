"""Commands of the server's package, one file each."""
