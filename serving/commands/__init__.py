"""Commands of the server's package, a file each."""
