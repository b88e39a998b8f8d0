"""Text for terminals and messages: formatting, wrapping, sanitizing, suggestions."""
