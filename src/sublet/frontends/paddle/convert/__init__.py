"""Inference programs as models: names that are assigned again and again become values that are assigned once."""
