"""Event simulator: replays requests against planned instances and says whether the SLOs hold.

Pure functions: requests and instances in, per-request times and per-node use out; deterministic. ``engine.simulate`` is
the entry; ``build`` makes instances from templates, ``replay`` checks a template's stored rate, ``headroom`` finds the
largest safe use. Not simulated: prefix caching, speculative decoding, failures, aggregated serving.
"""
