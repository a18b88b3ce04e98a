"""Prefect flows and the `coral` command: wire catalogs -> tasks -> warehouse. Thin."""
