"""Collective algorithms as schedules, and the proof that a schedule is right."""
