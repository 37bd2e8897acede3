"""The engines carry out orders of the server: one client at a time, or blocks of clients in one kernel."""
