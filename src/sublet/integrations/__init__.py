"""Integrations: one folder a vendor, each behind one record, found by entry points; see `registry`."""
