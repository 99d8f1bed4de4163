"""The functions called by users: read a model, plan it, compile an executable, train, and advise on memory."""
