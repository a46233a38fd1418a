"""The calls of an engine that embeds, ranks or classifies, over HTTP in the form of OpenAI's API."""
