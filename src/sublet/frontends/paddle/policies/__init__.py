"""Policies: how a program is rewritten so that it holds fewer bytes. Each takes a program and gives a program."""
