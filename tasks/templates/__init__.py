"""Serving templates: combinations of nodes, their exact throughput-optimal placement, the frontier."""
