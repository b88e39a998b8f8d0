"""How the operator speaks to the API server: one thin client, one list-and-watch loop, one lease."""
