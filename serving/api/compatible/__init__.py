"""Routes of other servers, for their clients: OpenAI, Azure, Cohere and Ollama."""
