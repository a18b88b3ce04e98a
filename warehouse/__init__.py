"""All contact with DuckDB, DuckLake and Parquet: schema, connect, land, publish, read, views."""
