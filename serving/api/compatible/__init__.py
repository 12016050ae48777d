"""Routes for clients of other APIs: OpenAI, Azure, Cohere and Ollama."""
