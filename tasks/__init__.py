"""The units of work: pure functions from typed values or Arrow tables to the same. No Prefect, DuckDB or file access."""
