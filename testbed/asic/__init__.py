"""A switch ASIC of Linux parts: hash engine (XDP), buffer management (tc-BPF), scheduler (HTB)."""
