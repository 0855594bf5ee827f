"""Routing: pure schemes, and the OpenFlow application that programs them."""
