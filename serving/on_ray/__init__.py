"""`isosphere serve --on ray`: replicas of the server on the machines of a Ray cluster."""
