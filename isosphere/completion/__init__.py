"""Shell completion for the command `isosphere`."""
