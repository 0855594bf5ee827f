"""A switch ASIC out of Linux parts: buffer management (tc-BPF) and the scheduler (HTB)."""
