"""Rates of node configurations: roofline, intra-node layouts, profile tables."""
