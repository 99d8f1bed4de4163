"""Knowledge about Paddle's operators: shape rules, facts from experiments, and read and write effects."""
