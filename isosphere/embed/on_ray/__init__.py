"""`isosphere embed --on ray`: bulk embedding on the machines of a Ray cluster."""
