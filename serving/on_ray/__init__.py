"""Command `isosphere serve --on ray`: run replicas of the server on a Ray cluster."""
