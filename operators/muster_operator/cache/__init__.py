"""How what the API server shows becomes the world that the engine decides from."""
