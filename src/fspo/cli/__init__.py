"""The `fspo` command."""
