"""The covers solver: per model an integer covering knapsack, joined by duals on the supply."""
