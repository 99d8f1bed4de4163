"""Orders of the nodes of a program: live bytes of any order, a search for the lowest peak, and a lower bound."""
