"""Output for people: objects and rows in, rich renderables out. Nothing here calls a cluster or reads a clock."""
