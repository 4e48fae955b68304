"""The dashboard: what the daemon knows, as a page to watch."""
