"""What everything stands on: files, optional packages, a cache on disk, sizes and names in words."""
