"""Paddle programs as records and as serialised bytes: unchanged records are written back byte for byte."""
