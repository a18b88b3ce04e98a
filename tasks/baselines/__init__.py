"""Reference plans computed beside ours: the paper's greedy homogeneous plan."""
