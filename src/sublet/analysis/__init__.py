"""Facts about a graph; nothing here decides anything."""
