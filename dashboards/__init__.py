"""What people look at; reads the warehouse only."""
