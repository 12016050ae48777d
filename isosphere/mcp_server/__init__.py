"""Command `isosphere mcp`: serve MCP tools (Model Context Protocol) that use the corpora of a running server."""
