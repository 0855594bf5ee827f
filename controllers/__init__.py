"""Routing: pure schemes that compute flow table entries, and the application that installs them."""
