"""The API objects that users write: types, validation, YAML input and CRD generation."""
