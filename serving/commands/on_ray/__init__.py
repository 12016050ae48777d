"""Command `isosphere serve --on ray`, which runs replicas of the server on a Ray cluster."""
