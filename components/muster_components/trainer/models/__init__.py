"""The models that the trainer trains: recipes, and the interface for others."""
