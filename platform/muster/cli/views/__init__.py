"""What people see: objects and rows in, rich renderables out. Nothing here asks a cluster or reads a clock."""
