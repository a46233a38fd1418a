"""HTTP server for an engine that embeds, reranks or classifies, in the form of OpenAI's API."""
