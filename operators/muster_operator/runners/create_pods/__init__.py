"""Jobs whose pods the operator creates and deletes itself."""
