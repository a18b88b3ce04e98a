"""A plan as an API: published plans of a lake over HTTP, read-only."""
