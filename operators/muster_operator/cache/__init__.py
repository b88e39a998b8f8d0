"""The operator's cache of API objects, from which the engine's ObservedState is built."""
