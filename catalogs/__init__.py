"""What is true of the world: data files, their schemas, alias tables and typed readers. Imports nothing of ours."""
