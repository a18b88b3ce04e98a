"""Demand per window: counted in request traces, and forecast where a feed ends before the window that is planned."""
