"""A plan as what launches it: commands of the engine per node, SkyPilot tasks, Kubernetes manifests. No file is touched here."""
