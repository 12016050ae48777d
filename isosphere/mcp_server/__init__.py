"""Command `isosphere mcp`: tools of the Model Context Protocol over the corpora of a running server."""
