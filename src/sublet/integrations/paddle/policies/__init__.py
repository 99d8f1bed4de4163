"""Policies: rewrite a program to hold fewer bytes. Each policy maps a program to a program."""
