"""Everything an RDMA NIC and a collective library do."""
