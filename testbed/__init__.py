"""The fabric and the run: builds the network, runs the traffic, checks and reports the result."""
