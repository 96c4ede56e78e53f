"""How much to draft: what a pass costs, what a guess is worth, and the choice between nothing, a chain and a graph."""
