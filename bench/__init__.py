"""Side-by-side benchmarks: each prints a ratio to something everyone has, measured in the same run."""
